"""Spans, marks and snapshots, and what they are on the wire."""

from __future__ import annotations

from typing import Any

from cirron_otel.core.translator.own.spans import overhead_mark
from cirron_otel.exactjson import Raw

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
    without,
)

SDK_SESSION = "0a1b2c3d4e5f40718293a4b5c6d7e8f9"
SDK_EPOCH = "11111111111141118111111111111111"
SDK_STEP = "22222222222242228222222222222222"


def step(**more: Any) -> Json:
    return span(STEP, "step", EPOCH, 100, 200, **more)


def marked(*marks: Json, **more: Any) -> Json:
    ids = [m["id"] for m in marks if "id" in m]
    return batch([step(mark_ids=more.pop("mark_ids", ids))], marks, **more)


def register() -> None:
    identity()
    fields()
    values()
    marks()
    snapshots()
    order()


def identity() -> None:
    case(
        "native",
        "A session, an epoch and a step with ids of this project's SDK: no id attribute is needed.",
        batch=batch(
            [
                step(index=0, mark_ids=[own_id("a1")]),
                span(EPOCH, "epoch", SESSION, 50, 300, index=0),
                span(SESSION, "cirron.session", None, 0, 400),
            ],
            [mark(own_id("a1"), STEP, "loss", 0.5, 150)],
        ),
    )
    case(
        "sdk-ids",
        "Ids of cirron-sdk, 16 random bytes each: the full id and the full parent stand beside.",
        plan={"default": SDK_SESSION},
        batch=batch(
            [
                span(SDK_STEP, "step", SDK_EPOCH, 100, 200),
                span(SDK_EPOCH, "epoch", SDK_SESSION, 50, 300),
                span(SDK_SESSION, "cirron.session", None, 0, 400),
            ]
        ),
    )
    case(
        "zero-ids",
        "An id whose first half is zero, and one that is no hex: the span id is a hash of it.",
        batch=batch(
            [
                span("0" * 16 + LOW, "step", "top", 100, 200),
                span("top", "epoch", SESSION, 50, 300),
            ]
        ),
    )
    case(
        "odd-session",
        "A session whose id is no hex: its trace id is a hash of it.",
        plan={"default": "a session"},
        batch=batch([span("a session", "cirron.session", None, 0, 400)]),
    )
    case(
        "no-ids",
        "Records whose id is missing or no string, and a parent that is the empty string.",
        batch=batch(
            [
                without(step(), "id"),
                span(STEP, "step", "", 100, 200) | {"id": 5},
                span(STEP, "step", "", 100, 210),
            ]
        ),
    )
    case(
        "remote-parent",
        "A session that joined a trace: its parent there is not a record of Cirron's.",
        plan={
            "default": SESSION,
            "traces": {SESSION: "4bf92f3577b34da61111222233334444"},
        },
        batch=batch(
            [
                step(parent_id=SESSION),
                span(
                    SESSION,
                    "cirron.session",
                    None,
                    0,
                    400,
                    otel={"parent_span_id": "00f067aa0ba902b7"},
                ),
            ],
            otel={"trace_id": "4bf92f3577b34da61111222233334444"},
        ),
    )


def fields() -> None:
    case(
        "fields",
        "Every field of a span; pid and rank stand on the resource, on the span where they differ.",
        batch=batch(
            [
                step(
                    index=3,
                    cpu_ns=11,
                    gpu_ns=0,
                    memory_peak_bytes=2**40,
                    thread_id=140_000_000_000_001,
                    rank=1,
                ),
                span(EPOCH, "epoch", SESSION, 50, 300, pid=4343, rank=None),
                span(SESSION, "cirron.session", None, 0, 400, pid=None, rank=1),
            ]
        ),
    )
    case(
        "odd-fields",
        "Missing fields, unknown fields and values that a field of OTLP cannot hold: the rest.",
        batch=batch(
            [
                without(step(), "cpu_ns", "rank")
                | {"name": 5, "index": "a", "start_ns": -1, "colour": "red", "attrs": None}
            ]
        ),
    )
    case(
        "rest-pieces",
        "A rest of more than 2,000 bytes stands in pieces.",
        batch=batch([step(note="x" * 2_000)]),
    )


def values() -> None:
    nested: Any = "leaf"
    for _ in range(17):
        nested = [nested]
    case(
        "attributes",
        "Typed values, and user's keys in reserved names.",
        batch=batch(
            [
                step(
                    attrs={
                        "s": "text",
                        "b": True,
                        "i": 1,
                        "d": 1.0,
                        "none": None,
                        "list": [1, "a", []],
                        "map": {"k": {"l": None}},
                        "cirron.index": 9,
                        "cirron.attr.x": 1,
                        "thread.id": "mine",
                        "": "empty key",
                    }
                )
            ]
        ),
    )
    case(
        "step-figures",
        "The figures of a step keep their names, although these are reserved.",
        batch=batch(
            [
                step(
                    attrs={
                        "global_step": 3,
                        "cirron.unit_ns": 100,
                        "cirron.waiting_ns": 40,
                        "loss": 0.25,
                    }
                )
            ]
        ),
    )
    case(
        "unsayable-attributes",
        "An integer beyond 64 bits and a lone surrogate: a readable string each, and the whole"
        " `attrs` in the rest.",
        batch=batch([step(attrs={"big": 2**64, "lone": "\ud800", "\udc00": 1, "plain": 1})]),
    )
    case(
        "deep-attributes",
        "Lists nested 17 deep: the 17th level is JSON text, and the whole `attrs` is in the rest.",
        batch=batch([step(attrs={"deep": nested})]),
    )
    case(
        "exact-numbers",
        "Tokens that parsing would change, a NaN token and a repeated key stay JSON text.",
        batch=batch(
            [
                step(
                    index=Raw("-0"),
                    attrs={"huge": Raw("1e400"), "nan": float("nan"), "minus": -0.0},
                ),
                span(EPOCH, "epoch", SESSION, 50, 300) | {"attrs": Raw('{"a":1,"a":2}')},
            ]
        ),
    )


