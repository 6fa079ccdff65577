"""Spools whose records do not say where they stand."""

from __future__ import annotations

from typing import Any

from cirron_otel.core.placement.batch_outline import outline_of
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.translator.own.encode import encode_batch

from .cases import (
    EPOCH,
    SESSION,
    STEP,
    Json,
    batch,
    case,
    mark,
    own_id,
    span,
)

OPEN_EPOCH = own_id("0e90")
LOST = own_id("1057")


def places_of(told: Json) -> Json:
    """By id: the session and the trace of every span of the files, as they are on the wire."""
    index = SessionIndex()
    lights = [outline_of(content) for content in told["files"]]
    for each in lights:
        index.observe(each)
    index.rescan(lambda: lights)
    for each in lights:
        index.count(each)
    places: Json = {}
    for content, each in zip(told["files"], lights, strict=True):
        plan = index.plan(each, segmented=True, fallback=SESSION)
        for message in encode_batch(content, plan):
            (session,) = (
                pair.value.string_value
                for pair in message.resource.attributes
                if pair.key == "cirron.session.id"
            )
            for found in message.scope_spans[0].spans:
                key = f"{found.span_id.hex()} {found.name}"
                if found.name.startswith("cirron.") and found.name != "cirron.session":
                    key += f" in {found.trace_id.hex()}"
                places[key] = {"session": session, "traceId": found.trace_id.hex()}
    index.close()
    return places


def file(number: int, spans: list[Json], marks: Any = ()) -> Json:
    return batch(spans, marks) | {"batch_id": f"{number:032x}", "created_ns": number}


def register() -> None:
    other = "5e55205e55205e559999999999999999"
    case(
        "sessions",
        "A step sealed while its epoch is open; a request whose session was never recorded; a"
        " scope of the process whose session was open; scopes that hang on one unrecorded parent.",
        files=[
            file(1, [span(STEP, "step", EPOCH, 100, 200)], [mark(own_id("a1"), EPOCH, "l", 1, 9)]),
            file(2, [span(EPOCH, "epoch", SESSION, 50, 300)]),
            file(3, [span(own_id("4e9"), "request", other, 10, 20, pid=1)]),
            file(4, [span(own_id("10ad"), "load", OPEN_EPOCH, 60, 70)]),
            file(
                5,
                [
                    span(own_id("f1"), "forward", LOST, 10, 20, pid=2),
                    span(own_id("f2"), "forward", LOST, 20, 30, pid=2),
                    span(own_id("f3"), "warmup", None, 20, 30, pid=2),
                ],
            ),
            file(6, [span(SESSION, "cirron.session", None, 0, 400)]),
        ],
    )
    steps = [
        file(n, [span(own_id(f"57e{n}"), "step", EPOCH, 100 * n, 100 * n + 50)])
        for n in range(1, 5)
    ]
    case(
        "segments",
        "A session of six records where a trace holds two (the limit is 4,000): counted in the"
        " order of the files.",
        limits={"SEGMENT_RECORDS": 2},
        files=[
            *steps,
            file(5, [span(EPOCH, "epoch", SESSION, 50, 600)]),
            file(6, [span(SESSION, "cirron.session", None, 0, 700)]),
        ],
    )
