"""Convert between batches and the platform's rows (TraceSpan, TraceMark, TraceSnapshot).

Source: Cirron's schemas page, "Platform wire schemas". The platform's tables have camelCase columns
of fixed types. Some data of a batch has no column (pid, the order of mark_ids, a snapshot's time,
unknown keys, …). An additional column, `extra`, contains the difference between the record decoded
from the columns and the original, as JSON text. So, for every batch,

    from_platform(to_platform(batch)) == batch

as JSON values. Columns contain only values that databases support: 64-bit integers, text without
NUL and without unpaired surrogates, JSON without NaN. For any other value, the column contains an
approximation or null, and `extra` contains the original. Store `extra` as text or `json`: `jsonb`
rejects escapes of NUL and of unpaired surrogates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....errors import InputError
from ...records import columns
from ...records.columns import (
    MAX_STRING_BYTES,
    PlatformRecords,
    TraceBatch,
    TraceMark,
    TraceSnapshot,
    TraceSpan,
    capped,
    clean,
    integer,
    number,
    plain_json,
    text,
)
from ...records.schema import LISTS
from ..residual import apply_diff, diff_of

_DEEP = "the batch is nested too deeply to be processed"


Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlatformContext:
    """Columns whose values are not in a batch, such as the owner of its records."""

    workspace_id: str = "default"
    run_id: str | None = None
    """The run; if None, each span's trace id is used, which is the id of its session."""
    pipeline_id: str | None = None
    deployment_id: str | None = None
    model_id: str | None = None
    trace_ids: Mapping[str, str] | Callable[[Record], str | None] = field(default_factory=dict)
    """The id of each span's root scope: a mapping by span id, or a function of the span.

    For a span that it does not cover, the trace id is the id of its topmost ancestor.
    """
    blob_uri: Callable[[Record], str | None] | None = None
    """Returns the location of a snapshot's uploaded blob; if None, the recorded location stays."""


_DEFAULT = PlatformContext()


def to_platform(batch: Any, context: PlatformContext = _DEFAULT) -> PlatformRecords:
    """Convert a batch, a value from `exactjson.loads`, to the platform's rows.

    Raises InputError if the batch is nested too deeply to be compared.
    """
    try:
        header = _header_row(batch)
        whole = batch if isinstance(batch, dict) else {}
        marks = _list(whole, "marks")
        mark_ids = _mark_ids(marks)
        roots = _Roots(_list(whole, "spans"), context)
        return PlatformRecords(
            batch=header,
            spans=[_span_row(span, context, roots, mark_ids) for span in _list(whole, "spans")],
            marks=[_mark_row(mark) for mark in marks],
            snapshots=[_snapshot_row(each, context) for each in _list(whole, "snapshots")],
        )
    except RecursionError:
        raise InputError(_DEEP) from None


def from_platform(records: PlatformRecords) -> Any:
    """Return the batch from which the rows were made, as `exactjson.loads` would return it.

    Raises InputError if an `extra` is not valid.
    """
    try:
        marks = [apply_diff(_mark_of(row), row.extra or "") for row in records.marks]
        mark_ids = _mark_ids(marks)
        spans = [apply_diff(_span_of(row, mark_ids), row.extra or "") for row in records.spans]
        snapshots = [apply_diff(_snapshot_of(row), row.extra or "") for row in records.snapshots]
        batch = columns.BATCH.record(records.batch, spans=spans, marks=marks, snapshots=snapshots)
        return apply_diff(batch, records.batch.extra or "")
    except RecursionError:
        raise InputError(_DEEP) from None


# --- conversion of records to rows and back -----------------------------------------------------


def _header_row(batch: Any) -> TraceBatch:
    truth = batch if isinstance(batch, dict) else {}
    row: TraceBatch = columns.BATCH.row(truth.get)
    # Lists are restored from their rows.
    lists = {key for key in LISTS if isinstance(truth.get(key), list)}
    others = {key: value for key, value in truth.items() if key not in lists}
    decoded = columns.BATCH.record(row, spans=[], marks=[], snapshots=[])
    for key in lists:
        del decoded[key]
    row.extra = diff_of(others if isinstance(batch, dict) else batch, decoded) or None
    return row


