"""The mapping of TraceML's rows to spans and marks (docs/traceml.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cirron_otel.ids import digest

from .recordings import (
    CASES,
    envelope,
    envelopes,
    event,
    frames_folder,
    meta,
    packed,
    payloads,
    step_row,
    streamed,
)

NS = 1_000_000_000


def converted(*frames: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """The batches of a stream, parsed, and the messages of the findings."""
    found, findings = streamed(frames)
    return [json.loads(batch.data) for batch in found], [each.message for each in findings]


def records(*frames: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The spans by name, the last of each, and the marks."""
    documents, _ = converted(*frames)
    spans = [span for document in documents for span in document["spans"]]
    marks = [mark for document in documents for mark in document["marks"]]
    return {span["name"]: span for span in spans}, marks


def test_a_step_ends_at_its_time_and_its_phases_are_laid_end_to_end() -> None:
    row = step_row(
        9, 1000.5, dataloader_next=event(20), h2d_time=event(1), forward_time=event(30),
        backward_time=event(40), optimizer_step=event(5), step_time=event(100),
    )  # fmt: skip
    spans, _ = records(packed(envelope("StepTimeTable", row)))
    step = spans["step"]
    assert step["end_ns"] == 1000 * NS + NS // 2
    assert step["start_ns"] == step["end_ns"] - 120_000_000
    assert step["index"] == 9
    assert step["parent_id"] == spans["cirron.session"]["id"]
    assert step["attrs"] == {
        "traceml.phases_are_sums": True, "traceml.step_time_ns": 100_000_000
    }  # fmt: skip
    at = step["start_ns"]
    for name, milliseconds in (
        ("data_load", 20), ("h2d", 1), ("forward", 30), ("backward", 40), ("optimizer_step", 5),
    ):  # fmt: skip
        phase = spans[name]
        assert (phase["start_ns"], phase["end_ns"]) == (at, at + milliseconds * 1_000_000)
        assert phase["parent_id"] == step["id"]
        assert (phase["gpu_ns"], phase["attrs"], phase["pid"], phase["rank"]) == (None, {}, 7, 0)
        at = phase["end_ns"]


def test_a_step_contains_its_phases_if_they_are_longer_than_step_time() -> None:
    row = step_row(
        1, 1000.5, dataloader_next=event(20), forward_time=event(30), step_time=event(10)
    )
    spans, _ = records(packed(envelope("StepTimeTable", row)))
    assert spans["step"]["end_ns"] - spans["step"]["start_ns"] == 50_000_000
    assert spans["forward"]["end_ns"] == spans["step"]["end_ns"]


@pytest.mark.parametrize("case", CASES)
def test_step_times_match_the_source_rows(case: str) -> None:
    for path in frames_folder(case).iterdir():
        data = path.read_bytes()
        documents, messages = converted(*payloads(data))
        assert not messages
        steps = {
            span["index"]: span
            for document in documents
            for span in document["spans"]
            if span["name"] == "step"
        }
        rows = [row.value for each in envelopes(data) for row in each.rows
                if row.table == "StepTimeTable"]  # fmt: skip
        assert len(rows) == len(steps) >= 10
        for row in rows:
            sums = {
                name: sum(figures["duration_ms"] for figures in devices.values())
                for name, devices in row["events"].items()
            }
            load = sums.pop("_traceml_internal:dataloader_next")
            whole = sums.pop("_traceml_internal:step_time")
            span = steps[row["step"]]
            assert span["end_ns"] / 1e9 == row["timestamp"]
            duration_ms = (span["end_ns"] - span["start_ns"]) / 1e6
            assert duration_ms == pytest.approx(load + max(whole, sum(sums.values())), abs=1e-5)


@pytest.mark.parametrize(
    ("figures", "gpu_ns"),
    [
        ({"is_gpu": True, "duration_ms": 3}, 3_000_000),
        ({"is_gpu": True, "duration_ms": 3, "cpu_ms": 1, "gpu_ms": 3}, 3_000_000),
        ({"is_gpu": False, "duration_ms": 3, "cpu_ms": 3, "gpu_ms": None}, None),
        ({"is_gpu": False, "duration_ms": 3, "cpu_ms": 3, "gpu_ms": 2.5}, 2_500_000),
    ],
)
def test_the_time_on_a_device(figures: dict[str, Any], gpu_ns: int | None) -> None:
    row = step_row(1, 1000.5, forward_time={"cuda:0": figures | {"n_calls": 2}})
    spans, _ = records(packed(envelope("StepTimeTable", row)))
    assert spans["forward"]["gpu_ns"] == gpu_ns
    assert spans["forward"]["attrs"] == {"traceml.calls": 2, "traceml.devices": ["cuda:0"]}


