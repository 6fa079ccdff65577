"""Synthetic spans: carriers, links between segments, and markers of open scopes.

Carriers contain the events, and the residual, that no other span of the batch contains. All
synthetic spans have `cirron.synthetic = true`. The decoder keeps their content and drops the spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import semconv as sc
from ....ids import derive_id, digest, span_id_for
from ...placement.batch_placement import Plan, Running, Segment
from .. import events as ev
from .. import residual as residuals
from ..canonical_form import same_span
from ..events import Record
from ..foreign.otel_view import KIND_INTERNAL
from ..header import Header
from ..values import UnencodableError, add, encodable, read_typed, split_attributes
from .spans import natural_parent

_LAST = (2**63 - 1, 2**64 - 1)
"""The latest times in ns that backends with signed times, and OTLP, can represent.

A span cannot end after them.
"""


@dataclass(slots=True)
class Carrier:
    """A span `cirron.marks`, with marks and snapshots, or `cirron.batch`, with the residual."""

    ordinal: int
    """The position of this carrier among the carriers of its batch."""
    trace_id: bytes
    parent: bytes = b""
    span_id: object = None
    """The Cirron id of the scope that its events belong to."""
    marks: list[tuple[Record, int | None]] = field(default_factory=list)
    snapshots: list[tuple[Record, int | None]] = field(default_factory=list)
    residual: str | None = None
    """The header's residual; None on a carrier of events."""
    start_ns: int = 0
    end_ns: int = 0
    mark_ids: list[Any] = field(default_factory=list)
    """The ids of all marks on a decoded carrier."""
    dropped: list[str] = field(default_factory=list)
    """The keys of added attributes that the records cannot keep, as in `SpanSet.dropped`."""


def carried_ids(carriers: Iterable[Carrier]) -> dict[object, list[Any]]:
    """Collect the ids of marks on decoded carriers, in the order of the carriers' ordinals.

    Each list has two keys: the scope's Cirron id, and its span id in case the id is not encodable.
    """
    ids: dict[object, list[Any]] = {}
    for carrier in sorted(carriers, key=lambda carrier: carrier.ordinal):
        for key in (carrier.span_id, carrier.parent):
            ids.setdefault(key, []).extend(carrier.mark_ids)
    return ids


def residual_carrier(ordinal: int, trace_id: bytes, residual: str, created_ns: object) -> Carrier:
    """Return the carrier of a header's residual, with the creation time of the batch.

    Without a time, backends would show its trace as starting in 1970.
    """
    when = created_ns if isinstance(created_ns, int) and 0 <= created_ns < 2**63 else 0
    return Carrier(ordinal, trace_id, residual=residual, start_ns=when, end_ns=when)


def write_carrier(span: Span, carrier: Carrier, header: Header) -> None:
    """Write a carrier as a span."""
    _start(span, sc.MARKS_SPAN if carrier.residual is None else sc.BATCH_SPAN, carrier.trace_id)
    span.span_id = digest(header.key, "carrier", carrier.ordinal)[:8]
    span.parent_span_id = carrier.parent
    _write_times(span, carrier.start_ns, carrier.end_ns)
    add(span.attributes, sc.SEQ, carrier.ordinal)
    if carrier.residual is not None:
        residuals.write(span.attributes, sc.REST, carrier.residual)
        return
    stated = carrier.span_id
    if not isinstance(stated, str) or not encodable(stated):
        stated = None
    elif stated != _derived(span):
        add(span.attributes, sc.CARRIER_SPAN_ID, stated)
    span_id = _derived(span) if stated is None else stated
    for mark, seq in carrier.marks:
        ev.write_mark(span.events.add(), mark, span_id, seq)
    for snapshot, seq in carrier.snapshots:
        ev.write_snapshot(span.events.add(), snapshot, span_id, seq)


def _start(span: Span, name: str, trace_id: bytes) -> None:
    span.trace_id = trace_id
    span.name = name
    span.kind = KIND_INTERNAL
    add(span.attributes, sc.SYNTHETIC, True)


