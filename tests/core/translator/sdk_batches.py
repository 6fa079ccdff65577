"""Generators of the batches that this project's SDK writes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from cirron_otel.core.translator.own.spans import overhead_mark
from tests.kit.generators import strategies as gen

ADOPTED = f"{0xADD:016x}{gen.LOWER}"
_times = st.integers(1, 40)
_attrs = st.dictionaries(st.text(max_size=4), st.integers(0, 5) | st.text(max_size=4), max_size=2)
_more = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from([2, 3]),
        "status": st.just({"code": 2, "message": "out of memory"}),
        "flags": st.just(257),
        "trace_state": st.just("v=1"),
        "links": st.just([{"trace_id": "ab" * 16, "span_id": "cd" * 8}]),
        "trace_id": gen.trace_ids | st.just("5e" * 16),
        "parent_span_id": st.sampled_from(["", "ab" * 8]),
        "events": st.just([{"name": "exception", "time_ns": 3, "attributes": {"k": 1}}]),
        "scope": st.just({"name": "requests", "version": "2"}),
    },
)
_otels = (
    st.none()
    | st.none()
    | st.fixed_dictionaries({"trace_id": gen.trace_ids | st.just("5e" * 16)})
    | _more
)
_batch_otels = st.fixed_dictionaries(
    {"session": st.just(gen.SESSION_ID)},
    optional={
        "session_trace_id": st.just("ad" * 8 + gen.LOWER),
        "trace_id": gen.trace_ids,
        "resource": st.fixed_dictionaries(
            {"attributes": st.just({"service.name": "train", "host.name": "a"}) | _attrs}
        ),
        "traces": st.dictionaries(st.sampled_from([ADOPTED, gen.SESSION_ID]), gen.trace_ids),
        "running": gen.running,
        "segments": gen.segments,
    },
)


@st.composite
def sdk_batches(draw: st.DrawFn) -> dict[str, Any]:
    """Batches as the SDK makes them: overhead marks, spans of others, marks of open scopes."""
    spans: list[Any] = []
    marks: list[Any] = []
    for number in range(1, draw(st.integers(1, 7))):
        own = f"{number:016x}{gen.LOWER}"
        end, mark_ids = draw(_times), []
        for _ in range(draw(st.integers(0, 2))):
            marks.append(_mark(draw, len(marks), own))
            mark_ids.append(marks[-1]["id"])
        if draw(st.booleans()):
            marks.append(overhead_mark(own, end, draw(st.integers(-3, 2**40))))
            mark_ids.append(marks[-1]["id"])
        span = {
            "id": own, "name": draw(st.sampled_from(["step", "forward"]) | st.text(max_size=3)),
            "parent_id": draw(st.none() | st.sampled_from([gen.SESSION_ID, ADOPTED, "b" * 32])),
            "index": draw(st.none() | st.integers(-2, 9)), "start_ns": draw(_times),
            "end_ns": end, "cpu_ns": draw(st.none() | _times), "gpu_ns": None,
            "memory_peak_bytes": None, "thread_id": draw(st.integers(1, 2)), "pid": 1,
            "rank": draw(st.integers(0, 1)), "attrs": draw(_attrs), "mark_ids": mark_ids,
        }  # fmt: skip
        otel = draw(_otels)
        spans.append(span | ({} if otel is None else {"otel": otel}))
    for _ in range(draw(st.integers(0, 2))):
        marks.append(_mark(draw, len(marks), draw(st.sampled_from([ADOPTED, "root"]))))
    return {
        "schema_version": 1, "sdk_version": "0.3.0+cirron-otel.0.1.0", "batch_id": "c" * 32,
        "created_ns": 7, "spans": spans, "marks": marks, "snapshots": [],
        "otel": draw(_batch_otels),
    }  # fmt: skip


def _mark(draw: st.DrawFn, number: int, span_id: str) -> dict[str, Any]:
    value = draw(st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 9))
    return {
        "id": f"{number + 100:016x}{gen.LOWER}", "span_id": span_id,
        "name": draw(st.text(max_size=5)),
        "value_type": "float" if isinstance(value, float) else "int", "value": value,
        "attrs": draw(_attrs), "ts_ns": draw(_times), "kind": "point",
    }  # fmt: skip
