"""Scopes of instrumentations, whose kind, parent, and name may be decided after they have ended.

A phase counts as open until it is finished: until then, the flush thread does not seal it, and the
journal contains it in case of a crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from opentelemetry.context.context import Context

from ..session.errors import record_error
from .buffers import local
from .clock import now
from .scope import MAX_DEPTH, Scope
from .state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from .traces import UNIT_DEPTH

LOOP_KEY = "cirron-otel-loop"
"""The context key for a loop's `LoopFetches`, which is set while the loop fetches an item."""

STEPS = ("step", "batch")
"""Names of manual scopes that count as steps; `ci.batches` of cirron-sdk uses `batch`."""

_MANY = 1_024
_get = CONTEXT.get
_set = CONTEXT.set
_reset = CONTEXT.reset


class Phase(Scope):
    """A scope that an instrumentation opens and closes."""

    __slots__ = ("_before", "_stamps", "_until")

    _until: int
    """End of the phase, monotonic ns; 0 while it runs."""
    _before: int
    """The kinds of phases that were open before this phase, as bits (used by instrumentations)."""
    _stamps: Any
    """Events recorded on a device's stream at its start and end; None without a device."""

    def finish(self) -> None:
        """Allow the phase to be sealed from now on; its record no longer changes."""
        until = self._until or self._start
        if state.special:
            self._notify_end(until)
        else:
            self._end = until

    def move(self, parent: Any) -> None:
        """Change the parent to another scope of the same thread, before the phase is finished."""
        self._above = parent
        self._depth = parent._depth + 1
        if self._extras is None or not self._extras.is_rooted:
            self._trace = parent._trace


class LoaderPassSpan(Phase):
    """A pass over a loader: an epoch, or an evaluation."""

    __slots__ = ("_ends",)

    _ends: LastEnd | None

    @property
    def _inside(self) -> LastEnd:
        """Collects the ends of child scopes and spans of the user."""
        ends = self._ends
        if ends is None:
            ends = self._ends = LastEnd()
        return ends

    @property
    def last_end(self) -> int:
        """The latest end of a child (monotonic ns), or 0."""
        return 0 if self._ends is None else self._ends.last


class LastEnd:
    """The latest end of child scopes and spans.

    The class has those methods of `Intervals` that scopes and spans call.
    """

    __slots__ = ("last", "open")

    def __init__(self) -> None:
        self.last = 0
        self.open: dict[Any, None] = {}
        """Always empty: an open span does not prolong the pass."""

    def begin(self, span: Any) -> None:
        """Ignore the beginning of a span of another library."""

    def append(self, interval: tuple[int, int]) -> None:
        """Record the end of a span of another library."""
        self.last = max(self.last, interval[1])

    def ended(self, _scope: Any, end: int) -> None:
        """Record the end of a scope."""
        self.last = max(self.last, end)


class Step(Phase):
    """A scope that collects the intervals in which its children ran."""

    __slots__ = ("_collected", "_folded", "_is_detailed", "_is_known", "_rest")

    _collected: Intervals | None
    _folded: list[Phase] | None
    """Child phases that have no id and no record so far: with `detail_every`, most of them are
    never recorded. None if each phase is recorded immediately."""
    _is_detailed: bool | None
    """With `detail_every`, whether the step's inside is certain to be retained; None: undecided."""
    _is_known: bool | None
    """Whether it is certain, before the step ends, that the step remains its children's parent."""
    _rest: int | None
    """The step's `unattributed_ns`, unless its attributes already contain it."""

    @property
    def inside(self) -> Intervals:
        """The intervals in which its children ran.

        Phases opened by the step's own instrumentation are not included until the instrumentation
        adds them.
        """
        collected = self._collected
        if collected is None:
            collected = self._collected = Intervals()
        return collected

    _inside = inside  # read by child scopes

    def unattributed_ns(self, until: int) -> int:
        """Return the time between its start and `until` in which no child ran, ns."""
        return max(until - self._start - self.inside.within(self._start, until), 0)


def is_held(scope: Any) -> bool:
    """Return whether an ended scope must not be sealed yet: its step may still change."""
    parent = scope._above
    if isinstance(scope, (Step, LoaderPassSpan)):
        return False
    return type(parent) is Step and not parent._end and not parent._is_known


def unfold(step: Any) -> list[Phase]:
    """Give ids to the phases that are folded into a step, and return them to be sealed.

    Any thread may call this function. A folded phase never was the current span.
    """
    folded, step._folded = step._folded or (), None
    buffers = local.b
    recorded = []
    for phase in folded:
        if not phase._id:
            _identify(phase, step, buffers)
            phase._end = phase._until or now()
            recorded.append(phase)
    return recorded


def record_folded(phase: Any) -> bool:
    """Record a phase that is folded into its step, if it is: the step then does not unfold it.

    Only the phase's own thread may call this function. Returns whether the phase is recorded.
    """
    if phase._id:
        return True
    step = phase._above
    while isinstance(step, Phase) and type(step) is not Step:
        step = step._above
    if not isinstance(phase, Phase) or type(step) is not Step or step._folded is None:
        return False
    buffers = local.b
    _identify(phase, step, buffers)
    buffers.put(phase)
    return True


def _identify(phase: Any, step: Any, buffers: Any) -> None:
    phase._id = buffers.next_id()
    phase._trace = phase._above._trace
    phase._thread = step._thread


