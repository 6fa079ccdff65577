"""`epochs` and `batches`: a scope around each iteration of a loop."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from opentelemetry.context.context import Context

from ..session.errors import record_error, report_problem
from .buffers import hooks, local
from .clock import now
from .hidden_frames import hidden, strip
from .phase import LOOP_KEY, LoopFetches
from .scope import MAX_DEPTH, NO_SESSION, Scope
from .state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from .traces import UNIT_DEPTH
from .unwinding import keep, loop_left

T = TypeVar("T")

EPOCH, STEP = "epoch", "step"

_PLAIN = frozenset({range, list, tuple})
"""Iterables whose `next` runs no user code."""

_get = CONTEXT.get
_set = CONTEXT.set


def epochs(iterable: Iterable[T], name: str = EPOCH, *, start: int = 0) -> Iterator[T]:
    """Yield each item of `iterable` inside a scope `epoch`, numbered from `start`.

    A training that is resumed passes the number of its first epoch as `start`.
    """
    return _numbered(iterable, name, start)


def batches(iterable: Iterable[T], name: str = STEP, *, start: int = 0) -> Iterator[T]:
    """Yield each item of `iterable` inside a scope `step`, numbered from `start`.

    A training that is resumed in the middle of an epoch passes the number of its first batch as
    `start`. cirron-sdk names the scope `batch`; pass `name="batch"` to keep that.
    """
    return _numbered(iterable, name, start)


@hidden
def _numbered(iterable: Iterable[T], name: str, first: int) -> Iterator[T]:  # noqa: PLR0915 - inlined, see below
    """Open a scope for each item, from when it is yielded until the next one is requested.

    An iteration is the hottest path, so the code of `Scope.__enter__` and `__exit__` is inlined,
    and everything that is the same for all iterations is computed once.
    """
    if state.session is NO_SESSION:
        _meet_session()
    base = _get()
    parent: Scope = base.get(SCOPE_KEY) or state.session
    depth = parent._depth + 1
    trace = parent._trace
    segments: Any = state.segments
    is_plain = base.get(SPAN_KEY) is parent and segments is not None and not trace.is_apart
    is_unit = is_plain and depth <= UNIT_DEPTH
    is_plain = is_plain and UNIT_DEPTH < depth <= MAX_DEPTH
    # Fetching an item runs the user's code outside of the scope; plain iterables have no such code.
    restores = type(iterable) not in _PLAIN
    has_only_span = not base.keys() - {SPAN_KEY, SCOPE_KEY}
    is_epoch = type(name) is str and name == EPOCH
    inside = parent._inside
    fetching = base
    batch: Any = None
    if restores and state.fetched:
        # An instrumentation records the fetches of items; they belong to the next iteration.
        batch = LoopFetches(name)
        fetching = Context({**base, LOOP_KEY: batch})
        _set(fetching)
    new, clock = Scope.__new__, now
    scope: Any = None
    index = first if type(first) is int else _checked(first)
    begun = 0
    try:
        for item in iterable:
            try:
                if restores or not begun:
                    begun = clock()
                is_open = state.recording
                if is_open:
                    scope = new(Scope)
                    scope._name = name
                    scope._index = index
                    scope._above = parent
                    scope._depth = depth
                    scope._end = scope._overhead = 0
                    scope._attrs = scope._extras = None
                    buffers = local.b
                    for scope._id in buffers.ids:
                        break
                    else:
                        scope._id = buffers.next_id()
                    if is_unit:
                        segments.tick -= 1
                        if segments.tick >= 0:
                            scope._trace = segments.trace
                        else:
                            scope._start = 0
                            scope._place(base, parent, again=True)
                    elif is_plain:
                        scope._trace = trace
                    else:
                        is_open = _placed(scope, base, parent, begun)
                    if is_open:
                        scope._thread = buffers.ident
                        if has_only_span:
                            _set(Context({SPAN_KEY: scope, SCOPE_KEY: scope}))
                        else:
                            _set(Context({**base, SPAN_KEY: scope, SCOPE_KEY: scope}))
                        if state.special:
                            scope._notify_start(base)
                        scope._start = start = clock()
                        if batch is not None and batch.scope is not None:
                            batch.join(scope)
                        buffers.put(scope)
                        parent._overhead += start - begun
            except Exception as error:
                _not_opened(error, base)
                scope, is_open = None, False
            yield item
            if not is_open:
                begun = 0
                continue
            try:
                begun = clock()
                if restores:
                    _set(fetching)
                if state.special:
                    scope._notify_end(begun)
                elif not scope._end:
                    scope._end = begun
                if inside is not None:
                    inside.ended(scope, begun)
                if is_epoch:
                    state.epoch_ended(scope)
                    begun = 0
            except Exception as error:
                begun = 0
                _leave(scope, base, error)
            index += 1
    except BaseException as error:
        strip(error)
        raise
    finally:
        _leave(scope, base)
        if batch is not None:
            batch.over(base)


def _checked(index: Any) -> int:
    """Return `index` as an `int`. If it is not a whole number, report it and return 0."""
    try:
        return int(operator.index(index))
    except Exception:  # __index__ is the program's code
        report_problem(
            "start", f"start is of the type {type(index).__name__}, not a whole number: the loop is"
            " numbered from 0; pass an int to ci.epochs and ci.batches",
        )  # fmt: skip
        return 0


def _meet_session() -> None:
    """Let a forked child open its session now."""
    try:
        hooks.first()
    except Exception as error:
        record_error("loop", error)


def _not_opened(error: Exception, base: Any) -> None:
    """Handle an SDK error while opening a scope: the iteration is not recorded."""
    record_error("loop", error)
    _set(base)


def _placed(scope: Any, base: Any, parent: Scope, begun: int) -> bool:
    scope._start = 0
    scope._token = None
    if scope._place(base, parent):
        return True
    scope._open_unrecorded(begun)
    return False


def _leave(scope: Any, base: Any, failed: Exception | None = None) -> None:
    """Close the scope after the end of the loop, `break`, an exception, or an SDK error."""
    try:
        if scope is None:
            return
        if failed is not None:
            record_error("loop", failed)
            scope._end = scope._end or scope._start
        if not scope._end:
            end = now()
            # No exception was caught here: `break` left the loop, or an exception propagates.
            place = loop_left(2)
            if place is not None:
                keep(scope, place, end)
            elif state.special:
                scope._notify_end(end)
            else:
                scope._end = end
            if type(scope._name) is str and scope._name == EPOCH:
                state.epoch_ended(scope)
        if _get().get(SCOPE_KEY) is scope:
            _set(base)
    except Exception as error:
        scope._end = scope._end or scope._start
        record_error("loop", error)
