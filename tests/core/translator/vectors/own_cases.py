"""Batches that name their session, as this project's SDK writes them."""

from __future__ import annotations

from cirron_otel.core.translator.own.spans import overhead_mark
from cirron_otel.ids import segment_trace_id, trace_id_for

from .cases import (
    EPOCH,
    LOW,
    SESSION,
    STEP,
    T0,
    Json,
    batch,
    case,
    mark,
    own_id,
    span,
)
from .wire_cases import step

SEGMENT = segment_trace_id(SESSION, STEP, 1, trace_id_for(SESSION)).hex()
CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"


def own_batch() -> Json:
    """A step that opens a segment, two epochs still open, and a mark on the first of them."""
    measured = overhead_mark(STEP, T0 + 200, 850)
    second = own_id("e90c2")
    return batch(
        [
            span(own_id("f0d"), "forward", own_id("57e0"), 110, 150, otel={"trace_id": SESSION}),
            step(index=4000, mark_ids=[measured["id"]]),
        ],
        [mark(own_id("a1"), EPOCH, "loss", 1, 110), measured],
        otel={
            "session": SESSION,
            "trace_id": SEGMENT,
            "resource": {"attributes": {"service.name": "trainer"}},
            "running": [
                {
                    "id": second,
                    "name": "epoch",
                    "index": 1,
                    "start_ns": T0 + 160,
                    "parent_id": SESSION,
                    "trace_id": SESSION,
                }
            ],
            "segments": [
                {
                    "number": 1,
                    "trace_id": SEGMENT,
                    "previous_trace_id": SESSION,
                    "start_ns": T0 + 100,
                    "unit_id": STEP,
                    "parent_id": EPOCH,
                    "parent_trace_id": SESSION,
                }
            ],
            "traces": {EPOCH: SESSION},
        },
    )


def register() -> None:
    case(
        "own",
        "A batch that names its session says where its records stand, which segment opened, and"
        " which scopes are still open.",
        batch=own_batch(),
    )
    about = "The same with the layout `session`: one trace, no seams, the marker stays."
    told = own_batch()
    told["spans"] = [{k: v for k, v in s.items() if k != "otel"} for s in told["spans"]]
    case("own-session", about, layout="session", batch=told)
    case(
        "own-foreign",
        "A span of an instrumented server that is the root of its own trace: in Cirron it stands"
        " below the scope in which it ran.",
        batch=batch(
            [
                span(
                    "00f067aa0ba902b7" + CALLER[16:],
                    "GET /",
                    STEP,
                    110,
                    150,
                    otel={"kind": 2, "trace_id": CALLER, "parent_span_id": ""},
                ),
                span(
                    SESSION,
                    "cirron.session",
                    None,
                    0,
                    400,
                    otel={"parent_span_id": "00f067aa0ba902b7"},
                ),
            ],
            otel={
                "session": SESSION,
                "session_trace_id": "4bf92f3577b34da6" + LOW,
                "trace_id": "4bf92f3577b34da6" + LOW,
            },
        ),
    )
