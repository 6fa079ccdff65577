"""`detail_every=N`: record the inside of every Nth step, and every step itself.

`every=1` retains the inside of all steps, and so only makes sure that a step and its inside are in
the same batch, which an export budget needs.

The inside of slow and failed steps is also recorded. The step of a scope is the nearest
enclosing scope named `step`. Whether to retain the inside of a step is decided when the step has
ended; until then its scopes and marks are held back. Marks are never lost: the marks of a discarded
scope move to its step.
"""

from __future__ import annotations

from collections.abc import Set
from operator import attrgetter
from typing import Any

from opentelemetry.trace import StatusCode

from .buffers import MarkEntry
from .hook_costs import unclocked_ns
from .loops import STEP
from .phase import Phase, unfold
from .rare_work import add_rare
from .scope import NO_SESSION, Scope
from .slow_steps import SlowSteps

MOST_HELD = 100_000
"""Maximum number of scopes and marks held back; beyond it, the oldest steps are fully recorded."""
_REMEMBERED = 1_000
"""Number of steps whose verdict is retained for scopes that end after their step."""

_by_end = attrgetter("_end", "_id")


class _Inside:
    """The scopes and marks of one step that are held back."""

    __slots__ = ("entries", "is_overdue", "scopes")

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.entries: list[MarkEntry] = []
        self.is_overdue = False
        """Whether the step had already ended at the last flush."""

    @property
    def size(self) -> int:
        return len(self.scopes) + len(self.entries)


class DetailSampler:
    """Decides which scopes are recorded; used only by the flush thread."""

    def __init__(self, every: int, slow_factor: float, most_held: int = MOST_HELD) -> None:
        """Retain the inside of each `every`th step, and of each slow step.

        A step is slow if it takes more than `slow_factor` times the median of recent steps.
        """
        self._every = max(every, 1)
        self._slow_steps = SlowSteps(slow_factor)
        self._most_held = most_held
        self._held: dict[Scope, _Inside] = {}
        self._verdicts: dict[Scope, bool] = {}
        self._steps = 0
        self.partial: set[Scope] = set()
        """The steps that the last call of `filter` discarded scopes of."""
        self.thinned = 0
        """Number of scopes that were discarded."""

    @property
    def held(self) -> int:
        """The number of scopes and marks that wait for their step to end."""
        return sum(inside.size for inside in self._held.values())

    def filter(
        self,
        ended: list[Scope],
        entries: list[MarkEntry],
        is_last: bool,
        waiting: Set[Scope] = frozenset(),
    ) -> tuple[list[Scope], list[MarkEntry]]:
        """Return the scopes and marks to record now: new ones, and those held back earlier.

        `waiting` are scopes that the next flushes take, although they may have ended.

        A scope whose span context was requested is retained: it may be the parent of another span,
        or part of a traceparent that left the process. A discarded scope loses its id, so retained
        scopes below it move to the nearest recorded ancestor; its overhead is added to its parent.
        With `is_last`, no record is held back any more.
        """
        out: list[Scope] = []
        marks: list[MarkEntry] = []
        self.partial.clear()
        for scope in ended:
            step = step_of(scope)
            if step is None:
                out.append(scope)
            else:
                self._inside(step).scopes.append(scope)
        for entry in entries:
            step = None if _is_step(entry[0]) else step_of(entry[0])
            if step is None:
                marks.append(entry)
            else:
                self._inside(step).entries.append(entry)
        self._judge(ended)
        self._release(out, marks, is_last, waiting)
        for step in list(self._verdicts)[: max(len(self._verdicts) - _REMEMBERED, 0)]:
            del self._verdicts[step]
        return out, marks

    def _inside(self, step: Scope) -> _Inside:
        inside = self._held.get(step)
        if inside is None:
            inside = self._held[step] = _Inside()
        return inside

    # --- deciding -------------------------------------------------------------------------------

    def _judge(self, ended: list[Scope]) -> None:
        for step in sorted(filter(_is_step, ended), key=_by_end):
            inside = self._held.get(step)
            length = step._end - step._start
            is_due = step._is_detailed
            if is_due is None:
                is_due = self._steps % self._every == 0
            stays = (
                self._verdicts.get(step, False)
                or is_due
                or self._slow_steps.is_slow(length)
                or _has_failed(step)
                or (inside is not None and any(map(_has_failed, inside.scopes)))
                or any(map(_has_failed, step._folded or ()))
            )
            self._steps += 1
            self._slow_steps.add(length)
            self._verdicts[step] = stays
            if step._folded is not None:
                self._unfold(step, stays)

    def _unfold(self, step: Any, stays: bool) -> None:
        """Record or discard the phases inside a step that have no record yet."""
        if stays:
            self._inside(step).scopes += unfold(step)
        else:
            count = sum(not phase._id for phase in step._folded)
            self.thinned += count
            add_rare(step, count * unclocked_ns()[0])
            step._folded = None

    def _release(
        self, out: list[Scope], marks: list[MarkEntry], is_last: bool, waiting: Set[Scope]
    ) -> None:
        """Release the records of decided steps, and of steps that must be decided now.

        A step must be decided if it is overdue, if it is one of the oldest steps on overflow, or at
        the end of the session.
        """
        size = self.held
        for step, inside in list(self._held.items()):
            stays = self._verdicts.get(step)
            is_overdue = inside.is_overdue and step not in waiting
            if stays is None and (is_last or is_overdue or size > self._most_held):
                # An overdue step will never get a verdict: it was dropped after it ended, or its
                # verdict was discarded.
                stays = self._verdicts[step] = True
            if stays is None:
                inside.is_overdue = bool(step._end) and step not in waiting
                continue
            del self._held[step]
            size -= inside.size
            if stays:
                out += inside.scopes
                marks += inside.entries
            else:
                self._thin(step, inside, out, marks)

    def _thin(self, step: Scope, inside: _Inside, out: list[Scope], marks: list[MarkEntry]) -> None:
        self.partial.add(step)
        stay = {s for s in inside.scopes if _is_step(s) or _has_failed(s) or _is_referred_to(s)}
        hook_ns, scope_ns = unclocked_ns()
        unclocked = 0
        for scope in sorted(inside.scopes, key=_by_end):
            if scope in stay:
                out.append(scope)
            else:
                scope._id = 0
                scope._above._overhead += scope._overhead
                unclocked += hook_ns if type(scope) is Phase else scope_ns
                self.thinned += 1
        add_rare(step, unclocked)
        marks += [entry if entry[0] in stay else (step, *entry[1:]) for entry in inside.entries]


def step_of(scope: Any) -> Scope | None:
    """Return the nearest scope named `step` around a scope."""
    parent = scope._above
    while parent._depth and parent is not NO_SESSION:
        if _is_step(parent):
            return parent  # type: ignore[no-any-return]
        parent = parent._above
    return None


def _is_step(scope: Any) -> bool:
    name = scope._name
    return type(name) is str and name == STEP


def _has_failed(scope: Scope) -> bool:
    extras = scope._extras
    return extras is not None and extras.status.status_code is StatusCode.ERROR


def note_references(scope: Any) -> None:
    """Record whether the scope's span context has been requested so far.

    Call this before other processors see the end of the scope, because their requests do not count
    as references.
    """
    extras = scope._extras
    scope._is_free = extras is None or extras.context is None


def _is_referred_to(scope: Any) -> bool:
    """Return whether a foreign span, traceparent, or link may refer to the scope's context."""
    extras = scope._extras
    if extras is None or extras.context is None:
        return False
    return not getattr(scope, "_is_free", False)
