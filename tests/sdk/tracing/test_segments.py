"""The chain of a session's traces: when a scope opens the next one, and what the batch says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

import cirron_otel as ci
from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import format_of
from cirron_otel.ids import segment_trace_id
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.sessions.reading import Recorded, recorded
from tests.sdk.conftest import OpenSession


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Runs a function inside a session; gives what stands in the spool afterwards."""

    def inside(body: Any, **options: Any) -> Recorded:
        ci.profile(frameworks=[], output_dir=str(tmp_path), flush_interval=3600, **options)
        try:
            assert ci.flush()  # the flush at the start of a session does not run beside the loop
            body()
        finally:
            ci.shutdown()
        return recorded(tmp_path)

    return inside


def steps(count: int, inner: int) -> None:
    for _ in ci.epochs(range(1)):
        for _ in ci.batches(range(count)):
            for _ in range(inner):
                with ci.scope("forward"):
                    pass
            ci.mark("loss", 0.5)


def sizes(found: Recorded) -> Counter[str]:
    """Records by trace; the SDK's own marks are not counted."""
    traces = {some_id: found.trace_id(span) for some_id, span in found.spans.items()}
    counts = Counter(traces.values())
    counts.update(traces[m["span_id"]] for m in found.marks if m["name"] == "loss")
    return counts


@pytest.mark.parametrize("inner", [1, 3, 40])
def test_a_trace_is_filled_up_to_its_limit(run: Any, inner: int) -> None:
    found = run(lambda: steps(300, inner), segment_records=200)
    counts = sizes(found)
    unit = inner + 2
    assert len(counts) > 300 * unit // 260
    assert max(counts.values()) <= 200 + 2 * unit
    assert sum(counts.values()) == 300 * unit + 2


def test_a_short_run_is_one_trace(run: Any) -> None:
    found = run(lambda: steps(10, 2))
    assert set(sizes(found)) == {found.batches[0]["otel"]["session"]}
    assert not any("segments" in batch["otel"] for batch in found.batches)


def test_the_layout_session_is_one_trace(run: Any) -> None:
    found = run(lambda: steps(300, 3), segment_records=200, trace_layout="session")
    assert len(sizes(found)) == 1


def test_an_old_trace_ends_although_it_is_short(run: Any) -> None:
    found = run(lambda: steps(5, 1), segment_seconds=1e-9)
    assert len(sizes(found)) > 3


def test_batches_name_each_segment_once_with_its_links(run: Any) -> None:
    found = run(lambda: steps(300, 3), segment_records=200)
    told = [s for batch in found.batches for s in batch["otel"].get("segments", [])]
    session = found.batches[0]["otel"]["session"]
    assert [s["number"] for s in told] == list(range(1, len(told) + 1))
    before = session
    for segment in told:
        unit = found.spans[segment["unit_id"]]
        assert unit["parent_id"] == segment["parent_id"]
        assert found.trace_id(unit) == segment["trace_id"]
        trace = segment_trace_id(
            session, segment["unit_id"], segment["number"], bytes.fromhex(session)
        )
        assert segment["trace_id"] == trace.hex()
        assert segment["previous_trace_id"] == before
        before = segment["trace_id"]
    assert len({some_id[16:] for some_id in found.spans}) == 1, "the rule holds across segments"


def test_converted_spans_have_their_parents_in_the_same_trace(run: Any, tmp_path: Path) -> None:
    run(lambda: steps(300, 3), segment_records=200)
    target = tmp_path / "out.binpb"
    convert(ConvertRequest(str(tmp_path), str(target)))
    parents, known = [], set()
    form = format_of(target)
    assert form is not None
    messages = list(read_messages(target.open("rb"), form))
    for message in messages:
        for resource_spans in TracesData.FromString(message.data).resource_spans:
            for span in resource_spans.scope_spans[0].spans:
                known.add((span.trace_id, span.span_id))
                if span.parent_span_id:
                    parents.append((span.trace_id, span.parent_span_id))
    assert parents
    assert not set(parents) - known


def test_ranks_of_a_shared_trace_take_their_part(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    caller = "00-11111111111111112222222222222222-3333333333333333-01"
    found = run(lambda: steps(300, 3), segment_records=800, parent=caller)
    counts = sizes(found)
    assert max(counts.values()) <= 200 + 10
    assert counts["11111111111111112222222222222222"] > 100


def test_threads_share_the_chain(session: OpenSession) -> None:
    before = session.segments.trace
    session.segments._limit = 10
    for _ in range(30):
        with ci.scope("step"):
            pass
    spans, _ = session.rows()
    assert len({(s.otel or {}).get("trace_id") if s.otel else None for s in spans}) >= 2
    assert session.segments.trace is not before
