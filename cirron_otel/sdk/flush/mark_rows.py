"""Convert the marks of a flush to records; with scope_rows, the flush thread's hot loop."""

from __future__ import annotations

from operator import attrgetter
from os import urandom
from typing import Any

from ..session.errors import record_error
from ..tracing.buffers import MarkEntry
from ..tracing.clock import ANCHOR
from ..tracing.coerce import Deferred
from ..tracing.mark import POINT
from ..tracing.scope import NO_SESSION, Scope
from .drain import FlushChanges
from .json_attributes import NONE
from .rows import MarkRow
from .span_rows import is_encodable, mark_row, recorded_above

ROOT = "root"
"""The span id of marks made outside of every session (schemas page, "marks[]")."""

_time = attrgetter("ts_ns")
_order = attrgetter("ts_ns", "id")


def ids_of(
    entries: list[MarkEntry], session: Scope
) -> tuple[dict[Scope, list[str]], list[tuple[str, str]]]:
    """Return the ids of each scope's marks, and for each mark its id and its scope's id.

    An id consists of random bytes and the second half of the scope's id, or of the session's id for
    a mark outside of every session. A scope that is not recorded has the id "".
    """
    ids: dict[Scope, list[str]] = {}
    pairs: list[tuple[str, str]] = []
    put = pairs.append
    halves = urandom(8 * len(entries)).hex(" ", 8).split(" ")
    last: Any = None
    span_id = low = ""
    scope_ids: list[str] = []
    for entry, half in zip(entries, halves, strict=False):
        scope: Any = entry[0]
        if scope is not last:
            last = scope
            if not scope._id and scope._inside is not None:
                scope = recorded_above(scope)  # it was not a step after all
            low = scope._trace.low
            span_id = "%016x%s" % (scope._id, low) if scope._id else ""  # noqa: UP031 - faster
            if scope is NO_SESSION:
                span_id, low = ROOT, session._trace.low
            known = ids.get(scope)
            scope_ids = [] if known is None else known
            ids[scope] = scope_ids
        value = entry[2]
        kind = type(value)
        if (kind is int or kind is Deferred) and not is_encodable(value):
            put(("", ""))
            continue
        mark_id = half + low
        scope_ids.append(mark_id)
        put((mark_id, span_id))
    return ids, pairs


def mark_rows(
    entries: list[MarkEntry], ids: list[tuple[str, str]], change: FlushChanges
) -> list[MarkRow]:
    """Return the records of marks; count those of unrecorded scopes as lost."""
    rows: list[MarkRow] = []
    put = rows.append
    for entry, (mark_id, span_id) in zip(entries, ids, strict=True):
        _, name, value, time_, kind, attrs = entry
        try:
            if (
                type(value) is float
                and value - value == 0.0  # neither NaN nor infinite
                and kind == POINT
                and not attrs
                and type(name) is str
                and span_id
            ):
                put(MarkRow(mark_id, span_id, name, "float", value, NONE, time_ + ANCHOR, POINT))
                continue
            if span_id:
                put(mark_row(entry, mark_id, span_id))
                continue
        except Exception as error:
            record_error("record", error)
        change.marks_lost += 1
    return rows


def sort_marks(marks: list[MarkRow]) -> None:
    """Sort into canonical order, (ts_ns, id): by time alone if all times are distinct."""
    times = set(map(_time, marks))
    marks.sort(key=_time if len(times) == len(marks) else _order)