def test_the_devices_of_an_event_add_up() -> None:
    both = {"cpu": {"duration_ms": 1, "n_calls": 1}, "cuda:0": {"is_gpu": True, "duration_ms": 2}}
    spans, _ = records(packed(envelope("StepTimeTable", step_row(1, 1000.5, h2d_time=both))))
    assert spans["h2d"]["end_ns"] - spans["h2d"]["start_ns"] == 3_000_000
    assert spans["h2d"]["gpu_ns"] == 2_000_000


def peaks(step: int, allocated: float | None = 5.0) -> dict[str, Any]:
    reserved = None if allocated is None else 7.0
    return envelope("step_memory", {"seq": 1, "ts": 1000.0, "device": "cuda:0", "step": step,
                                    "peak_alloc": allocated, "peak_resv": reserved})  # fmt: skip


PEAKS = {"cuda.memory_peak_bytes": 5, "cuda.memory_reserved_peak_bytes": 7, "device": "cuda:0"}


@pytest.mark.parametrize("order", [1, -1], ids=["step first", "memory first"])
@pytest.mark.parametrize("apart", [False, True], ids=["one frame", "two frames"])
def test_a_step_has_the_peaks_of_its_memory_row(order: int, *, apart: bool) -> None:
    messages = [envelope("StepTimeTable", step_row(3, 1000.5)), peaks(3)][::order]
    frames = [packed(each) for each in messages] if apart else [packed(*messages)]
    spans, marks = records(*frames)
    assert spans["step"]["attrs"].items() >= PEAKS.items()
    assert not marks


def later(seconds: float) -> bytes:
    return packed(envelope("x", {"ts": 1000.0 + seconds}, timestamp=1000.0 + seconds))


def test_peaks_wait_for_a_step_of_a_later_batch() -> None:
    documents, _ = converted(
        packed(peaks(3)), later(9), packed(envelope("StepTimeTable", step_row(3, 1010.0)))
    )
    assert len(documents) == 2
    step = next(span for span in documents[1]["spans"] if span["name"] == "step")
    assert step["attrs"].items() >= PEAKS.items()


def test_peaks_of_a_step_in_an_earlier_batch_are_a_mark_on_it() -> None:
    documents, _ = converted(
        packed(envelope("StepTimeTable", step_row(3, 1000.5))), later(9), packed(peaks(3))
    )
    (step,) = (span for span in documents[0]["spans"] if span["name"] == "step")
    (mark,) = (mark for mark in documents[1]["marks"] if mark["name"] == "traceml.step_memory")
    assert mark["span_id"] == step["id"]
    assert (mark["value"], mark["attrs"]) == (5, {"step": 3} | PEAKS)


def test_peaks_without_a_step_are_a_mark_on_the_session() -> None:
    spans, marks = records(packed(peaks(3)))
    (mark,) = marks
    assert mark["span_id"] == spans["cirron.session"]["id"]
    assert mark["attrs"] == {"step": 3} | PEAKS
    assert records(packed(peaks(3, None)))[1] == []


def by_name(marks: list[dict[str, Any]]) -> dict[str, tuple[Any, dict[str, Any]]]:
    return {mark["name"]: (mark["value"], mark["attrs"]) for mark in marks}


