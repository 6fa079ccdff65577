"""Carriers, headers, resources, traces: what a batch is on the wire beside its records."""

from __future__ import annotations

from cirron_otel.core.translator.header import Counts
from cirron_otel.core.translator.own.parts import part_of
from cirron_otel.exactjson import Raw
from cirron_otel.ids import segment_trace_id, trace_id_for

from .cases import (
    EPOCH,
    LOW,
    SESSION,
    STEP,
    T0,
    batch,
    case,
    mark,
    own_id,
    span,
    without,
)
from .wire_cases import marked, step


def register() -> None:
    carriers()
    header()
    otel()
    traces()


def carriers() -> None:
    other = "c0ffee00000000010000000000000009"
    case(
        "carriers",
        "Marks of an open epoch, of a scope whose id the wire parent does not give, and of no"
        " session ride on synthetic spans.",
        plan={
            "default": SESSION,
            "external": {EPOCH: {"session": SESSION, "trace_id": SESSION, "depth": 1}},
        },
        batch=batch(
            [step()],
            [
                mark(own_id("a1"), EPOCH, "loss", 1, 110),
                mark(own_id("a2"), "root", "early", 2, 120),
                mark(own_id("a3"), other, "lost", 3, 130),
            ],
        ),
    )
    case(
        "more-marks",
        "More events than a span may carry (the limit is set to 2 here): the others ride on a"
        " carrier.",
        limits={"MAX_EVENTS": 2},
        batch=marked(*(mark(own_id(f"a{n}"), STEP, "loss", n, 110 + n) for n in range(1, 6))),
    )
    three = [mark(own_id(f"a{n}"), STEP, "loss", n, 110 + n) for n in range(1, 4)]
    case(
        "mark-ids-apart",
        "`mark_ids` is empty though marks ride on the span and, the limit being 2 here, on a"
        " carrier: the rest is final.",
        limits={"MAX_EVENTS": 2},
        batch=batch([step(mark_ids=[])], three),
    )
    case("empty", "A batch without spans has a span `cirron.batch`.", batch=batch([]))


def header() -> None:
    case(
        "unknown-top-level",
        "Unknown top-level keys, and a file whose name is not the usual one.",
        name="00000000000000000042-other.json",
        batch=batch([step()], run={"id": 7}),
    )
    case(
        "unknown-top-level-long",
        "More than 2,000 bytes of them ride on a span `cirron.batch`.",
        batch=batch([step()], notes="y" * 2_000),
    )
    case(
        "odd-header",
        "A header of odd types: what the scope cannot say is in its rest.",
        batch=without(batch([step()], sdk_version=3, batch_id=None), "schema_version")
        | {"snapshots": None},
    )
    case(
        "repeated-key",
        "A list that holds an object with a repeated key stands in the header's rest as it is.",
        batch=batch([step()]) | {"marks": [Raw('{"id":"a","id":"b"}')]},
    )
    arrived = batch([span(EPOCH, "epoch", SESSION, 50, 300, index=0)])
    case(
        "part",
        "One span of the batch of `native`, whose other two never came.",
        batch=part_of(arrived, Counts(3, 1, 0, 0), 0, None),
    )
    marks = [mark(own_id(f"a{n}"), STEP, "loss", n, 110 + n) for n in (1, 2, 5)]
    places = {
        "seq": {"spans": [4]},
        "more_marks": [[0, 3]],
        "carriers": [{"ordinal": 1, "marks": [2]}],
    }
    case(
        "part-places",
        "A span with two of its five marks, and the second of its two carriers.",
        batch=part_of(
            batch([step(mark_ids=[m["id"] for m in marks])], marks),
            Counts(5, 5, 0, 2),
            1,
            None,
            places,
        ),
    )


def otel() -> None:
    case(
        "resource",
        "Resource attributes of others; with a service name of its own none is added.",
        batch=batch(
            [step()],
            otel={"resource": {"attributes": {"service.name": "trainer", "process.pid": "x"}}},
        ),
    )
    case(
        "otel-span",
        "What OpenTelemetry knows of a span and Cirron has no field for.",
        batch=batch(
            [
                step(
                    otel={
                        "kind": 3,
                        "status": {"code": 2, "message": "out of memory"},
                        "flags": 257,
                        "trace_state": "v=1",
                        "dropped_attributes_count": 1,
                        "links": [
                            {
                                "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
                                "span_id": "00f067aa0ba902b7",
                                "attributes": {"why": "restart"},
                            }
                        ],
                    }
                ),
                span(EPOCH, "epoch", SESSION, 50, 300, otel={"kind": 3, "colour": "red"}),
            ]
        ),
    )
    second = "5e55205e55205e559999999999999999"
    case(
        "two-sessions",
        "Two sessions in one batch: two ResourceSpans with the same header.",
        batch=batch(
            [
                step(parent_id=SESSION),
                span(SESSION, "cirron.session", None, 0, 300),
                span(second, "cirron.session", None, 0, 400, pid=4343, rank=1),
            ]
        ),
    )


def traces() -> None:
    own = "feedfacefeedface" + LOW
    spans = [
        step(otel={"trace_id": own}),
        span(EPOCH, "epoch", SESSION, 50, 300),
        span(SESSION, "cirron.session", None, 0, 400),
    ]
    about = "A record with a trace id of its own: with the layout `{}` {}."
    case(
        "own-trace",
        about.format("segmented", "it is obeyed"),
        batch=batch(spans),
    )
    case(
        "own-trace-session",
        about.format("session", "it gives way and is kept"),
        layout="session",
        batch=batch(spans),
    )
    first = trace_id_for(SESSION)
    trace = segment_trace_id(SESSION, STEP, 1, first)
    segment = {
        "start_ns": T0 + 100,
        "unit_id": STEP,
        "parent_id": EPOCH,
        "number": 1,
        "trace_id": trace.hex(),
        "previous_trace_id": first.hex(),
    }
    case(
        "segment",
        "A step opens the second trace of its session: its child goes along, its parent stays.",
        plan={
            "default": SESSION,
            "external": {SESSION: {"session": SESSION, "trace_id": SESSION, "depth": 0}},
            "segments": {SESSION: [segment]},
        },
        batch=batch(
            [
                span(own_id("f0d"), "forward", STEP, 110, 150),
                step(index=4000),
                span(EPOCH, "epoch", SESSION, 50, 300),
            ]
        ),
    )
