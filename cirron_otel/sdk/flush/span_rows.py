"""Convert scopes and marks to records, on the flush thread."""

from __future__ import annotations

import math
from operator import index as as_index
from typing import Any

from msgspec import UNSET, Raw
from opentelemetry.sdk.trace import Event
from opentelemetry.trace import Link, SpanContext, SpanKind
from opentelemetry.trace.status import Status, StatusCode

from ...ids import INT64_LIMIT
from ..session.errors import record_error
from ..tracing.buffers import MarkEntry
from ..tracing.clock import ANCHOR
from ..tracing.coerce import Deferred
from ..tracing.mark import POINT, SUMMARY
from ..tracing.scope import NO_SESSION, Scope
from ..tracing.span_extras import SpanExtras
from ..tracing.traces import Trace
from .json_attributes import MAX_INTEGER_BITS, plain_attributes, text_of
from .rows import MarkRow, SpanRow

UNATTRIBUTED = "unattributed_ns"
_KNOWN = 0x100


def recorded_above(scope: Any) -> Any:
    """Return the nearest recorded ancestor of a scope; NO_SESSION if there is none."""
    parent = scope._above
    while not parent._id and parent is not NO_SESSION:
        parent = parent._above
    return parent


def parent_id_of(scope: Scope) -> str | None:
    """Return the Cirron id of the nearest recorded ancestor of a scope."""
    parent = scope._above if scope._above._id else recorded_above(scope)
    return f"{parent._id:016x}{parent._trace.low}" if parent._id else None


def attributes_of(scope: Any) -> dict[str, Any] | None:
    """Return the `attrs` of a scope's record."""
    attrs: dict[str, Any] | None = scope._attrs
    if scope._rest is not None:
        attrs = {**(attrs or {}), UNATTRIBUTED: scope._rest}
    return attrs


def span_row(
    scope: Scope, pid: int, rank: int | None, default_trace: Any, marks: list[str]
) -> SpanRow:
    """Return the record of a scope; `end_ns` is 0 while the scope is open."""
    extras = scope._extras
    trace = scope._trace
    attrs = attributes_of(scope)
    end = scope._end
    row = SpanRow(
        f"{scope._id:016x}{trace.low}",
        scope._name if type(scope._name) is str else text_of(scope._name),
        parent_id_of(scope),
        scope._index,
        scope._start + ANCHOR,
        end + ANCHOR if end else 0,
        None,
        None,
        None,
        scope._thread,
        pid,
        rank,
        plain_attributes(attrs) if attrs else {},
        marks,
    )
    index = row.index
    if index is not None and (type(index) is not int or not -INT64_LIMIT <= index < INT64_LIMIT):
        _odd_index(row)
    if extras is not None:
        row.cpu_ns, row.gpu_ns = extras.cpu_ns, extras.gpu_ns
        row.memory_peak_bytes = extras.memory_peak_bytes
    if extras is not None:
        row.otel = _otel(extras, trace, row.parent_id, default_trace) or UNSET
    elif trace is not default_trace:
        row.otel = trace_otel(trace, default_trace) or UNSET
    return row


def _odd_index(row: SpanRow) -> None:
    """Convert the index to a 64-bit integer, or move it to the attributes if that is impossible."""
    odd: Any = row.index
    row.index = None
    try:
        index = as_index(odd)
    except Exception:
        index = INT64_LIMIT
    if -INT64_LIMIT <= index < INT64_LIMIT:
        row.index = index
    else:
        row.attrs = {**row.attrs, **plain_attributes({"index": odd}), **row.attrs}


def trace_otel(trace: Trace, default: Trace) -> dict[str, Any]:
    """Return the `otel` of a plain scope: its flags and trace id, if they are not the batch's."""
    otel: dict[str, Any] = {}
    if trace.is_sampled != default.is_sampled:
        otel["flags"] = flags_of(trace.is_sampled)
    if trace.trace_id != default.trace_id:
        otel["trace_id"] = trace.trace_id.hex()
    return otel