def _write_times(span: Span, start_ns: int, end_ns: int) -> None:
    """Write the times of a synthetic span. If it has no duration, it ends 1 ns after its start.

    Jaeger 2.13 treats a span without a duration as broken: it changes the end time, and adds a
    warning to the span's attributes (internal/jptrace/sanitizer/negative_duration_santizer.go).
    """
    span.start_time_unix_nano = start_ns
    if end_ns == start_ns and end_ns not in _LAST:
        end_ns += 1
    span.end_time_unix_nano = end_ns


def _derived(span: Span) -> str | None:
    return derive_id(span.parent_span_id, span.trace_id) if span.parent_span_id else None


def is_synthetic(span: Span) -> bool:
    """Return whether a span is marked as synthetic."""
    return any(pair.key == sc.SYNTHETIC and pair.value.bool_value for pair in span.attributes)


def read_synthetic(span: Span, header: Header) -> Carrier | None:
    """Decode a synthetic span; return its carrier, or None for a segment link or a marker.

    Raises UnencodableError if encoding the result again does not produce the same span.
    """
    again = Span()
    ours, users = split_attributes(span.attributes)
    ordinal = read_typed(ours, sc.SEQ, "int_value")
    if span.name in (sc.MARKS_SPAN, sc.BATCH_SPAN) and ordinal is not None and not users:
        carrier = _read_carrier(span, ours, ordinal)
        write_carrier(again, carrier, header)
    elif span.name == sc.RUNNING_SPAN:
        carrier = None
        _copy_running(again, span, ours)
    else:
        carrier = None
        _copy_link_span(again, span, read_typed(ours, sc.INDEX, "int_value"))
    if not same_span(again, span):
        raise UnencodableError("not written by this encoder")
    return carrier


def _read_carrier(span: Span, ours: dict[str, Any], ordinal: int) -> Carrier:
    carrier = Carrier(
        ordinal,
        span.trace_id,
        span.parent_span_id,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
    )
    if span.name == sc.BATCH_SPAN:
        carrier.residual = residuals.joined(ours, sc.REST)
        residuals.parse(carrier.residual, of_batch=True)
        return carrier
    stated = read_typed(ours, sc.CARRIER_SPAN_ID, "string_value")
    carrier.span_id = span_id = _derived(span) if stated is None else stated
    for event in span.events:
        kind = ev.kind_of(event)
        if kind == ev.MARK:
            carrier.marks.append(ev.read_mark(event, span_id))
        elif kind == ev.SNAPSHOT:
            carrier.snapshots.append(ev.read_snapshot(event, span_id))
        else:
            raise UnencodableError("a foreign event on a carrier")
    carrier.mark_ids = [mark.get("id") for mark, _ in carrier.marks]
    return carrier


def segment_links_of(
    session: str, session_trace: bytes, segment: Segment, parent_place_trace: bytes
) -> list[Span]:
    """Return the synthetic spans that link a segment to its session.

    The segment's trace gets a root span that represents the session. If the scope that opened the
    segment has a parent other than the session, in an earlier trace, a span below the root
    represents this parent. Both spans have the span id of the scope that they represent. The
    session's first trace gets a marker that links to the segment.
    """
    root = span_id_for(session)
    when = segment.start_ns if 0 <= segment.start_ns < 2**64 else 0
    spans = []
    links = [session_trace]
    if segment.previous_trace_id != session_trace:
        links.append(segment.previous_trace_id)
    spans.append(
        _link_span(sc.CONTINUATION_SPAN, segment.trace_id, root, b"", when, segment.number)
    )
    for trace_id in links:
        spans[0].links.add(trace_id=trace_id, span_id=root)
    parent = segment.parent_id
    if parent is not None and parent != session and parent_place_trace != segment.trace_id:
        parent_span_id = span_id_for(parent)
        link_span = _link_span(
            sc.CONTINUATION_SPAN, segment.trace_id, parent_span_id, root, when, segment.number
        )
        link_span.links.add(trace_id=parent_place_trace, span_id=parent_span_id)
        spans.append(link_span)
    marker_id = digest(sc.SEGMENT_SPAN, segment.trace_id)[:8]
    marker = _link_span(sc.SEGMENT_SPAN, session_trace, marker_id, root, when, segment.number)
    marker.links.add(trace_id=segment.trace_id, span_id=root)
    spans.append(marker)
    return once(spans)


