"""What instrumentations record: scopes whose end, place and name may be known before it is decided
what they are.

A phase is open for the flush thread until it is finished, so nothing of it is sealed before, and
a crash finds it in the journal.
"""

from __future__ import annotations

import contextlib
from typing import Any

from opentelemetry.context.context import Context

from ..session.errors import record_error
from .buffers import local
from .clock import now
from .scope import MAX_DEPTH, Scope
from .state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from .traces import UNIT_DEPTH

LOOP_KEY = "cirron-otel-loop"
"""Under which OpenTelemetry's context holds, while `batches` fetches, the `Fetched` it fills."""

STEPS = ("step", "batch")
"""Names of scopes by hand that own the steps; cirron-sdk's `ci.batches` says `batch`."""

_MANY = 1_024
_get = CONTEXT.get
_set = CONTEXT.set
_reset = CONTEXT.reset


class Phase(Scope):
    """A scope that an instrumentation opens and closes."""

    __slots__ = ("_before", "_stamps", "_until")

    _until: int
    """When it ended, monotonic ns; 0 while it runs."""
    _before: int
    """For whoever opened it: what was open before."""
    _stamps: Any
    """What was put on a device's stream at its two ends; None without a device."""

    def finish(self) -> None:
        """It may be sealed from here on, as what it is now."""
        until = self._until or self._start
        if state.special:
            self._tell_end(until)
        else:
            self._end = until

    def move(self, above: Any) -> None:
        """Hang it on another scope of the same thread, before it is finished."""
        self._above = above
        self._depth = above._depth + 1
        if self._more is None or not self._more.is_rooted:
            self._trace = above._trace


class LoaderPassSpan(Phase):
    """A pass over a loader: an epoch, or an evaluation."""

    __slots__ = ("_ends",)

    _ends: LastEnd | None

    @property
    def _inside(self) -> LastEnd:
        """Collects when the user's own scopes and spans directly below it end."""
        ends = self._ends
        if ends is None:
            ends = self._ends = LastEnd()
        return ends

    @property
    def last_end(self) -> int:
        """The latest of these ends (monotonic ns), or 0."""
        return 0 if self._ends is None else self._ends.last


class LastEnd:
    """The latest end among scopes and spans; it has the methods of `Intervals` that they call."""

    __slots__ = ("last", "open")

    def __init__(self) -> None:
        self.last = 0
        self.open: dict[Any, None] = {}
        """Always empty: a span that is still open does not prolong the pass."""

    def begin(self, span: Any) -> None:
        """A span of another library begins."""

    def append(self, interval: tuple[int, int]) -> None:
        """A span of another library has ended."""
        self.last = max(self.last, interval[1])

    def ended(self, _scope: Any, end: int) -> None:
        """A scope has ended."""
        self.last = max(self.last, end)


class Step(Phase):
    """A scope that collects when something directly below it ran."""

    __slots__ = ("_collected", "_folded", "_is_detailed", "_is_known", "_rest")

    _collected: Intervals | None
    _folded: list[Phase] | None
    """Phases directly below it of which there is no record so far, those without an id: with
    `detail_every` most are never wanted. None where each is recorded by itself."""
    _is_detailed: bool | None
    """With `detail_every`, whether its inside stays however short it is; None: not decided."""
    _is_known: bool | None
    """Whether it is known, before it ends, that it is what its children were recorded for."""
    _rest: int | None
    """Its `unattributed_ns`, where that does not stand in its attributes yet."""

    @property
    def inside(self) -> Intervals:
        """What ran directly below it and was no phase of its instrumentation's."""
        collected = self._collected
        if collected is None:
            collected = self._collected = Intervals()
        return collected

    _inside = inside  # what a scope below asks for

    def unattributed_ns(self, until: int) -> int:
        """The time between its start and `until` in which nothing directly below it ran, ns."""
        return max(until - self._start - self.inside.within(self._start, until), 0)


def is_held(scope: Any) -> bool:
    """Whether it is not to be sealed though it has ended: its step may still turn out another."""
    above = scope._above
    if isinstance(scope, (Step, LoaderPassSpan)):
        return False
    return type(above) is Step and not above._end and not above._is_known


def unfold(step: Any) -> list[Phase]:
    """Make records of what is folded into a step, and return them: they may be sealed.

    On whatever thread decides so; what was in a phase has not had it as its current span.
    """
    folded, step._folded = step._folded or (), None
    buffers = local.b
    made = []
    for phase in folded:
        if not phase._id:
            phase._id = buffers.next_id()
            phase._trace = phase._above._trace
            phase._thread = step._thread
            phase._end = phase._until or now()
            made.append(phase)
    return made