def _otel(
    extras: SpanExtras, trace: Trace, parent_id: str | None, default: Trace
) -> dict[str, Any]:
    """Return the `otel` of a scope, with the keys in the decoder's order."""
    otel = otel_fields(extras.kind, extras.status)
    if trace.is_sampled != default.is_sampled:
        otel["flags"] = flags_of(trace.is_sampled)
    if extras.links:
        otel["links"] = [link_record(link) for link in extras.links]
    if trace.trace_id != default.trace_id:
        otel["trace_id"] = trace.trace_id.hex()
    if extras.is_rooted:
        wire = f"{extras.otel_parent.span_id:016x}" if extras.otel_parent is not None else ""
        if wire != (parent_id or "")[:16]:
            otel["parent_span_id"] = wire
    if extras.events:
        otel["events"] = [event_record(event) for event in extras.events]
    return otel


def flags_of(is_sampled: bool) -> int:
    """Return the `otel.flags` of a span whose sampling differs from its batch's; bit 0: sampled."""
    return _KNOWN | is_sampled


def otel_fields(kind: SpanKind, status: Status) -> dict[str, Any]:
    """Return the kind and status fields of a span's `otel` object; defaults are omitted."""
    otel: dict[str, Any] = {}
    if kind is not SpanKind.INTERNAL:
        otel["kind"] = kind.value + 1
    if status.status_code is not StatusCode.UNSET:
        otel["status"] = {"code": 1 if status.status_code is StatusCode.OK else 2}
        if status.description:
            otel["status"]["message"] = text_of(status.description)
    return otel


def link_record(link: Link) -> dict[str, Any]:
    """Return a link as an entry of `otel.links`."""
    record = context_record(link.context)
    attributes = plain_attributes(link.attributes)
    return record | {"attributes": attributes} if attributes else record


def context_record(context: SpanContext) -> dict[str, Any]:
    """Return a span context as an entry of `otel.links`, without attributes."""
    record: dict[str, Any] = {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
    }
    if context.trace_state:
        record["trace_state"] = context.trace_state.to_header()
    if context.trace_flags:
        record["flags"] = int(context.trace_flags)
    return record


def event_record(event: Event) -> dict[str, Any]:
    """Return an event that is not a mark as an entry of `otel.events`."""
    record: dict[str, Any] = {"name": event.name, "time_ns": event.timestamp}
    attributes = plain_attributes(event.attributes)
    return record | {"attributes": attributes} if attributes else record


def is_encodable(value: Any) -> bool:
    """Return whether an int or a value on a device is a valid mark value; if not, log an error."""
    if type(value) is Deferred:
        try:
            value = value.value()
        except Exception as error:
            record_error("mark value", error)
            return False
    if type(value) is int and value.bit_length() > MAX_INTEGER_BITS:
        bits = value.bit_length()
        record_error("mark value", f"integer of {bits} bits: expected at most {MAX_INTEGER_BITS}")
        return False
    return True


def mark_row(entry: MarkEntry, mark_id: str, span_id: str) -> MarkRow:
    """Return the record of a mark whose value is encodable."""
    _, name, value, at, kind, attrs = entry
    if type(value) is Deferred:
        value = value.value()
    if type(kind) is not str or kind not in (POINT, SUMMARY):
        record_error("mark kind", f"{text_of(kind):.40}: expected point or summary; using point")
        kind = POINT
    row = MarkRow(
        mark_id, span_id, name if type(name) is str else text_of(name), "float", value,
        plain_attributes(attrs), at + ANCHOR, kind,
    )  # fmt: skip
    kind_of = type(value)
    if kind_of is float:
        if not math.isfinite(value):
            row.value = None
            row.value_nonfinite = "nan" if value != value else "inf" if value > 0 else "-inf"
    elif kind_of is bool:
        row.value_type = "bool"
    elif kind_of is int:
        row.value_type = "int"
        if not -INT64_LIMIT <= value < INT64_LIMIT:
            row.value = Raw(str(value).encode())
    else:
        row.value_type = "string"
    return row
