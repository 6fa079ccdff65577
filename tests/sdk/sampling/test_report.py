"""The report's section on memory, for samples of our own and for imported Stormlog events."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import cirron_otel as ci
from cirron_otel.core.records.memory_marks import memory_mark
from cirron_otel.tools.cli.main import run
from tests.kit.html_page import Page

SCHEMA = Path(__file__).parents[3] / "docs" / "report.schema.json"
T0 = 1_700_000_000_000_000_000
MIB = 2**20
SESSION = "0" * 15 + "1" + "f" * 16


class Recording:
    """A spool of one batch: a session with a step that has two phases."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.span("cirron.session", SESSION, None)
        self.step = self.span("step", "", SESSION)
        self.forward = self.span("forward", "", self.step)
        self.backward = self.span("backward", "", self.step)

    def span(self, name: str, id_: str, parent: str | None, **attrs: Any) -> str:
        id_ = id_ or f"{len(self.spans) + 1:016x}" + "f" * 16
        self.spans.append({
            "id": id_, "name": name, "parent_id": parent, "index": None, "start_ns": T0,
            "end_ns": T0 + 10_000_000_000, "cpu_ns": None, "gpu_ns": None,
            "memory_peak_bytes": None, "thread_id": 1, "pid": 7, "rank": 0, "attrs": attrs,
            "mark_ids": [],
        })  # fmt: skip
        return id_

    def mark(self, span: str, name: str, value: Any, **attrs: Any) -> None:
        number = len(self.marks) + 1
        kind = "int" if type(value) is int else "string"
        self.marks.append({
            "id": f"{number + 100:016x}" + "f" * 16, "span_id": span, "name": name,
            "value_type": kind, "value": value, "attrs": attrs,
            "ts_ns": T0 + number * 1_000_000_000, "kind": "point",
        })  # fmt: skip
        owner = next(each for each in self.spans if each["id"] == span)
        owner["mark_ids"].append(self.marks[-1]["id"])

    def write(self, directory: Path) -> Path:
        (directory / "spool").mkdir()
        batch = {
            "schema_version": 1, "batch_id": "11111111-1111-4111-8111-111111111111",
            "created_ns": T0, "spans": self.spans, "marks": self.marks, "snapshots": [],
            "sdk_version": "0.3.0",
        }  # fmt: skip
        name = f"{T0}-11111111.json"
        (directory / "spool" / name).write_text(json.dumps(batch))
        return directory


def our_sample(allocated: int, reserved: int, used: int, device: int = 0) -> dict[str, Any]:
    return {
        "device_id": device, "backend": "cuda", "allocator_reserved_bytes": reserved,
        "device_used_bytes": used, "device_total_bytes": 4096 * MIB,
    }  # fmt: skip


def imported(allocated: int, reserved: int, used: int) -> dict[str, Any]:
    return {
        "collector": "stormlog.cuda_tracker", "device_id": 0, "sampling_interval_ms": 50,
        "allocator_reserved_bytes": reserved, "device_used_bytes": used,
        "device_total_bytes": 4096 * MIB, "metadata": {},
    }  # fmt: skip


@pytest.fixture(params=["memory", "stormlog.sample"])
def recording(request: pytest.FixtureRequest) -> Recording:
    recording = Recording()
    make = our_sample if request.param == "memory" else imported
    for span, *sizes in (
        (recording.forward, 100, 300, 350), (recording.backward, 200, 400, 900),
        (recording.forward, 150, 500, 520), (recording.step, 50, 400, 450),
    ):  # fmt: skip
        allocated, reserved, used = (each * MIB for each in sizes)
        recording.mark(span, request.param, allocated, **make(allocated, reserved, used))
    return recording