class Intervals:
    """Time intervals, as pairs of nanoseconds, in bounded memory."""

    __slots__ = ("_floor", "_folded", "_some", "by_hand", "last", "open")

    def __init__(self) -> None:
        self.by_hand = False
        """Whether one of the intervals is a manual step."""
        self._some: list[tuple[int, int]] = []
        self._folded = self._floor = 0
        self.last = 0
        """The latest end of an interval."""
        self.open: dict[Any, None] = {}
        """Child spans of other libraries that have not ended."""

    def begin(self, span: Any) -> None:
        """Record that a child span of another library begins."""
        if len(self.open) < _MANY:
            self.open[span] = None

    def close(self, parent: Any) -> None:
        """Account for the open spans when the step ends.

        An open span with a phase in it counts up to now; any other open span moves to `parent`.
        """
        while self.open:
            span, _ = self.open.popitem()
            if span.has_phase:
                self.append((span._start, now()))
            else:
                span.reparent(parent)

    def append(self, interval: tuple[int, int]) -> None:
        """Add an interval that has ended."""
        intervals = self._some
        intervals.append(interval)
        self.last = max(self.last, interval[1])
        if len(intervals) > _MANY:
            self._folded = self.within(0, self.last)
            self._floor = self.last
            intervals.clear()

    def extend(self, other: Intervals) -> None:
        """Add the intervals of `other`, except those that it has folded."""
        for interval in other._some:
            self.append(interval)

    def ended_after(self, time: int) -> Iterator[tuple[int, int]]:
        """Return the last intervals, up to the first that ended at `time` or before."""
        return takewhile(lambda interval: interval[1] > time, reversed(self._some))

    def ended(self, scope: Any, end: int) -> None:
        """Record the end of a child scope."""
        self.append((scope._start, end))
        if scope._name in STEPS:
            self.by_hand = True

    def within(self, start: int, end: int) -> int:
        """Return how much of the time from `start` to `end` the intervals cover, ns."""
        covered, at = self._folded, max(start, self._floor)
        for begun, over in sorted(self._some):
            begun, over = max(begun, at), min(over, end)  # noqa: PLW2901
            if over > begun:
                covered += over - begun
                at = over
        return covered


def begin(
    scope: Any, name: str, index: int | None, attrs: dict[str, Any] | None, above: Any,
    context: Any, begun: int, is_fixed: bool = False, enters: bool = False,
) -> None:  # fmt: skip
    """Open a new Phase or Step below `above`; `begun` is the time at which its creation began.

    If it is too deep, it is not recorded, and starts at `begun`. With `is_fixed`, its parent is
    `above` regardless of the current span. With `enters`, it is the current scope until `leave`.
    """
    scope._name, scope._index, scope._attrs = name, index, attrs
    scope._above = above
    scope._depth = depth = above._depth + 1
    scope._start = scope._end = scope._overhead = scope._until = 0
    scope._extras = scope._token = scope._stamps = None
    buffers = local.b
    for scope._id in buffers.ids:
        break
    else:
        scope._id = buffers.next_id()
    is_plain = is_fixed or (depth > UNIT_DEPTH and context.get(SPAN_KEY) is above)
    if is_plain and depth <= MAX_DEPTH:
        scope._trace = above._trace
    elif not scope._place(context, above):
        scope._open_unrecorded(begun)
        scope._trace, scope._thread = above._trace, buffers.ident
        if enters:
            scope._token = _set(Context({**context, SPAN_KEY: scope, SCOPE_KEY: scope}))
        return
    scope._thread = buffers.ident
    if state.special:
        scope._notify_start(context)
    if enters:
        scope._token = _set(Context({**context, SPAN_KEY: scope, SCOPE_KEY: scope}))
    scope._start = start = now()
    buffers.put(scope)
    scope._above._overhead += start - begun


def make_current(scope: Any, context: Any) -> Any:
    """Make `scope` the current scope; return the context that was set."""
    inside = Context({**context, SPAN_KEY: scope, SCOPE_KEY: scope})
    _set(inside)
    return inside


def leave(scope: Any, error: BaseException | None = None) -> None:
    """End the work of `scope` now, without finishing it."""
    scope._until = now()
    if error is not None:
        scope._fail(error)
    restore_context(scope)


def restore_context(scope: Any) -> None:
    """Restore the context that `begin` replaced. A second call does nothing."""
    token, scope._token = scope._token, None
    if token is not None:
        try:  # noqa: SIM105 - contextlib.suppress costs as much as all this
            _reset(token)
        except (ValueError, RuntimeError):
            pass  # left in a context other than its own


class LoopFetches:
    """The phases recorded while `batches` or `epochs` fetches its next item."""

    __slots__ = ("name", "scope", "scopes")

    def __init__(self, name: str) -> None:
        self.name = name
        """Name of the item's scope."""
        self.scopes: list[Phase] = []
        self.scope: Phase | None = None
        """The first of these phases."""

    def add(self, scope: Phase) -> None:
        """Add a fetch that has ended."""
        self.scope = self.scope or scope
        self.scopes.append(scope)

    def join(self, scope: Any) -> None:
        """Move the fetches into the item's scope, which then begins with the first of them."""
        try:
            scope._start = min([scope._start, *[each._start for each in self.scopes]])
            for each in self.scopes:
                each.move(scope)
                each.finish()
        except Exception as error:
            record_error("loop", error)
        self.scopes, self.scope = [], None

    def over(self, base: Any) -> None:
        """Finish the remaining fetches, because the loop has ended."""
        try:
            for each in self.scopes:
                each.finish()
            self.scopes, self.scope = [], None
            if _get().get(LOOP_KEY) is self:
                with contextlib.suppress(ValueError, RuntimeError):
                    _set(base)
        except Exception as error:
            record_error("loop", error)
