"""The platform's records, TraceSpan, TraceMark and TraceSnapshot, ↔ batches of the wire schema.

Source: Cirron's schemas page, "Platform wire schemas". The tables have camelCase columns of fixed
types and lack some of what the wire says (pid, the order of mark_ids, a snapshot's time, unknown
keys, …). What the columns do not give back is kept in one more, `extra`: the difference between
what decoding the columns gives and the truth, as JSON text. So

    from_platform(to_platform(batch)) == batch

as JSON values, for every batch. Columns hold what databases hold: integers of 64 bits, text without
NUL and half surrogates, JSON without NaN; for what they cannot hold they say something close to
it, or null, and `extra` has the truth. Store `extra` as text or `json`: `jsonb` refuses escapes of
NUL and of half surrogates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from ..errors import InputError
from .columns import (
    capped,
    clean,
    integer,
    json_object,
    nullable_text,
    number,
    plain_json,
    text,
)
from .patch import patch_of, patched

MAX_STRING_BYTES = 256
"""Of a mark's value, in UTF-8: the cap of the column valueString."""
LISTS = ("spans", "marks", "snapshots")
_DEEP = "batch nested too deep: more levels than can be handled"


class TraceSpan(Struct, rename="camel", kw_only=True):
    """One closed scope. Times are wall-clock nanoseconds since the Unix epoch."""

    id: str
    trace_id: str
    """The root scope's id of the process session it belongs to."""
    parent_span_id: str | None
    """None for the root."""
    name: str
    index: int | None
    """The epoch's or the step's number."""
    attrs: Any | None
    start_ns: int
    end_ns: int
    cpu_ns: int | None
    gpu_ns: int | None
    """None where CUDA is not available."""
    memory_peak_bytes: int | None
    thread_id: int | None
    rank: int = 0
    workspace_id: str
    pipeline_id: str | None
    run_id: str
    deployment_id: str | None
    """Of inference."""
    model_id: str | None
    extra: str | None = None
    """What the wire says and no column holds: JSON text."""


class TraceMark(Struct, rename="camel", kw_only=True):
    """A named value; of the four value columns the one is set that value_type says."""

    id: str
    span_id: str
    name: str
    value_type: str
    value_float: float | None
    value_int: int | None
    value_string: str | None
    """At most 256 bytes of UTF-8."""
    value_bool: bool | None
    attrs: Any | None
    ts_ns: int
    kind: str = "point"
    extra: str | None = None


class TraceSnapshot(Struct, rename="camel", kw_only=True):
    """Statistics of one tensor, and where its values are stored, if they are."""

    id: str
    span_id: str
    tensor_name: str
    shape: Any
    dtype: str
    mode: str
    stats: Any | None
    blob_uri: str | None
    """The uploaded blob (`s3://…`) where the context says so; `extra` keeps the recorded one."""
    extra: str | None = None


class TraceBatch(Struct, rename="camel", kw_only=True):
    """The header of the batch that the records came in; the platform has no table for it."""

    schema_version: int
    sdk_version: str
    batch_id: str
    created_ns: int
    extra: str | None = None


class PlatformRecords(Struct, kw_only=True):
    """The records of one batch, each list in the batch's order, which decoding relies on."""

    batch: TraceBatch
    spans: list[TraceSpan]
    marks: list[TraceMark]
    snapshots: list[TraceSnapshot]


Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlatformContext:
    """What the wire does not say: whose records these are."""

    workspace_id: str = "default"
    run_id: str | None = None
    """None for the id of the session: the trace id of each span."""
    pipeline_id: str | None = None
    deployment_id: str | None = None
    model_id: str | None = None
    trace_ids: Mapping[str, str] | Callable[[Record], str | None] = field(default_factory=dict)
    """The root scope's id for a span: by the span's id, or a function of the span. Where it gives
    none, it is the topmost parent that the batch itself knows of."""
    blob_uri: Callable[[Record], str | None] | None = None
    """Where a snapshot's blob lies after its upload; None for where the wire says."""


_DEFAULT = PlatformContext()