def read(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    run(["report", str(directory), "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    return document


def test_devices_with_their_gaps_and_peaks_by_phase(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = read(recording.write(tmp_path), capsys)
    assert document["memory"]["devices"] == [{
        "rank": 0, "device": "cuda:0", "samples": 4, "min_bytes": 50 * MIB, "max_bytes": 200 * MIB,
        "max_reserved_bytes": 500 * MIB, "max_device_used_bytes": 900 * MIB,
        "device_total_bytes": 4096 * MIB, "max_device_gap_bytes": 500 * MIB,
        "max_allocator_gap_bytes": 350 * MIB, "last_device_gap_bytes": 50 * MIB,
        "last_allocator_gap_bytes": 350 * MIB,
    }]  # fmt: skip
    phases = [
        (each["name"], each["samples"], each["sampled_peak_bytes"], each["peak_bytes"])
        for each in document["memory"]["phases"]
    ]
    assert phases == [
        ("backward", 1, 200 * MIB, None), ("forward", 2, 150 * MIB, None),
        ("step", 1, 50 * MIB, None),
    ]  # fmt: skip
    assert document["marks"] == [], "samples of memory are in no other section"


def test_exact_peaks_are_listed_next_to_the_sampled_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording()
    recording.spans[2]["attrs"] = {"cuda.memory_peak_bytes": 180 * MIB}
    recording.spans[3]["attrs"] = {"cuda.memory_peak_bytes": 250 * MIB}
    recording.spans[3]["memory_peak_bytes"] = 777
    recording.mark(recording.forward, "memory", MIB, **our_sample(MIB, MIB, MIB))
    document = read(recording.write(tmp_path), capsys)
    assert [list(each.values()) for each in document["memory"]["phases"]] == [
        [0, "forward", "cuda:0", 1, MIB, 180 * MIB],
        [0, "backward", "cuda", 0, None, 250 * MIB],
        [0, "backward", "cpu", 0, None, 777],
    ]


def test_peaks_of_samples_are_not_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording()
    recording.mark(recording.forward, "stormlog.sample", MIB, **imported(MIB, MIB, MIB))
    recording.spans[2]["attrs"] = {"memory_samples": 3, "cuda.memory_peak_bytes": 300 * MIB}
    recording.spans[3]["attrs"] = {"memory_samples": 1, "cuda.memory_peak_bytes": 200 * MIB}
    document = read(recording.write(tmp_path), capsys)
    assert [list(each.values()) for each in document["memory"]["phases"]] == [
        [0, "forward", "cuda:0", 1, 300 * MIB, None],
        [0, "backward", "cuda:0", 0, 200 * MIB, None],
    ]


def test_the_tree_shows_a_sample_as_a_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording()
    recording.mark(recording.forward, "memory", 2_500_000, **our_sample(1, 2, 3))
    recording.mark(recording.backward, "loss", 2_500_000)
    run(["spool", "show", str(recording.write(tmp_path))])
    shown = capsys.readouterr().out
    assert "memory=2.5 MB" in shown
    assert "loss=2500000" in shown


def test_the_resident_set_has_no_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording()
    cpu = imported(MIB, MIB, MIB) | {"device_id": -1, "collector": "stormlog.cpu_tracker"}
    recording.mark(recording.forward, "stormlog.sample", MIB, **cpu)
    (device,) = read(recording.write(tmp_path), capsys)["memory"]["devices"]
    assert device["device"] == "cpu"
    assert {device[name] for name in device if "gap" in name} == {None}
    run(["report", str(tmp_path), "--full"])
    assert "Gaps" not in capsys.readouterr().out


def test_an_error_is_shown_among_many_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording()
    for number in range(1100):
        warning = imported(1, 1, 1) | {"context": f"warning {number}"}
        recording.mark(recording.step, "stormlog.warning", MIB, **warning)
    oom = imported(1, 1, 1) | {"metadata": {"oom_reason": "exhausted"}}
    recording.mark(recording.step, "stormlog.error", MIB, **oom)
    document = read(recording.write(tmp_path), capsys)
    alerts = document["memory"]["alerts"]
    assert len(alerts) == 1000
    assert alerts[-1]["kind"] == "oom"
    page = tmp_path / "report.html"
    run(["report", str(tmp_path), "--full", "--html", str(page)])
    assert "oom (cuda:0, rank 0): exhausted in step" in " ".join(capsys.readouterr().out.split())
    assert page.read_text().count("oom (cuda:0, rank 0): exhausted") == 1


def test_imported_events_are_not_listed_as_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording()
    for name in ("stormlog.phase_enter", "stormlog.start", "stormlog.cleanup"):
        recording.mark(recording.step, name, MIB, **imported(1, 1, 1))
    recording.mark(recording.step, "stormlog", 5)
    document = read(recording.write(tmp_path), capsys)
    assert [each["name"] for each in document["marks"]] == ["stormlog"]


def test_alerts_of_both_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording()
    step = recording.step
    limit = {"limit": "cgroup", "limit_bytes": 100, "threshold": 0.85, "share": 0.9}
    recording.mark(step, "memory", MIB, device_id=-1, backend="cpu")
    recording.mark(step, "memory.warning", 90, **limit)
    recording.mark(step, "memory.degraded", "cgroup", error="OSError: gone")
    recording.mark(step, "memory.recovered", "cgroup", failures=3, degraded_ns=5)
    recording.mark(step, "oom", 4096, reason="DefaultCPUAllocator", backend="cpu")
    recording.mark(step, "oom", "unknown", reason="MemoryError", backend="cpu")
    recording.mark(step, "oom", "unknown", reason="CUBLAS_STATUS_ALLOC_FAILED", backend="cuda")
    out = {"reason": "torch.OutOfMemoryError", "backend": "cuda", "device_id": 1}
    recording.mark(step, "oom", 2048, requested="2.00 KiB", **out)
    recording.mark(step, "oom", 7)
    recording.mark(step, "stormlog.critical", MIB, **imported(1, 1, 1) | {"context": "95 %"})
    recording.mark(step, "stormlog.error", MIB, **imported(1, 1, 1))
    oom = imported(1, 1, 1) | {"metadata": {"oom_reason": "cuda out of memory"}}
    recording.mark(step, "stormlog.error", MIB, **oom)
    recording.mark(step, "memory.warning", 5)
    document = read(recording.write(tmp_path), capsys)
    alerts = [(a["kind"], a["device"], a["detail"]) for a in document["memory"]["alerts"]]
    assert alerts == [
        ("warning", "cgroup", "cgroup: 90 % of the limit"),
        ("degraded", "cpu", "cgroup: OSError: gone"),
        ("recovered", "cpu", "cgroup"),
        ("oom", "cpu", "DefaultCPUAllocator: 4,096 bytes requested"),
        ("oom", "cpu", "MemoryError: an unknown size requested"),
        ("oom", "cuda", "CUBLAS_STATUS_ALLOC_FAILED: an unknown size requested"),
        ("oom", "cuda:1", "torch.OutOfMemoryError: 2,048 bytes requested"),
        ("critical", "cuda:0", "95 %"),
        ("oom", "cuda:0", "cuda out of memory"),
    ]
    names = [each["name"] for each in document["marks"]]
    assert names == ["memory.warning", "oom", "stormlog.error"], "the other marks of these names"


def test_an_error_of_a_real_session_is_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ci.profile(output_dir=tmp_path, exporters="none", frameworks=[], handle_signals=False)
    with contextlib.suppress(MemoryError), ci.scope("step", 3):
        bytearray(1 << 62)
    ci.shutdown()
    (alert,) = read(tmp_path, capsys)["memory"]["alerts"]
    assert (alert["kind"], alert["device"], alert["scope"]) == ("oom", "cpu", "step")
    assert alert["detail"] == "MemoryError: an unknown size requested"


def test_the_terminal_and_the_page(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording.mark(recording.step, "memory.critical", 1, limit="host", share=0.96)
    directory = recording.write(tmp_path)
    page = tmp_path / "report.html"
    run(["report", str(directory), "--full", "--html", str(page)])
    text = capsys.readouterr().out
    assert "Memory:" in text
    assert "Gaps on cuda:0 of rank 0: used outside of the allocator up to 524 MB" in text
    assert "critical (host, rank 0): host: 96 % of the limit" in text
    read_page = Page(page.read_text())
    assert "memory" in read_page.ids
    assert [row[0] for row in read_page.tables["The highest memory by phase"]][-3:] == [
        "backward", "forward", "step"
    ]  # fmt: skip
    assert "The memory of each device" in read_page.tables
    assert 'aria-label="Memory of cuda:0' in page.read_text()
    assert page.read_text().count("critical (host, rank 0)") == 2, "in the chart and in the list"


def test_a_run_without_samples_has_no_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = read(Recording().write(tmp_path), capsys)
    assert document["memory"] == {"devices": [], "phases": [], "alerts": []}
    run(["report", str(tmp_path), "--full"])
    assert "Memory:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "attrs"),
    [
        ("memory", 5, None),
        ("memory", 5, {}),
        ("memory", 5.0, {"device_id": 0}),
        ("memory", -1, {"device_id": 0}),
        ("memory", 2**70, {"device_id": 0}),
        ("memory", True, {"device_id": 0}),
        ("memory", 5, {"device_id": "0"}),
        ("memory.warning", 5, {"share": "x", "limit": "host"}),
        ("memory.degraded", 5, {"error": []}),
        ("oom", 5, {"backend": "cpu"}),
        ("loss", 5, {"device_id": 0}),
        (None, 5, {"device_id": 0}),
        ("stormlog.sample", None, {"device_id": 0}),
        ("stormlog.error", 5, {"metadata": "x"}),
        ("stormlog.start", 5, {"device_id": 0}),
    ],
)
def test_other_marks_are_not_mistaken_for_samples(name: Any, value: Any, attrs: Any) -> None:
    mark = memory_mark(name, value, attrs)
    assert mark is None
