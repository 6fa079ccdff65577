"""Each rule of docs/stormlog.md, "Mapping", with a vector."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.importers.stormlog.marks import (
    SESSION_FIELDS,
    record_of,
    session_of,
)
from cirron_otel.ids import digest

from .conftest import EVENTS, SIMULATED
from .returning import (
    batches_in,
    imported,
    lines,
    recorded,
    records_in,
)

SESSION = "5f0c54a5-6a6f-4b8e-8d5a-0f5f3f1a2b3c"
HEX = SESSION.replace("-", "")
T = 1_700_000_000_000_000_000


def event(number: int, kind: str = "sample", **changes: Any) -> dict[str, Any]:
    """A record of schema 3 at `T + number`."""
    record = json.loads(EVENTS[0])
    record |= {"session_id": SESSION, "timestamp_ns": T + number, "event_type": kind}
    return record | {"context": None, "metadata": {}} | changes


def boundary(number: int, action: str, scope: str, **changes: Any) -> dict[str, Any]:
    """A boundary of a phase of thread 7."""
    path = changes.pop("path", [scope])
    phase = {
        "action": action, "name": path[-1], "path": path, "depth": len(path),
        "scope_id": f"{SESSION}:{scope}", "parent_scope_id": None, "thread_id": 7,
        "thread_name": "MainThread", "sequence": number,
    }  # fmt: skip
    return event(number, f"phase_{action}", metadata={"phase_scope": phase | changes})


def segment(folder: Path, *records: dict[str, Any]) -> Path:
    """A spool made of one segment."""
    path = folder / "segment-000001.jsonl"
    path.write_bytes(lines(*records))
    return imported(path, folder)[0]


def by_name(spool: Path) -> dict[str, dict[str, Any]]:
    """The spans by name."""
    return {span["name"]: span for span in records_in(spool, "spans")}


def scope_half(scope: str) -> str:
    """The first half of the id of a phase's span."""
    return digest(SESSION, f"{SESSION}:{scope}")[:8].hex()


def test_a_session_with_a_uuid_has_its_digits_as_id(tmp_path: Path) -> None:
    span = by_name(segment(tmp_path, event(1), event(9, "stop")))["cirron.session"]
    assert span["id"] == HEX
    assert span["parent_id"] is None
    assert (span["start_ns"], span["end_ns"]) == (T + 1, T + 9)
    assert (span["pid"], span["rank"]) == (19411, 0)
    assert span["attrs"] == {
        "status": "completed", "source": "artifact:segment-000001.jsonl", "session_id": SESSION,
    }  # fmt: skip
    assert "otel" not in span


def test_another_session_id_becomes_a_digest(tmp_path: Path) -> None:
    span = by_name(segment(tmp_path, event(1, session_id="run one")))["cirron.session"]
    assert span["id"] == digest("stormlog-session", "run one")[:16].hex()
    assert span["attrs"]["session_id"] == "run one"


def test_host_job_and_ranks_are_resource_attributes(tmp_path: Path) -> None:
    spool = segment(tmp_path, event(1, rank=1, local_rank=0, world_size=2, job_id="j", host="h"))
    (batch,) = batches_in(spool)
    assert batch["otel"]["session"] == HEX
    assert batch["otel"]["resource"]["attributes"] == {
        "host.name": "h", "cirron.job.id": "j", "cirron.world_size": 2, "cirron.local_rank": 0,
    }  # fmt: skip