def _link_span(
    name: str, trace_id: bytes, span_id: bytes, parent: bytes, when: int, number: int
) -> Span:
    span = Span()
    _start(span, name, trace_id)
    span.span_id = span_id
    span.parent_span_id = parent
    _write_times(span, when, when)
    add(span.attributes, sc.INDEX, number)
    return span


def link_span_of(
    name: str,
    trace_id: bytes,
    span_id: bytes,
    parent: bytes,
    when: int,
    number: int,
    links: Iterable[Sequence[bytes]],
) -> Span:
    """Build a segment link; each link is a pair of trace id and span id."""
    span = _link_span(name, trace_id, span_id, parent, when, number)
    for link_trace, link_span in links:
        span.links.add(trace_id=link_trace, span_id=link_span)
    return span


def stated_links(plan: Plan, *, one_trace: bool) -> list[Span]:
    """Return the segment links and markers that the batch itself describes.

    The list contains no duplicates; it is empty if the batch does not name its session. With
    `one_trace` (the layout `session`) there are no segment links, and the markers are in the
    session's trace.
    """
    if plan.stated is None:
        return []
    first = plan.session_trace(plan.default)
    spans = []
    for opened in () if one_trace else plan.stated.opened:
        spans += segment_links_of(plan.default, first, opened.segment, opened.parent_trace_id)
    for scope in plan.stated.running:
        spans.append(_running(scope, first if one_trace else scope.trace_id))
    return once(spans)


def once(spans: list[Span]) -> list[Span]:
    """Keep only the first span of each pair of trace id and span id.

    The header's counts must not include duplicates, since a decoder counts them once.
    """
    first = {(span.trace_id, span.span_id): span for span in reversed(spans)}
    return list(first.values())[::-1]


def _running(scope: Running, trace_id: bytes) -> Span:
    """Return the marker that shows an open scope before it ends.

    If the scope has no parent, the marker is a child of the scope itself. As a second root span, it
    would represent the trace in lists of traces.
    """
    span = Span()
    _start(span, sc.RUNNING_SPAN, trace_id)
    span.span_id = digest(sc.RUNNING_SPAN, scope.id)[:8]
    span.parent_span_id = natural_parent(scope.parent_id) or natural_parent(scope.id)
    _write_times(span, scope.start_ns, scope.start_ns)
    add(span.attributes, sc.CARRIER_SPAN_ID, scope.id)
    add(span.attributes, sc.RUNNING_NAME, scope.name)
    if scope.number is not None:
        add(span.attributes, sc.INDEX, scope.number)
    return span


def marker_of(scope: Running, parent: bytes) -> Span:
    """Build the marker of an open scope, as a child of the span `parent`."""
    span = _running(scope, scope.trace_id)
    span.parent_span_id = parent
    return span


def _copy_running(again: Span, span: Span, ours: dict[str, Any]) -> None:
    """Rebuild a marker from the content of `span` into `again`.

    The result differs from `span` if `span` is not a marker that this package wrote.
    """
    scope_id = read_typed(ours, sc.CARRIER_SPAN_ID, "string_value")
    name = read_typed(ours, sc.RUNNING_NAME, "string_value")
    if scope_id is None or name is None:
        raise UnencodableError("not a marker")
    index, when = read_typed(ours, sc.INDEX, "int_value"), span.start_time_unix_nano
    scope = Running(scope_id, name, index, when, None, span.trace_id)
    again.CopyFrom(marker_of(scope, span.parent_span_id))


def _copy_link_span(again: Span, span: Span, number: int | None) -> None:
    """Rebuild a segment link from the content of `span` into `again`.

    The result differs from `span` if `span` is not a segment link that this package wrote.
    """
    if span.name not in (sc.CONTINUATION_SPAN, sc.SEGMENT_SPAN) or number is None:
        raise UnencodableError("not a segment link")
    when = span.start_time_unix_nano
    links = [(link.trace_id, link.span_id) for link in span.links]
    ids = (span.trace_id, span.span_id, span.parent_span_id)
    again.CopyFrom(link_span_of(span.name, *ids, when, number, links))
