"""The flush thread's hot loop: convert ended scopes to records.

It shares the interpreter lock with training, so its time counts as part of the cost of a scope.
Most scopes are plain (no unusual name or index, no status or events) and are converted inline;
`span_row` converts all other scopes.
"""

from __future__ import annotations

from operator import attrgetter
from struct import pack
from typing import Any

from msgspec import UNSET

from ... import semconv as sc
from ...ids import INT64_LIMIT
from ..session.errors import record_error
from ..tracing.clock import ANCHOR
from ..tracing.enclosing import EnclosingSpan
from ..tracing.hook_costs import CLOCKED_PERCENT, unclocked_ns
from ..tracing.loops import STEP
from ..tracing.mark import SUMMARY
from ..tracing.phase import STEPS, Phase
from ..tracing.scope import Scope
from ..tracing.traces import Trace
from ..tracing.trainings import NUMBERED, trainings
from .drain import FlushChanges
from .json_attributes import NONE, plain_attributes
from .rows import MarkRow, SpanRow
from .span_rows import attributes_of, parent_id_of, span_row, trace_otel

_NO_MARKS: list[str] = []
_OVERHEAD = sc.OVERHEAD_NS


def scope_rows(  # noqa: PLR0915 - hot loop: it avoids one more call for each scope
    ended: list[Scope],
    ids: dict[Scope, list[str]],
    default: Trace,
    common: tuple[int, int | None, int],
    change: FlushChanges,
    marks: list[MarkRow],
) -> list[SpanRow]:
    """Return the records of `ended` in canonical order; append their overhead marks to `marks`.

    `ended` is sorted by end time. `ids` contains, by scope, the ids of the marks that become
    records now; the entries of the ended scopes are removed. `common` consists of the process id,
    the rank, and the number of scopes per overhead mark (0: no overhead marks).
    """
    pid, rank, every = common
    known, places, inside, figures = change.mark_ids, change.places, change.inside, change.figures
    trace: Trace | None = None
    low, otel = "", UNSET  # type: Any, Any
    rows: list[SpanRow] = []
    put, put_mark = rows.append, marks.append
    last_parent: Any = None
    parent_id: str | None = None
    parent_ids: dict[Any, str | None] = {}
    number, overhead_ns = change.scopes, change.overhead_ns
    hook_ns, scope_ns = unclocked_ns()
    has_trainings, first_training = trainings.is_used, trainings.first
    last_end, is_tied = 0, False
    # Format all ids at once: one at a time takes three times as long. The ids of overhead marks are
    # the same digits in reverse order (`overhead_id` of the translator).
    digits = pack(f">{len(ended)}Q", *[scope._id for scope in ended]).hex(" ", 8)
    halves, backwards = digits.split(" "), reversed(digits[::-1].split(" "))
    for scope, half, backward in zip(ended, halves, backwards, strict=False):
        try:
            if scope._trace is not trace:
                trace = scope._trace
                low, otel = trace.low, trace_otel(trace, default) or UNSET
            mark_ids = ids.pop(scope, None) if ids else None
            if known and scope in known:
                mark_ids = unpacked(known.pop(scope), low) + (mark_ids or [])
            number += 1
            mark_id = None
            overhead = scope._overhead
            if overhead:
                overhead = overhead * CLOCKED_PERCENT // 100
            if inside:
                overhead += inside.pop(scope, 0)
            kind = type(scope)
            own = hook_ns if kind is Phase else scope_ns if kind is Scope else 0
            # A phase recorded by an instrumentation usually has no SDK overhead, and then gets no
            # overhead mark.
            if (every == 1 or (every and number % every == 0)) and (overhead or kind is not Phase):
                mark_id = backward + low
                if mark_ids is None:
                    mark_ids = [mark_id]
                else:
                    mark_ids.append(mark_id)
            index, name, end = scope._index, scope._name, scope._end + ANCHOR
            parent, attrs = scope._above, scope._attrs
            if scope._rest is not None:
                attrs = attributes_of(scope)
            if (
                scope._extras is None
                and type(name) is str
                and (index is None or (type(index) is int and -INT64_LIMIT <= index < INT64_LIMIT))
            ):
                if parent is not last_parent:
                    last_parent, parent_id = parent, parent_ids.get(parent)
                    if parent_id is None:
                        parent_id = parent_ids[parent] = parent_id_of(scope)
                span_id = half + low
                row = SpanRow(
                    span_id, name, parent_id, index, scope._start + ANCHOR, end, None, None, None,
                    scope._thread, pid, rank, plain_attributes(attrs) if attrs else NONE,
                    mark_ids or _NO_MARKS, otel,
                )  # fmt: skip
            else:
                row = span_row(scope, pid, rank, default, mark_ids or _NO_MARKS)
                span_id = row.id
            if type(name) is str and name == STEP:
                values = figures.of(scope)
                row.attrs = {**values, **row.attrs} if row.attrs else values
                first_training.has_step = True
            if index is not None and row.index is not None and type(name) is str and name in STEPS:
                place = places.place(scope, row.index)
                row.attrs = {**place, **row.attrs} if row.attrs else place
                first_training.has_step = True
            if has_trainings and type(name) is str and name in NUMBERED:
                row.attrs = {**trainings.recorded(scope), **row.attrs}
            put(row)
            if end == last_end:
                is_tied = True
            last_end = end
            if mark_id is not None:
                put_mark(MarkRow(mark_id, span_id, _OVERHEAD, "int", overhead, NONE, end, SUMMARY))
            if not parent._depth:
                overhead_ns += overhead
            else:
                own += overhead
            if own:
                while type(parent) is EnclosingSpan:
                    parent = parent._above
                inside[parent] = inside.get(parent, 0) + own
        except Exception as error:
            record_error("record", error)
            change.spans_lost += 1
    change.scopes, change.overhead_ns = number, overhead_ns
    if is_tied:
        rows.sort(key=span_order)
    return rows


def span_order(row: SpanRow) -> tuple[int, str]:
    """Return the sort key of the canonical order of spans."""
    return row.end_ns, row.id


_end = attrgetter("_end")


def sort_scopes(ended: list[Scope]) -> None:
    """Sort scopes by end time; scopes with the same end time are sorted by id later, as records."""
    ended.sort(key=_end)


def default_trace(ended: list[Scope], current: Trace) -> Trace:
    """Return the batch's default trace; only scopes in other traces record their trace id.

    The default should be the trace of most scopes. The scopes are sorted by time and one trace
    follows another, so the trace of the middle scope is used.
    """
    trace = ended[len(ended) // 2]._trace if ended else current
    return current if trace.is_apart else trace  # `current` has the session's flags


def unpacked(halves: bytearray, low: str) -> list[str]:
    """Return the ids whose first halves are packed into `halves`."""
    text = halves.hex()
    return [text[at : at + 16] + low for at in range(0, len(text), 16)]