@pytest.mark.parametrize("status", ["running", "interrupted", "incomplete"])
def test_any_status_but_completed_is_incomplete(status: str, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    sink.mkdir()
    (sink / "segment-000001.jsonl").write_bytes(lines(event(1), event(5, "stop")))
    manifest = json.loads((SIMULATED / "sink" / "manifest.json").read_bytes())
    manifest["sessions"][0] |= {
        "session_id": SESSION, "status": status, "started_at_ns": T, "ended_at_ns": None,
    }  # fmt: skip
    (sink / "manifest.json").write_text(json.dumps(manifest))
    span = by_name(imported(sink, tmp_path)[0])["cirron.session"]
    assert span["attrs"]["status"] == status
    assert span["attrs"]["incomplete"] is True
    assert span["attrs"]["source"] == "stormlog.tracker"
    assert span["otel"]["status"]["code"] == 2
    assert status in span["otel"]["status"]["message"]
    assert (span["start_ns"], span["end_ns"]) == (T, T + 5)


def test_a_phase_is_a_span(tmp_path: Path) -> None:
    spool = segment(
        tmp_path,
        boundary(1, "enter", "train", attributes={"lr": 0.1}),
        boundary(2, "enter", "step", path=["train", "step"], attributes={"step": 4, "a": None}),
        boundary(5, "exit", "step", path=["train", "step"]),
        boundary(6, "exit", "train"),
        event(7, "stop"),
    )
    spans = by_name(spool)
    train, step = spans["train"], spans["step"]
    assert train["id"] == scope_half("train") + HEX[16:]
    assert (train["parent_id"], train["index"], train["attrs"]) == (HEX, None, {"lr": 0.1})
    assert step["parent_id"] == train["id"]
    assert (step["index"], step["attrs"]) == (4, {"step": 4, "a": None})
    assert (step["start_ns"], step["end_ns"]) == (T + 2, T + 5)
    assert (step["thread_id"], step["pid"], step["rank"]) == (7, 19411, 0)
    assert step["memory_peak_bytes"] is None


@pytest.mark.parametrize("value", [True, 1.0, "4", None])
def test_only_an_integer_is_an_index(value: object, tmp_path: Path) -> None:
    spool = segment(tmp_path, boundary(1, "enter", "epoch", attributes={"epoch": value}), event(3))
    assert by_name(spool)["epoch"]["index"] is None


def test_a_phase_without_an_exit_ends_with_the_recording(tmp_path: Path) -> None:
    spool = segment(tmp_path, boundary(1, "enter", "train"), event(8), event(9))
    span = by_name(spool)["train"]
    assert (span["end_ns"], span["attrs"]) == (T + 9, span["attrs"] | {"synthetic_end": True})


def test_a_scope_id_that_is_used_again_gets_a_number(tmp_path: Path) -> None:
    spool = segment(
        tmp_path,
        boundary(1, "enter", "a"), boundary(2, "exit", "a"),
        boundary(3, "enter", "a"), boundary(4, "exit", "a"),
    )  # fmt: skip
    first, second = (s for s in records_in(spool, "spans") if s["name"] == "a")
    assert first["id"] == scope_half("a") + HEX[16:]
    assert second["id"] == digest(SESSION, f"{SESSION}:a", 1)[:8].hex() + HEX[16:]


def test_every_event_is_one_mark(tmp_path: Path) -> None:
    record = event(
        3, "peak", context="New peak", allocator_allocated_bytes=5, allocator_reserved_bytes=7,
        allocator_active_bytes=None, allocator_change_bytes=-2, device_free_bytes=0,
        metadata={"backend": "cuda", "none": None},
    )  # fmt: skip
    spool = segment(tmp_path, boundary(1, "enter", "train"), record, boundary(5, "exit", "train"))
    marks = records_in(spool, "marks")
    assert [mark["name"] for mark in marks] == [
        "stormlog.phase_enter", "stormlog.peak", "stormlog.phase_exit",
    ]  # fmt: skip
    assert {mark["span_id"] for mark in marks} == {scope_half("train") + HEX[16:]}
    mark = marks[1]
    assert mark["id"] == hashlib.sha256(lines(record)[:-1]).hexdigest()[:32]
    assert (mark["ts_ns"], mark["value_type"], mark["value"]) == (T + 3, "int", 5)
    assert mark["attrs"] == {
        "device_id": 0,
        "allocator_reserved_bytes": 7,
        "allocator_change_bytes": -2,
        "device_used_bytes": 0,
        "device_free_bytes": 0,
        "device_total_bytes": 17179869184,
        "collector": "stormlog.cuda_tracker",
        "sampling_interval_ms": 50,
        "context": "New peak",
        "metadata": {"backend": "cuda", "none": None},
    }
    assert "stormlog" not in mark
    (batch,) = batches_in(spool)
    assert batch["stormlog"]["session"] == {
        key: record[key] for key in SESSION_FIELDS if record[key] is not None
    }


def test_a_null_never_becomes_a_number(tmp_path: Path) -> None:
    names = ("allocated", "reserved", "active", "inactive", "change")
    nulls: dict[str, Any] = dict.fromkeys([f"allocator_{name}_bytes" for name in names])
    nulls |= dict.fromkeys(["device_used_bytes", "device_free_bytes", "device_total_bytes"])
    record = event(1, schema_version=4, **nulls)
    (mark,) = records_in(segment(tmp_path, record), "marks")
    assert (mark["value_type"], mark["value"]) == ("string", "sample")
    assert not mark["attrs"].keys() & nulls.keys()
    session = dict(zip(SESSION_FIELDS, session_of(record), strict=True))
    assert record_of(mark, session) == record


def test_record_text_not_derivable_from_the_mark_is_preserved(tmp_path: Path) -> None:
    record = event(1, metadata={"b": 1, "a": 2})
    text = json.dumps(record).encode()
    path = tmp_path / "segment-000001.jsonl"
    path.write_bytes(text + b"\n")
    (mark,) = records_in(imported(path, tmp_path)[0], "marks")
    assert mark["stormlog"] == {"text": text.decode()}
    assert mark["attrs"]["metadata"] == {"b": 1, "a": 2}


def test_an_ambiguous_event_is_on_the_session(tmp_path: Path) -> None:
    spool = segment(
        tmp_path,
        boundary(1, "enter", "a"), boundary(2, "enter", "b", thread_id=8), event(3),
        event(4, metadata={"origin_thread_id": 8}),
        event(5, metadata={"origin_phase_scope_id": f"{SESSION}:a"}),
        boundary(6, "exit", "a"), boundary(7, "exit", "b", thread_id=8), event(8),
    )  # fmt: skip
    a, b = scope_half("a") + HEX[16:], scope_half("b") + HEX[16:]
    marks = records_in(spool, "marks")
    assert [mark["span_id"] for mark in marks] == [a, b, HEX, b, a, a, b, HEX]


def test_a_phase_whose_samples_reserve_nothing_has_a_reserved_peak_of_zero(tmp_path: Path) -> None:
    nothing = event(2, allocator_allocated_bytes=0, allocator_reserved_bytes=0)
    spool = segment(tmp_path, boundary(1, "enter", "a"), nothing, boundary(3, "exit", "a"))
    attrs = by_name(spool)["a"]["attrs"]
    assert attrs["cuda.memory_peak_bytes"] == attrs["cuda.memory_reserved_peak_bytes"] == 0


def test_samples_of_the_cpu_tracker_give_the_peak(tmp_path: Path) -> None:
    cpu = {"collector": "stormlog.cpu_tracker"}
    spool = segment(
        tmp_path,
        boundary(1, "enter", "a"),
        *(event(n, allocator_allocated_bytes=size, **cpu) for n, size in ((2, 5), (3, 9), (4, 7))),
        event(5, "peak", allocator_allocated_bytes=99, **cpu),
        boundary(6, "exit", "a"),
    )
    span = by_name(spool)["a"]
    assert span["memory_peak_bytes"] == 9
    assert span["attrs"] == {"memory_samples": 3}


def test_samples_of_a_device_give_the_attributes_of_cuda_memory(tmp_path: Path) -> None:
    spool = segment(
        tmp_path,
        boundary(1, "enter", "a"),
        event(1, allocator_allocated_bytes=4, allocator_reserved_bytes=10),
        event(6, allocator_allocated_bytes=3, allocator_reserved_bytes=12),
        boundary(6, "exit", "a"),
        event(7, allocator_allocated_bytes=100),
    )
    span = by_name(spool)["a"]
    assert span["memory_peak_bytes"] is None
    assert span["attrs"] == {
        "memory_samples": 2,
        "cuda.memory_peak_bytes": 4,
        "cuda.memory_reserved_peak_bytes": 12,
    }


def test_an_error_for_lack_of_memory_has_the_exception_of_its_bundle(tmp_path: Path) -> None:
    spans = by_name(imported(SIMULATED, tmp_path)[0])
    (found,) = spans["oom_step"]["otel"]["events"]
    assert found == {
        "name": "exception",
        "time_ns": 1795197918499728896,
        "attributes": {
            "exception.type": "torch.OutOfMemoryError",
            "exception.message": "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"
            " a total capacity of 16.00 GiB of which 9.50 GiB is free.",
        },
    }
    status = spans["oom_step"]["otel"]["status"]
    assert status["code"] == 2
    assert status["message"].startswith("torch.OutOfMemoryError: CUDA out of memory.")


def test_an_error_has_the_exception_of_the_bundle_that_it_names(tmp_path: Path) -> None:
    """The bundles of our own runs have the ids of scopes as names, which are in no order."""
    path = tmp_path / "sink"
    for name in ("a", "b", "c"):
        bundle = path / "oom_dumps" / name
        bundle.mkdir(parents=True)
        (bundle / "events.json").write_text("[]")
        (bundle / "metadata.json").write_text(json.dumps({
            "session_id": SESSION, "reason": "x", "exception_type": "MemoryError",
            "exception_module": "builtins", "exception_message": f"in {name}",
        }))  # fmt: skip
    oom = {"oom_reason": "x"}
    (path / "segment-000001.jsonl").write_bytes(
        lines(
            event(1, "error", metadata=oom),
            event(2, "error", metadata=oom | {"oom_dump_path": "oom_dumps/c"}),
            event(3, "error", metadata=oom | {"oom_dump_path": "C:\\dumps\\a\\"}),
            event(4, "error", metadata=oom | {"oom_dump_path": "elsewhere"}, context="at 4"),
        )
    )
    found = by_name(imported(path, tmp_path)[0])["cirron.session"]["otel"]["events"]
    messages = [each["attributes"]["exception.message"] for each in found]
    assert messages == ["in b", "in c", "in a", "at 4"]


def test_without_a_bundle_the_exception_has_the_reason(tmp_path: Path) -> None:
    spool = segment(tmp_path, event(1, "error", metadata={"oom_reason": "x"}, context="at 5"))
    (found,) = by_name(spool)["cirron.session"]["otel"]["events"]
    assert found["attributes"] == {"exception.type": "x", "exception.message": "at 5"}


def test_the_health_of_a_collector_is_in_the_attributes(tmp_path: Path) -> None:
    spool, _ = imported(SIMULATED, tmp_path)
    degraded = [m for m in records_in(spool, "marks") if m["name"] == "stormlog.collector_degraded"]
    assert [m["attrs"]["metadata"]["collector_health_status"] for m in degraded] == [
        "unhealthy", "degraded",
    ]  # fmt: skip


def test_a_bundle_adds_nothing_to_its_session(tmp_path: Path) -> None:
    """The events of a bundle are those of the sink, which count once."""
    (tmp_path / "both").mkdir()
    (tmp_path / "sink").mkdir()
    both, report = imported(SIMULATED, tmp_path / "both")
    alone, _ = imported(SIMULATED / "sink", tmp_path / "sink")
    assert report.duplicates == 64
    ids = [{m["id"] for m in records_in(spool, "marks")} for spool in (both, alone)]
    assert ids[0] == ids[1]


def test_times_are_unchanged(tmp_path: Path) -> None:
    spool, _ = imported(recorded("v043/distributed"), tmp_path)
    files = recorded("v043/distributed").rglob("*.jsonl")
    events = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    times = sorted(mark["ts_ns"] for mark in records_in(spool, "marks"))
    assert times == sorted(each["timestamp_ns"] for each in events)
