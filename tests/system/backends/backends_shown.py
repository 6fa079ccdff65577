"""What a spool holds, and what a backend shows of it, as the same plain values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.kit.backends import run
from tests.kit.spools.comparing import cirron_otel

Message = dict[str, Any]


class Shown(NamedTuple):
    """A span with all that Jaeger and Tempo keep of it: all but flags."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    state: str
    status: tuple[int, str]
    attributes: Message
    events: list[Message]
    links: list[tuple[str, str, str, Message]]
    resource: Message
    scope: tuple[str, str, Message]


Spans = dict[tuple[str, str], Shown]
"""By trace id and span id."""


def in_spool(directory: Path, file: Path) -> Spans:
    """The spans of a spool as this package's own mapping says them; `file` is for the OTLP."""
    cirron_otel("convert", directory, file)
    with file.open() as lines:
        return plain(run.spans_of([json.loads(line) for line in lines]))


def plain(spans: Iterable[Message]) -> Spans:
    """Spans of OTLP JSON, ids in hex, as `spans_of` gives them; fails where one is there twice."""
    shown = [_shown(span) for span in spans]
    times = Counter((span.trace, span.id) for span in shown)
    assert not (twice := [key for key, count in times.items() if count > 1]), twice[:5]
    return {(span.trace, span.id): span for span in shown}


def _shown(span: Message) -> Shown:
    scope, status = span["scope"], span.get("status", {})
    return Shown(
        trace=span["traceId"],
        id=span["spanId"],
        parent=span.get("parentSpanId", ""),
        name=span["name"],
        kind=_number(Span.SpanKind, span.get("kind", 0)),
        start=int(span.get("startTimeUnixNano", 0)),
        end=int(span.get("endTimeUnixNano", 0)),
        state=span.get("traceState", ""),
        status=(_number(Status.StatusCode, status.get("code", 0)), status.get("message", "")),
        attributes=_attributes(span),
        events=[
            {
                "name": event["name"],
                "time": int(event.get("timeUnixNano", 0)),
                "dropped": event.get("droppedAttributesCount", 0),
                **_attributes(event),
            }
            for event in span.get("events", ())
        ],
        links=[
            (link["traceId"], link["spanId"], link.get("traceState", ""), _attributes(link))
            for link in span.get("links", ())
        ],
        resource=_attributes(span["resource"]),
        scope=(scope.get("name", ""), scope.get("version", ""), _attributes(scope)),
    )


def _number(enum: Any, value: int | str) -> int:
    """Tempo says the names of enums, as protobuf's JSON does and OTLP's does not."""
    return int(enum.Value(value)) if isinstance(value, str) else value


def _attributes(owner: Message) -> Message:
    return {a["key"]: _value(a.get("value", {})) for a in owner.get("attributes", ())}


def _value(value: Message) -> Any:
    """A value with its type, so that 1, 1.0, true and "1" differ; 64-bit integers are text."""
    if not value:
        return None
    ((kind, content),) = value.items()
    if kind == "intValue":
        return kind, int(content)
    if kind == "doubleValue":
        return kind, repr(float(content))
    if kind == "arrayValue":
        return kind, [_value(item) for item in content.get("values", ())]
    if kind == "kvlistValue":
        return kind, {a["key"]: _value(a.get("value", {})) for a in content.get("values", ())}
    return kind, content