def test_a_process_row_is_the_sampler_s_marks() -> None:
    row = {"seq": 1, "ts": 1000.25, "pid": 7, "cpu": 150.0, "cpu_cores": 2, "ram_used": 100.0,
           "ram_total": 1000.0, "gpu_available": False, "gpu_count": 0, "gpu": None}  # fmt: skip
    spans, marks = records(packed(envelope("ProcessTable", row)))
    assert by_name(marks) == {
        "memory": (100, {"device_id": -1, "backend": "cpu", "process_rss_bytes": 100,
                         "host_total_bytes": 1000}),
        "process.cpu.utilization": (0.75, {"traceml.cpu_percent": 150.0, "traceml.cpu_cores": 2}),
    }  # fmt: skip
    assert {mark["ts_ns"] for mark in marks} == {1000 * NS + NS // 4}
    assert {mark["span_id"] for mark in marks} == {spans["cirron.session"]["id"]}
    gpu = {"device": 1, "mem_used": 10.0, "mem_reserved": 20.0, "mem_total": 80.0}
    _, marks = records(packed(envelope("ProcessTable", row | {"gpu": gpu})))
    assert by_name(marks)["memory"] == (
        10, {"device_id": 1, "backend": "cuda", "allocator_reserved_bytes": 20,
             "device_total_bytes": 80, "process_rss_bytes": 100, "host_total_bytes": 1000},
    )  # fmt: skip


def test_a_system_row_has_marks_of_the_host_and_of_each_device() -> None:
    row = {"seq": 1, "ts": 1000.25, "cpu": 50.0, "ram_used": 100.0, "ram_total": 1000.0,
           "gpu_available": True, "gpu_count": 1,
           "gpus": [[30.0, 10.0, 80.0, 60.0, 200.0, 350.0]]}  # fmt: skip
    device = {"hw.id": "cuda:0"}
    _, marks = records(packed(envelope("SystemTable", row)))
    assert by_name(marks) == {
        "system.cpu.utilization": (0.5, {"traceml.cpu_percent": 50.0}),
        "system.memory.usage": (100, {"host_total_bytes": 1000}),
        "hw.gpu.utilization": (0.3, device | {"traceml.util_percent": 30.0}),
        "hw.gpu.memory.usage": (10, device | {"device_total_bytes": 80}),
        "hw.temperature": (60.0, device),
        "hw.power": (200.0, device | {"traceml.power_limit_watts": 350.0}),
    }


def test_samples_are_metrics(tmp_path: Path) -> None:
    from cirron_otel.core.targets.otlp.config import Signal
    from cirron_otel.tools.convert.convert import ConvertRequest, convert

    path = tmp_path / "metrics.jsonl"
    report = convert(
        ConvertRequest(f"traceml:{frames_folder('v050/ddp2_short')}", str(path),
                       signal=Signal.METRICS)
    )  # fmt: skip
    assert report.exit_code == 0
    assert report.points == 198
    names = {
        metric["name"]
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    }
    assert names == {"process.memory.usage", "process.cpu.utilization"}


def test_the_environment_is_on_the_session() -> None:
    row = {"seq": 0, "ts": 1000.0, "topology": "single", "distributed_initialized": True}
    spans, marks = records(packed(envelope("RuntimeEnvironmentTable", row)))
    assert spans["cirron.session"]["attrs"] == {
        "source": "traceml", "traceml.topology": "single", "traceml.distributed_initialized": True
    }  # fmt: skip
    assert [mark["name"] for mark in marks] == ["traceml.RuntimeEnvironmentTable"]


STAMP = {"session_id": "mine", "run_nonce": "ab", "session_source": "explicit"}


def finished(**fields: Any) -> bytes:
    message = {"_traceml_control": "rank_finished", "timestamp": 1005.0, "global_rank": 0}
    return packed(message | fields)


def test_the_stamp_puts_ranks_into_one_trace_and_run() -> None:
    documents = []
    for rank in (0, 1):
        row = step_row(1, 1000.5)
        some, _ = converted(
            packed(envelope("StepTimeTable", row, **STAMP, global_rank=rank)), finished()
        )
        documents += some
    trace = digest("traceml-run", "mine", "ab")[:16].hex()
    otel = [document["otel"] for document in documents]
    assert {each["trace_id"] for each in otel} == {trace}
    assert {each["session_trace_id"] for each in otel} == {trace}
    assert len({each["session"] for each in otel}) == 2
    assert {each["session"][16:] for each in otel} == {trace[16:]}
    attributes = otel[0]["resource"]["attributes"]
    assert attributes == {
        "host.name": "vm", "cirron.world_size": 1, "cirron.local_rank": 0,
        "cirron.run.id": trace, "cirron.run.name": "mine",
    }  # fmt: skip


def test_the_end_of_a_rank() -> None:
    step = packed(envelope("StepTimeTable", step_row(1, 1000.5), **STAMP))
    ended, _ = records(step, finished(**STAMP))
    assert ended["cirron.session"]["end_ns"] == 1005 * NS
    assert "otel" not in ended["cirron.session"]
    torn, _ = records(step)
    assert torn["cirron.session"]["attrs"]["incomplete"] is True
    assert torn["cirron.session"]["otel"]["status"]["code"] == 2
    unstamped, _ = records(packed(envelope("StepTimeTable", step_row(1, 1000.5))))
    assert "incomplete" not in unstamped["cirron.session"]["attrs"]


def test_rows_of_a_control_message_are_reported() -> None:
    """They are kept in the frame, and no rows of the process."""
    step = packed(envelope("StepTimeTable", step_row(1, 1000.5), **STAMP))
    tables = {"StepTimeTable": [step_row(2, 1001.5)]}
    for fields, names in (
        ({"tables": tables}, ["tables"]),
        ({"meta": meta(), "body": {"tables": tables}}, ["body", "meta"]),
        ({"_traceml_control": "another", "tables": tables}, ["tables"]),
        ({"_traceml_control": "cirron_otel_history", "rows": [], "tables": tables}, ["tables"]),
    ):
        found, findings = converted(step, finished(**STAMP, **fields))
        expected = [f"key '{name}' of a control message: kept, not converted" for name in names]
        assert findings[: len(names)] == expected
        spans = [span for batch in found for span in batch["spans"] if span["name"] == "step"]
        assert [span["index"] for span in spans] == [1]
    assert converted(step, finished(**STAMP))[1] == []


def test_the_flat_shape_and_json_and_single_messages() -> None:
    row = step_row(1, 1000.5, forward_time=event(3))
    flat = meta() | {"tables": {"StepTimeTable": [row]}}
    canonical = envelope("StepTimeTable", row)
    forms = [
        packed(canonical), msgspec.msgpack.encode(canonical), packed(flat),
        json.dumps([canonical]).encode(), json.dumps(canonical).encode(),
    ]  # fmt: skip
    for payload in forms:
        spans, _ = records(payload)
        assert spans["forward"]["end_ns"] - spans["forward"]["start_ns"] == 3_000_000
        assert spans["step"]["pid"] == 7
        assert converted(payload)[1] == []


def test_unknown_tables_and_keys_are_preserved_and_reported_once() -> None:
    row = step_row(1, 1000.5, mine=event(3)) | {"new": [1]}
    frame = packed(
        envelope("StepTimeTable", row),
        envelope("LayerMemoryTable", {"ts": 1000.0, "layers": {"a": 1}, "nan": float("nan")}),
        envelope("ProcessTable", {"ts": 1000.0, "cpu": 1.0, "cpu_cores": 1, "more": "x"}),
        envelope("x", {"ts": 1000.0}) | {"extra": 1},
    )
    documents, messages = converted(frame, frame)
    spans = {span["name"]: span for span in documents[0]["spans"]}
    marks = by_name(documents[0]["marks"])
    assert spans["step"]["traceml"] == {
        "new": [1], "events": {"_traceml_internal:mine": event(3)}
    }  # fmt: skip
    assert marks["traceml.LayerMemoryTable"] == (
        "LayerMemoryTable", {"ts": 1000.0, "layers": {"a": 1}, "nan": "nan"}
    )  # fmt: skip
    assert marks["process.cpu.utilization"][1]["traceml"] == {"more": "x"}
    assert len(messages) == len(set(messages)) == 4
    assert any("LayerMemoryTable" in message for message in messages)
    assert any("key 'extra'" in message for message in messages)


@pytest.mark.parametrize(
    "row",
    [
        step_row(1, float("nan")), step_row(1, -1.0), step_row(1, "x"), step_row(1, 1e300),
        {"seq": 1, "step": 1, "timestamp": 1000.5, "events": 5},
    ],
)  # fmt: skip
def test_a_step_without_a_valid_time_or_events_is_a_mark(row: dict[str, Any]) -> None:
    spans, marks = records(packed(envelope("StepTimeTable", row)))
    assert "step" not in spans
    assert [mark["name"] for mark in marks] == ["traceml.StepTimeTable"]
    assert converted(packed(envelope("StepTimeTable", row)))[1]


def test_event_with_an_invalid_duration_is_preserved_as_an_attribute() -> None:
    row = step_row(1, 1000.5, forward_time=event(float("nan")), step_time=event(-3))
    spans, _ = records(packed(envelope("StepTimeTable", row)))
    assert set(spans) == {"step", "cirron.session"}
    assert set(spans["step"]["traceml"]["events"]) == {
        "_traceml_internal:forward_time", "_traceml_internal:step_time"
    }  # fmt: skip


def test_a_row_without_any_time_is_reported() -> None:
    message = {"meta": {"rank": 0}, "body": {"tables": {"x": [{"a": 1}]}}}
    documents, messages = converted(packed(message))
    assert documents[0]["marks"] == []
    assert "without a valid time" in messages[0]


def test_ids_are_digests_of_the_stream() -> None:
    frame = packed(envelope("StepTimeTable", step_row(1, 1000.5, forward_time=event(3))))
    spans, _ = records(frame)
    session = digest("traceml-stream", frame)[:16].hex()
    assert spans["cirron.session"]["id"] == session
    digits = digest("traceml-record", session, 0, 0).hex()
    assert spans["step"]["id"] == digits[:16] + session[16:]
    assert spans["forward"]["id"] == digits[16:32] + session[16:]