def _span_row(
    record: Any, context: PlatformContext, roots: _Roots, mark_ids: dict[str, list[Any]]
) -> TraceSpan:
    span = record if isinstance(record, dict) else {}
    trace_id = roots.of(span)
    row: TraceSpan = columns.SPAN.row(
        span.get,
        trace_id=trace_id,
        workspace_id=context.workspace_id,
        pipeline_id=context.pipeline_id,
        run_id=context.run_id if context.run_id is not None else trace_id,
        deployment_id=context.deployment_id,
        model_id=context.model_id,
    )
    row.extra = diff_of(record, _span_of(row, mark_ids)) or None
    return row


def _span_of(row: TraceSpan, mark_ids: dict[str, list[Any]]) -> dict[str, Any]:
    return columns.SPAN.record(
        row,
        attrs=row.attrs if row.attrs is not None else {},
        mark_ids=list(mark_ids.get(row.id, ())),
    )


def _mark_row(record: Any) -> TraceMark:
    mark = record if isinstance(record, dict) else {}
    value, value_type = mark.get("value"), text(mark.get("value_type"))
    row: TraceMark = columns.MARK.row(
        mark.get,
        value_float=number(value) if value_type == "float" else None,
        value_int=integer(value, 64) if value_type == "int" else None,
        value_string=capped(value, MAX_STRING_BYTES) if value_type == "string" else None,
        value_bool=value if value_type == "bool" and isinstance(value, bool) else None,
    )
    if "kind" not in mark:
        row.kind = "point"
    row.extra = diff_of(record, _mark_of(row)) or None
    return row


def _mark_of(row: TraceMark) -> dict[str, Any]:
    values = {
        "float": row.value_float,
        "int": row.value_int,
        "string": row.value_string,
        "bool": row.value_bool,
    }
    return columns.MARK.record(
        row,
        value=values.get(row.value_type),
        attrs=row.attrs if row.attrs is not None else {},
    )


def _snapshot_row(record: Any, context: PlatformContext) -> TraceSnapshot:
    snapshot = record if isinstance(record, dict) else {}
    shape = snapshot.get("shape")
    row: TraceSnapshot = columns.SNAPSHOT.row(snapshot.get)
    row.shape = plain_json(shape) if isinstance(shape, list) else []
    if context.blob_uri is not None and row.blob_uri is not None:
        row.blob_uri = context.blob_uri(snapshot)
    row.extra = diff_of(record, _snapshot_of(row)) or None
    return row


def _snapshot_of(row: TraceSnapshot) -> dict[str, Any]:
    """Decode a snapshot's row. The record lacks `ts_ns`, which has no column."""
    record = columns.SNAPSHOT.record(row, attrs={})
    del record["ts_ns"]
    return record


# --- data that depends on the complete batch ----------------------------------------------------


def _list(batch: Record, key: str) -> list[Any]:
    value = batch.get(key)
    return value if isinstance(value, list) else []


def _mark_ids(marks: list[Any]) -> dict[str, list[Any]]:
    """Return the ids of the marks of each span, in the order of the marks."""
    ids_by_span: dict[str, list[Any]] = {}
    for mark in marks:
        owner = mark.get("span_id") if isinstance(mark, dict) else None
        if isinstance(owner, str) and "id" in mark:
            ids_by_span.setdefault(owner, []).append(mark["id"])
    return ids_by_span


class _Roots:
    """The trace id of each span: from the context, or else the id of its topmost ancestor."""

    def __init__(self, spans: list[Any], context: PlatformContext) -> None:
        self._given = context.trace_ids
        self._parents: dict[str, str | None] = {}
        for span in spans:
            if isinstance(span, dict) and isinstance(span.get("id"), str):
                parent = span.get("parent_id")
                self._parents[span["id"]] = parent if isinstance(parent, str) else None

    def of(self, span: Record) -> str:
        root_id = (
            self._given(span) if callable(self._given) else self._given.get(text(span.get("id")))
        )
        return clean(root_id) if root_id is not None else self._topmost(span)

    def _topmost(self, span: Record) -> str:
        seen: set[str] = set()
        topmost = text(span.get("id"))
        parent = span.get("parent_id")
        while isinstance(parent, str) and parent not in seen:
            seen.add(parent)
            topmost, parent = parent, self._parents.get(parent)
        return clean(topmost)