def marks() -> None:
    case(
        "mark-values",
        "Marks of every type, with the value's own type on the wire.",
        batch=marked(
            mark(own_id("a1"), STEP, "lr", 1.0, 110),
            mark(own_id("a2"), STEP, "n", 1, 120, attrs={"step": 10, "cirron.seq": 1}),
            mark(own_id("a3"), STEP, "ok", True, 130, kind="summary"),
            mark(own_id("a4"), STEP, "note", "hi", 140),
        ),
    )
    case(
        "mark-rest",
        "Marks that an event cannot say: a value without a JSON number, a value of another type"
        " than it says, a mark without an id, a name with a lone surrogate.",
        batch=marked(
            mark(own_id("a1"), STEP, "loss", None, 110, value_nonfinite="nan"),
            mark(own_id("a2"), STEP, "loss", 3, 120, value_type="float"),
            without(mark("", STEP, "anonymous", 1, 130), "id"),
            mark(own_id("a4"), STEP, "\ud83d", 1, 140),
        ),
    )
    case(
        "mark-order",
        "Events stand in the order of `mark_ids`, the batch's list in canonical order.",
        batch=marked(
            mark(own_id("a1"), STEP, "first", 1, 110),
            mark(own_id("a2"), STEP, "second", 2, 120),
            mark_ids=[own_id("a2"), own_id("a1")],
        ),
    )
    case(
        "mark-ids-dropped",
        "`mark_ids` names a mark that is not in the batch: the list is in the rest.",
        batch=marked(
            mark(own_id("a1"), STEP, "loss", 1, 110), mark_ids=[own_id("a0"), own_id("a1")]
        ),
    )
    overhead = overhead_mark(STEP, T0 + 200, 850)
    case(
        "overhead",
        "The SDK's overhead mark follows from its span: one attribute.",
        batch=marked(mark(own_id("a1"), STEP, "loss", 1, 110), overhead),
    )


def snapshot(head: str, time: int, **more: Any) -> Json:
    return {
        "id": own_id(head),
        "span_id": STEP,
        "tensor_name": "layer1.weight",
        "shape": [64, 3],
        "dtype": "float32",
        "mode": "stats",
        "stats": {
            "mean": 0.0,
            "std": 1.0,
            "min": -2.0,
            "max": 2.5,
            "norm": 8.0,
            "histogram": {"bins": [-2.0, 0.0, 2.5], "counts": [100, 92]},
        },
        "blob_uri": None,
        "ts_ns": T0 + time,
        "attrs": {},
    } | more


def snapshots() -> None:
    case(
        "snapshot",
        "A snapshot is an event; a second one without statistics names a blob.",
        batch=batch(
            [step()],
            snapshots=[
                snapshot("d1", 110),
                snapshot(
                    "d2",
                    120,
                    mode="full",
                    stats=None,
                    blob_uri="file:///t/w.safetensors",
                    attrs={"k": 1},
                ),
            ],
        ),
    )
    case(
        "snapshot-rest",
        "Statistics that are no doubles, and a histogram that is missing, are in the rest.",
        batch=batch([step()], snapshots=[snapshot("d1", 110, stats={"mean": 0, "std": 1.0})]),
    )
    case(
        "event-kinds",
        "Attributes tell events apart, never names: a mark called `cirron.snapshot`, and an event"
        " of OpenTelemetry's own with a reserved key.",
        batch=batch(
            [
                step(
                    mark_ids=[own_id("a1")],
                    otel={
                        "events": [
                            {
                                "name": "exception",
                                "time_ns": T0 + 150,
                                "attributes": {"cirron.mark.id": "no mark"},
                                "dropped_attributes_count": 2,
                            }
                        ]
                    },
                )
            ],
            [mark(own_id("a1"), STEP, "cirron.snapshot", 1, 110)],
        ),
    )


def order() -> None:
    case(
        "order",
        "Spans out of canonical order, and marks of which two share an id, carry their place.",
        batch=batch(
            [
                span(EPOCH, "epoch", SESSION, 50, 300),
                step(mark_ids=[own_id("a1"), own_id("a1"), own_id("a2")]),
                span(SESSION, "cirron.session", None, 0, 400),
            ],
            [
                mark(own_id("a1"), STEP, "loss", 1, 110),
                mark(own_id("a1"), STEP, "loss", 1, 110),
                mark(own_id("a2"), STEP, "loss", 2, 120),
            ],
        ),
    )