def to_platform(batch: Any, context: PlatformContext = _DEFAULT) -> PlatformRecords:
    """The platform's records of a batch, as `exactjson.loads` gives it.

    Raises InputError where the batch is nested too deep to be compared.
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
    """The batch that the records came from, as `exactjson.loads` would give it.

    Raises InputError where an `extra` is none.
    """
    try:
        marks = [patched(_mark_of(row), row.extra or "") for row in records.marks]
        mark_ids = _mark_ids(marks)
        spans = [patched(_span_of(row, mark_ids), row.extra or "") for row in records.spans]
        snapshots = [patched(_snapshot_of(row), row.extra or "") for row in records.snapshots]
        batch = _header_of(records.batch)
        batch |= {"spans": spans, "marks": marks, "snapshots": snapshots}
        return patched(batch, records.batch.extra or "")
    except RecursionError:
        raise InputError(_DEEP) from None


# --- rows of wire records, and wire records of rows ---------------------------------------------


def _header_row(batch: Any) -> TraceBatch:
    truth = batch if isinstance(batch, dict) else {}
    row = TraceBatch(
        schema_version=integer(truth.get("schema_version"), 32) or 0,
        sdk_version=text(truth.get("sdk_version")),
        batch_id=text(truth.get("batch_id")),
        created_ns=integer(truth.get("created_ns"), 64) or 0,
    )
    # What is a list comes back from its rows.
    lists = {key for key in LISTS if isinstance(truth.get(key), list)}
    others = {key: value for key, value in truth.items() if key not in lists}
    decoded = _header_of(row) | {key: [] for key in LISTS if key not in lists}
    row.extra = patch_of(others if isinstance(batch, dict) else batch, decoded) or None
    return row


def _header_of(row: TraceBatch) -> dict[str, Any]:
    return {
        "schema_version": row.schema_version,
        "sdk_version": row.sdk_version,
        "batch_id": row.batch_id,
        "created_ns": row.created_ns,
    }


def _span_row(
    record: Any, context: PlatformContext, roots: _Roots, mark_ids: dict[str, list[Any]]
) -> TraceSpan:
    span = record if isinstance(record, dict) else {}
    trace_id = roots.of(span)
    row = TraceSpan(
        id=text(span.get("id")),
        trace_id=trace_id,
        parent_span_id=nullable_text(span.get("parent_id")),
        name=text(span.get("name")),
        index=integer(span.get("index"), 32),
        attrs=json_object(span.get("attrs")),
        start_ns=integer(span.get("start_ns"), 64) or 0,
        end_ns=integer(span.get("end_ns"), 64) or 0,
        cpu_ns=integer(span.get("cpu_ns"), 64),
        gpu_ns=integer(span.get("gpu_ns"), 64),
        memory_peak_bytes=integer(span.get("memory_peak_bytes"), 64),
        thread_id=integer(span.get("thread_id"), 64),
        rank=integer(span.get("rank"), 32) or 0,
        workspace_id=context.workspace_id,
        pipeline_id=context.pipeline_id,
        run_id=context.run_id if context.run_id is not None else trace_id,
        deployment_id=context.deployment_id,
        model_id=context.model_id,
    )
    row.extra = patch_of(record, _span_of(row, mark_ids)) or None
    return row


def _span_of(row: TraceSpan, mark_ids: dict[str, list[Any]]) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "parent_id": row.parent_span_id,
        "index": row.index,
        "start_ns": row.start_ns,
        "end_ns": row.end_ns,
        "cpu_ns": row.cpu_ns,
        "gpu_ns": row.gpu_ns,
        "memory_peak_bytes": row.memory_peak_bytes,
        "thread_id": row.thread_id,
        "pid": None,
        "rank": row.rank,
        "attrs": row.attrs if row.attrs is not None else {},
        "mark_ids": list(mark_ids.get(row.id, ())),
    }


def _mark_row(record: Any) -> TraceMark:
    mark = record if isinstance(record, dict) else {}
    value, value_type = mark.get("value"), text(mark.get("value_type"))
    row = TraceMark(
        id=text(mark.get("id")),
        span_id=text(mark.get("span_id")),
        name=text(mark.get("name")),
        value_type=value_type,
        value_float=number(value) if value_type == "float" else None,
        value_int=integer(value, 64) if value_type == "int" else None,
        value_string=capped(value, MAX_STRING_BYTES) if value_type == "string" else None,
        value_bool=value if value_type == "bool" and isinstance(value, bool) else None,
        attrs=json_object(mark.get("attrs")),
        ts_ns=integer(mark.get("ts_ns"), 64) or 0,
        kind=text(mark.get("kind", "point")),
    )
    row.extra = patch_of(record, _mark_of(row)) or None
    return row


def _mark_of(row: TraceMark) -> dict[str, Any]:
    values = {
        "float": row.value_float,
        "int": row.value_int,
        "string": row.value_string,
        "bool": row.value_bool,
    }
    return {
        "id": row.id,
        "span_id": row.span_id,
        "name": row.name,
        "value_type": row.value_type,
        "value": values.get(row.value_type),
        "attrs": row.attrs if row.attrs is not None else {},
        "ts_ns": row.ts_ns,
        "kind": row.kind,
    }


def _snapshot_row(record: Any, context: PlatformContext) -> TraceSnapshot:
    snapshot = record if isinstance(record, dict) else {}
    uri = nullable_text(snapshot.get("blob_uri"))
    if context.blob_uri is not None and uri is not None:
        uri = context.blob_uri(snapshot)
    shape = snapshot.get("shape")
    row = TraceSnapshot(
        id=text(snapshot.get("id")),
        span_id=text(snapshot.get("span_id")),
        tensor_name=text(snapshot.get("tensor_name")),
        shape=plain_json(shape) if isinstance(shape, list) else [],
        dtype=text(snapshot.get("dtype")),
        mode=text(snapshot.get("mode")),
        stats=json_object(snapshot.get("stats")),
        blob_uri=uri,
    )
    row.extra = patch_of(record, _snapshot_of(row)) or None
    return row


def _snapshot_of(row: TraceSnapshot) -> dict[str, Any]:
    """Without ts_ns and attrs: the table has neither."""
    return {
        "id": row.id,
        "span_id": row.span_id,
        "tensor_name": row.tensor_name,
        "shape": row.shape,
        "dtype": row.dtype,
        "mode": row.mode,
        "stats": row.stats,
        "blob_uri": row.blob_uri,
        "attrs": {},
    }


# --- what follows from the batch as a whole -----------------------------------------------------


def _list(batch: Record, key: str) -> list[Any]:
    value = batch.get(key)
    return value if isinstance(value, list) else []


def _mark_ids(marks: list[Any]) -> dict[str, list[Any]]:
    """The ids of the marks of each span, in the order of the marks."""
    found: dict[str, list[Any]] = {}
    for mark in marks:
        owner = mark.get("span_id") if isinstance(mark, dict) else None
        if isinstance(owner, str) and "id" in mark:
            found.setdefault(owner, []).append(mark["id"])
    return found


class _Roots:
    """The trace id of each span: what the context says, else the topmost parent known here."""

    def __init__(self, spans: list[Any], context: PlatformContext) -> None:
        self._given = context.trace_ids
        self._parents: dict[str, str | None] = {}
        for span in spans:
            if isinstance(span, dict) and isinstance(span.get("id"), str):
                parent = span.get("parent_id")
                self._parents[span["id"]] = parent if isinstance(parent, str) else None

    def of(self, span: Record) -> str:
        given = (
            self._given(span) if callable(self._given) else self._given.get(text(span.get("id")))
        )
        return clean(given) if given is not None else self._topmost(span)

    def _topmost(self, span: Record) -> str:
        seen: set[str] = set()
        top = text(span.get("id"))
        parent = span.get("parent_id")
        while isinstance(parent, str) and parent not in seen:
            seen.add(parent)
            top, parent = parent, self._parents.get(parent)
        return clean(top)
