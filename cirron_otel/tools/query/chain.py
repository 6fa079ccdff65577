"""The references between the traces of a Cirron session, and their missing targets.

A long session is a chain of traces (docs/otlp-mapping.md, "Trace layouts"). Segment links connect
the traces, and the headers of batches contain their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, TracesData

from ... import semconv as sc
from ...core.translator.foreign.otel_view import unhex
from ...core.translator.header import Counts, Header, Origin, read_resource, read_scope
from ...core.translator.own.decode import assembly_key
from ...core.translator.own.synthetic import is_synthetic
from ...core.translator.residual import parse as parse_residual
from ...core.translator.values import UnencodableError
from ...ids import span_id_for, trace_id_for

SpanKey = tuple[bytes, bytes]
"""A trace id and a span id."""
_SEAMS = (sc.CONTINUATION_SPAN, sc.SEGMENT_SPAN)


@dataclass(slots=True)
class _Batch:
    """The part of a batch that has been received."""

    expected: Counts
    session: str | None
    service: str | None
    records: set[SpanKey] = field(default_factory=set)
    synthetic: set[SpanKey] = field(default_factory=set)

    def is_whole(self) -> bool:
        return (
            len(self.records) >= self.expected.spans
            and len(self.synthetic) >= self.expected.synthetic
        )


class TraceChain:
    """Collects the references in traces as they are received."""

    def __init__(self) -> None:
        """Start without traces."""
        self.named: dict[bytes, str] = {}
        """The traces that must exist: by trace id, a description of the span that refers to it."""
        self.possible: set[bytes] = set()
        """The ids of traces that may exist. A session's trace, for example, does not exist if the
        session joined another trace."""
        self.first_ns = 2**64
        self.last_ns = 0
        self._batches: dict[bytes, _Batch] = {}
        self._spans: dict[bytes, set[bytes]] = {}
        self._parents: dict[SpanKey, int] = {}
        self._links: dict[SpanKey, int] = {}
        self._running: set[SpanKey] = set()
        """The span keys that scopes will have that were still open when a batch was sealed."""

    def add_trace(self, trace_id: bytes, traces: TracesData, session: str | None) -> None:
        """Add a trace; if `session` is given, use only the spans of that session."""
        known = self._spans.setdefault(trace_id, set())
        for group in traces.resource_spans:
            for scoped in group.scope_spans:
                known.update(span.span_id for span in scoped.spans)
        for group in traces.resource_spans:
            if session is not None and session_of(group) != session:
                continue
            for scoped in group.scope_spans:
                header = read_scope(scoped.scope)
                origin = read_resource(group.resource, header) if header is not None else None
                if header is not None and origin is not None:
                    self._take_batch(header, origin, scoped.spans)
                for span in scoped.spans:
                    self._take_span(span, session is not None)

    def _take_batch(self, header: Header, origin: Origin, spans: Iterable[Span]) -> None:
        service = origin.service_name or origin.attributes.get(sc.SERVICE_NAME)
        batch = self._batches.setdefault(
            assembly_key(header, origin),
            _Batch(
                header.counts,
                origin.session_id,
                service if isinstance(service, str) else None,
            ),
        )
        for span in spans:
            key = (span.trace_id, span.span_id)
            (batch.synthetic if is_synthetic(span) else batch.records).add(key)
        if origin.session_id is not None:
            self.possible.add(trace_id_for(origin.session_id))
        for trace_id in filter(None, (header.trace_id, header.session_trace_id, *_told(header))):
            # A batch may refer to a trace that does not exist yet, so the trace is only a possible
            # one.
            self.possible.add(trace_id)

    def _take_span(self, span: Span, session_alone: bool) -> None:
        if span.start_time_unix_nano:  # 0 if a synthetic span has no time
            self.first_ns = min(self.first_ns, span.start_time_unix_nano)
        self.last_ns = max(self.last_ns, span.end_time_unix_nano)
        # The parent of a session that joined another trace is not part of the session.
        if span.parent_span_id and not (session_alone and _is_joined(span)):
            key = (span.trace_id, span.parent_span_id)
            self._parents[key] = self._parents.get(key, 0) + 1
        if not is_synthetic(span):
            return
        if span.name in _SEAMS:
            for link in span.links:
                where = f"the {span.name} span {span.span_id.hex()} of trace {span.trace_id.hex()}"
                self.named.setdefault(link.trace_id, where)
                key = (link.trace_id, link.span_id)
                self._links[key] = self._links.get(key, 0) + 1
        elif span.name == sc.RUNNING_SPAN:
            for pair in span.attributes:
                if pair.key == sc.CARRIER_SPAN_ID:
                    scope = span_id_for(pair.value.string_value)
                    self._running.add((span.trace_id, scope))

    def wanting(self) -> list[tuple[str | None, str | None]]:
        """Return the distinct pairs (session, service) of the incomplete batches."""
        return list(
            {(b.session, b.service): None for b in self._batches.values() if not b.is_whole()}
        )

    def sessions(self) -> set[str]:
        """Return the sessions from which batches have been received."""
        return {b.session for b in self._batches.values() if b.session is not None}

    def missing(self) -> Iterator[str]:
        """Yield a line for each span that is referred to, but missing from its received trace."""
        for key in sorted(self._parents.keys() | self._links.keys()):
            trace_id, span_id = key
            if span_id in self._spans.get(trace_id, ()) or trace_id not in self._spans:
                continue
            uses = []
            if parents := self._parents.get(key):
                uses.append(f"the parent of {parents} span{'s' * (parents != 1)}")
            if links := self._links.get(key):
                uses.append(f"linked to by {links} segment{'s' * (links != 1)}")
            why = "it was still open" if key in self._running else "never ended, not sent, or lost"
            what = f"span {span_id.hex()}, {' and '.join(uses)}"
            yield f"trace {trace_id.hex()}: {what}, is not there ({why})"


def session_of(group: ResourceSpans) -> str | None:
    """Return the session id of a resource; None if it has none."""
    for pair in group.resource.attributes:
        if pair.key == sc.SESSION_ID and pair.value.WhichOneof("value") == "string_value":
            return str(pair.value.string_value)
    return None


def _is_joined(span: Span) -> bool:
    return any(pair.key == sc.PARENT_ID and not pair.value.string_value for pair in span.attributes)


def _told(header: Header) -> Iterator[bytes]:
    """Yield the trace ids in the residual of a batch header."""
    try:
        residual = parse_residual(header.residual, of_batch=True)
    except UnencodableError:
        return
    otel = (residual or {}).get("otel")
    values = otel.get("set") if isinstance(otel, dict) else None
    if not isinstance(values, dict):
        return
    entries = [*_listed(values.get("segments")), *_listed(values.get("running"))]
    texts = [
        entry.get(key)
        for entry in entries
        if isinstance(entry, dict)
        for key in ("trace_id", "previous_trace_id", "parent_trace_id")
    ]
    traces = values.get("traces")
    texts += list(traces.values()) if isinstance(traces, dict) else []
    for text in texts:
        trace_id = unhex(text)
        if trace_id is not None and len(trace_id) == 16 and any(trace_id):
            yield trace_id


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []
