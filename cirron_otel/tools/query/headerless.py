"""Add headers to Cirron's spans if the storage dropped the attributes of instrumentation scopes.

Jaeger with Badger stores spans in a model without scope attributes, and so loses the headers of
batches (docs/otlp-mapping.md, "Scope: the batch's header"). Only the records remain. They
are returned in one batch for each trace and process, so that a run can be analysed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from ... import semconv as sc
from ...core.records.schema import SCHEMA_VERSION
from ...core.translator.events import MARK, SNAPSHOT, kind_of
from ...core.translator.header import Counts, Header, write_scope
from ...core.translator.own.synthetic import is_synthetic
from ...core.translator.values import write_value
from ...ids import digest, is_id, uuid4_shaped
from .backend_fixups import residual_attributes
from .chain import session_of

_LISTS = frozenset(
    sc.SNAPSHOT_PREFIX + name for name in ("shape", "histogram.bins", "histogram.counts")
)


def restore_headers(traces: TracesData, trace_id: bytes) -> int:
    """Group Cirron's spans without a header under new headers; return the number of these spans."""
    groups: dict[tuple[bytes, str], ResourceSpans] = {}
    moved = 0
    for group in list(traces.resource_spans):
        for scoped in list(group.scope_spans):
            if not _is_bare(scoped):
                continue
            resource = _ordered(group.resource)
            key = (resource.SerializeToString(), scoped.scope.version)
            target = groups.get(key)
            if target is None:
                target = groups[key] = ResourceSpans(resource=resource)
                target.scope_spans.add().scope.CopyFrom(scoped.scope)
            target.scope_spans[0].spans.extend(scoped.spans)
            moved += len(scoped.spans)
            group.scope_spans.remove(scoped)
        if not group.scope_spans:
            traces.resource_spans.remove(group)
    for group in groups.values():
        _give_header(group, trace_id)
        traces.resource_spans.append(group)
    return moved


def _is_bare(scoped: ScopeSpans) -> bool:
    """Return whether an instrumentation scope is Cirron's, by its name and spans, but lacks
    attributes.
    """
    scope = scoped.scope
    if scope.name != sc.SCOPE_NAME or not scope.version or scope.attributes:
        return False
    return all(
        any(pair.key.startswith(sc.RESERVED_PREFIX) or pair.key == sc.THREAD_ID for pair in pairs)
        for pairs in (span.attributes for span in scoped.spans)
    )


def _ordered(resource: Resource) -> Resource:
    """Return the resource with its attributes sorted by key, because storages reorder them."""
    pairs = sorted(resource.attributes, key=lambda pair: pair.key)
    return Resource(attributes=pairs)


def _give_header(group: ResourceSpans, trace_id: bytes) -> None:
    scoped = group.scope_spans[0]
    spans = [span for span in _once(scoped.spans) if span.name != sc.BATCH_SPAN]
    for span in spans:
        _restore(span)
    session = session_of(group)
    parts = (trace_id, group.resource.SerializeToString(deterministic=True), scoped.scope.version)
    header = Header(
        sdk_version=scoped.scope.version,
        batch_id=uuid4_shaped(digest("query", *parts)),
        created_ns=min(max((span.end_time_unix_nano for span in spans), default=0), 2**63 - 1),
        schema_version=SCHEMA_VERSION,
        counts=_counts(spans),
        session=session if is_id(session) else None,
        trace_id=trace_id,
    )
    carriers = [span for span in spans if is_synthetic(span) and span.name == sc.MARKS_SPAN]
    carriers.sort(key=lambda span: (span.start_time_unix_nano, span.span_id))
    for number, span in enumerate(carriers):
        span.span_id = digest(header.key, "carrier", number)[:8]
        for pair in span.attributes:
            if pair.key == sc.SEQ:
                pair.value.int_value = number
    del scoped.spans[:]
    scoped.spans.extend(spans)
    write_scope(scoped.scope, header)


def _once(spans: Iterable[Span]) -> list[Span]:
    """Return the spans without duplicates."""
    return list({(span.span_id, span.name, span.kind): span for span in spans}.values())


def _counts(spans: list[Span]) -> Counts:
    marks = snapshots = synthetic = 0
    for span in spans:
        synthetic += is_synthetic(span)
        marks += any(pair.key == sc.OVERHEAD_NS for pair in span.attributes)
        kinds = [kind_of(event) for event in span.events]
        marks += kinds.count(MARK)
        snapshots += kinds.count(SNAPSHOT)
    return Counts(len(spans) - synthetic, marks, snapshots, synthetic)


def _restore(span: Span) -> None:
    """Restore lists and maps, which Jaeger stored as JSON text, as far as possible."""
    for owner in (span, *span.events):
        _restore_told(owner)
    for event in span.events:
        for pair in event.attributes:
            if pair.key in _LISTS and pair.value.WhichOneof("value") == "string_value":
                _restore_list(pair)


def _restore_told(owner: Any) -> None:
    originals = residual_attributes(owner.attributes)
    for pair in owner.attributes:
        key = pair.key.removeprefix(sc.ESCAPE)
        if key in originals:
            pair.value.Clear()
            write_value(pair.value, originals[key])


def _restore_list(pair: Any) -> None:
    try:
        values = json.loads(pair.value.string_value)
    except (ValueError, RecursionError):
        return
    if isinstance(values, list):
        if pair.key.endswith("bins"):
            values = [float(each) if type(each) is int else each for each in values]
        pair.value.Clear()
        write_value(pair.value, values)
