"""OTLP, and the batches that it becomes."""

from __future__ import annotations

import copy
from typing import Any

from cirron_otel.core.translator.translate import to_otlp

from .cases import (
    EPOCH,
    SESSION,
    STEP,
    T0,
    Json,
    Vector,
    batch,
    case,
    mark,
    otlp_of,
    own_id,
    span,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def attribute(key: str, value: Json) -> Json:
    return {"key": key, "value": value}


def otlp_span(**more: Any) -> Json:
    return {
        "traceId": TRACE,
        "spanId": "00f067aa0ba902b7",
        "name": "GET /",
        "kind": 2,
        "startTimeUnixNano": str(T0),
        "endTimeUnixNano": str(T0 + 5),
    } | more


def request(*spans: Json, resource: Json | None = None, **more: Any) -> Json:
    message: Json = {} if resource is None else {"resource": resource}
    return {"resourceSpans": [message | {"scopeSpans": [{"spans": list(spans)} | more]}]}


def register() -> None:
    case(
        "foreign",
        "A server's span: the readable view alone gives the message back.",
        otlp={
            "resourceSpans": [
                {
                    "resource": {
                        "attributes": [
                            attribute("service.name", {"stringValue": "shop"}),
                            attribute("process.pid", {"intValue": "99"}),
                        ]
                    },
                    "scopeSpans": [
                        {
                            "scope": {"name": "flask", "version": "3"},
                            "spans": [
                                otlp_span(
                                    parentSpanId="53995c3f42cd8ad8",
                                    attributes=[
                                        attribute("thread.id", {"intValue": "7"}),
                                        attribute("cirron.index", {"intValue": "1"}),
                                    ],
                                    events=[{"timeUnixNano": str(T0 + 1), "name": "cache miss"}],
                                    status={"code": 1},
                                )
                            ],
                        }
                    ],
                    "schemaUrl": "https://opentelemetry.io/schemas/1.30.0",
                }
            ]
        },
    )
    case(
        "foreign-ids",
        "A span id of zeros and a parent id of four bytes: verbatim in `otel`, the Cirron ids are"
        " hashes.",
        otlp=request(otlp_span(spanId="0" * 16, parentSpanId="01020304")),
    )
    case(
        "foreign-raw",
        "Bytes, a NaN and a repeated key: the view is readable, the message stands beside it.",
        otlp=request(
            otlp_span(
                attributes=[
                    attribute("b", {"bytesValue": "AQI="}),
                    attribute("n", {"doubleValue": "NaN"}),
                    attribute("k", {"intValue": "1"}),
                    attribute("k", {"intValue": "2"}),
                ]
            )
        ),
    )
    empty: Json = {"resourceSpans": [{}, {"resource": {}, "scopeSpans": [{"scope": {}}]}]}
    case("foreign-empty", "Messages without spans, and empty sub-messages.", otlp=empty)
    case(
        "foreign-copy",
        "The same message a second time in one input: `copy` tells them apart.",
        otlp=copy.deepcopy(empty),
        fed=2,
        one_way=True,
    )
    header = (
        '{"batch_id":"d0d0d0d0d0d04d0d80d0d0d0d0d0d0d0","content":'
        '"a1670f02b7044ba19ab02a1bbe52f80e","created_ns":1700000000000000100,'
        '"messages":1,"received_ns":1700000000000000100,'
        '"sdk_version":"0.3.0+cirron-otel.0.0.9"}'
    )
    headed = request(otlp_span())
    attributes = [attribute("cirron.otlp.batch", {"stringValue": header})]
    headed["resourceSpans"].insert(0, {"resource": {"attributes": attributes}})
    case(
        "foreign-header",
        "A batch that an older release received: its id, time and version are in a header.",
        otlp=headed,
    )
    case(
        "lookalike",
        "A span under a scope `cirron` that is not as the encoder says it is foreign.",
        otlp=request(
            otlp_span(attributes=[attribute("cirron.index", {"stringValue": "1"})]),
            scope={"name": "cirron"},
        ),
    )
    processed()


def processed() -> None:
    """What a collector and its processors may make of a batch."""
    marks = [mark(own_id("a1"), STEP, "loss", 0.5, 150)]
    step = span(STEP, "step", EPOCH, 100, 200, index=0, mark_ids=[own_id("a1")])
    given = batch([step], marks)
    vector = Vector({"plan": {"default": SESSION}})
    data = otlp_of(to_otlp(given, vector.plan()))
    (told,) = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    told["attributes"].reverse()
    told["attributes"].append(attribute("tenant", {"stringValue": "blue"}))
    told["status"] = {}
    told["flags"] = 256
    case(
        "processed",
        "A Collector reversed the attributes of a span of Cirron's, added one, an empty status"
        " and a flag: still the same record, with what was added.",
        one_way=True,
        otlp=data,
    )
    twice = copy.deepcopy(data)
    twice["resourceSpans"].append(copy.deepcopy(twice["resourceSpans"][0]))
    case("twice", "The same records twice count once.", one_way=True, otlp=twice)
