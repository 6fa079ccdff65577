"""Small messages, and the JSON around a piece of JSON."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData


def with_span(**fields: Any) -> TracesData:
    data = TracesData()
    data.resource_spans.add().scope_spans.add().spans.add(**fields)
    return data


def with_value(value: AnyValue) -> TracesData:
    data = TracesData()
    data.resource_spans.add().resource.attributes.add(key="k").value.CopyFrom(value)
    return data


def document(span: dict[str, Any]) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def value_document(value: str) -> bytes:
    return (
        '{"resourceSpans":[{"resource":{"attributes":[{"key":"k","value":' + value + "}]}}]}"
    ).encode()


def only_value(data: TracesData) -> AnyValue:
    return data.resource_spans[0].resource.attributes[0].value


def nested_value(depth: int, kind: str) -> str:
    inner = "{}"
    for _ in range(depth):
        item = inner if kind == "arrayValue" else '{"key":"k","value":' + inner + "}"
        inner = '{"' + kind + '":{"values":[' + item + "]}}"
    return inner