class Intervals:
    """Intervals of time, as pairs of nanoseconds; many take no more memory than some."""

    __slots__ = ("_floor", "_folded", "_some", "by_hand", "last", "open")

    def __init__(self) -> None:
        self.by_hand = False
        """Whether one of them was a step that somebody opened by hand."""
        self._some: list[tuple[int, int]] = []
        self._folded = self._floor = 0
        self.last = 0
        """When the last of them was over."""
        self.open: dict[Any, None] = {}
        """Spans of other libraries that began directly below and have not ended."""

    def begin(self, span: Any) -> None:
        """A span of another library begins directly below."""
        if len(self.open) < _MANY:
            self.open[span] = None

    def close(self, above: Any) -> None:
        """The step ends now. An open span with a phase in it counts up to now; another one
        belongs to `above`.
        """
        while self.open:
            span, _ = self.open.popitem()
            if span.holds:
                self.append((span._start, now()))
            else:
                span.hang_on(above)

    def append(self, interval: tuple[int, int]) -> None:
        """Add one that is over."""
        some = self._some
        some.append(interval)
        self.last = max(self.last, interval[1])
        if len(some) > _MANY:
            self._folded = self.within(0, self.last)
            self._floor = self.last
            some.clear()

    def ended(self, scope: Any, end: int) -> None:
        """A scope directly below is over."""
        self.append((scope._start, end))
        if scope._name in STEPS:
            self.by_hand = True

    def within(self, start: int, end: int) -> int:
        """How much of the time from `start` to `end` they cover together, ns."""
        covered, at = self._folded, max(start, self._floor)
        for begun, over in sorted(self._some):
            begun, over = max(begun, at), min(over, end)  # noqa: PLW2901
            if over > begun:
                covered += over - begun
                at = over
        return covered


def begin(
    scope: Any, name: str, index: int | None, attrs: dict[str, Any] | None, above: Any,
    context: Any, begun: int, *, is_fixed: bool = False,
) -> None:  # fmt: skip
    """Open a new Phase or Step below `above`; `begun` is when its making was begun.

    It is current nowhere yet. Where it lies too deep it is not recorded. `is_fixed`: it hangs on
    `above` whatever span is current.
    """
    scope._name, scope._index, scope._attrs = name, index, attrs
    scope._above = above
    scope._depth = depth = above._depth + 1
    scope._start = scope._end = scope._overhead = scope._until = 0
    scope._more = scope._token = scope._stamps = None
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
        return
    scope._thread = buffers.ident
    if state.special:
        scope._tell_start(context)
    scope._start = start = now()
    buffers.put(scope)
    scope._above._overhead += start - begun


def make_current(scope: Any, context: Any) -> Any:
    """Let `scope` be the current one; returns the context that was set."""
    inside = Context({**context, SPAN_KEY: scope, SCOPE_KEY: scope})
    _set(inside)
    return inside


def enter(scope: Any, context: Any) -> None:
    """Let `scope` be the current one until `leave`."""
    scope._token = _set(Context({**context, SPAN_KEY: scope, SCOPE_KEY: scope}))


def leave(scope: Any, error: BaseException | None = None) -> None:
    """What `scope` is about is over, now. It is not finished by that."""
    scope._until = now()
    if error is not None:
        scope._fail(error)
    token, scope._token = scope._token, None
    if token is not None:
        try:  # noqa: SIM105 - contextlib.suppress costs as much as all this
            _reset(token)
        except (ValueError, RuntimeError):
            pass  # left in another context than entered


class LoopFetches:
    """What an instrumentation recorded while `batches` or `epochs` fetched its next item."""

    __slots__ = ("name", "scope", "scopes")

    def __init__(self, name: str) -> None:
        self.name = name
        """Of the scope that the item will have."""
        self.scopes: list[Phase] = []
        self.scope: Phase | None = None
        """The first of them."""

    def add(self, scope: Phase) -> None:
        """A fetch is over."""
        self.scope = self.scope or scope
        self.scopes.append(scope)

    def join(self, scope: Any) -> None:
        """The item's scope is open: it began with the fetch."""
        try:
            scope._start = min([scope._start, *[each._start for each in self.scopes]])
            for each in self.scopes:
                each.move(scope)
                each.finish()
        except Exception as error:
            record_error("loop", error)
        self.scopes, self.scope = [], None

    def over(self, base: Any) -> None:
        """The loop is over: nobody looks at its fetches any more."""
        try:
            for each in self.scopes:
                each.finish()
            self.scopes, self.scope = [], None
            if _get().get(LOOP_KEY) is self:
                with contextlib.suppress(ValueError, RuntimeError):
                    _set(base)
        except Exception as error:
            record_error("loop", error)
