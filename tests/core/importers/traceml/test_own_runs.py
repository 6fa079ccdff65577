"""Runs of our own as TraceML's frames: steps, phases and memory; everything else is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.spools.comparing import RECORDED, batches

from .recordings import (
    envelopes,
    files_of,
    imported,
    rows_of,
)

SESSION = "5e55105e55105e551111222233334444"
NS = 1_000_000_000


def span(number: int, name: str, parent: int | None, start: int, end: int, **fields: Any) -> Any:
    """A span; times in ms after 1,000 s. Number 0 is the session."""
    ids = [SESSION if n == 0 else f"{n:016x}{SESSION[16:]}" for n in (number, parent or 0)]
    return {
        "id": ids[0], "name": name, "parent_id": None if parent is None else ids[1], "index": None,
        "start_ns": 1000 * NS + start * 1_000_000, "end_ns": 1000 * NS + end * 1_000_000,
        "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None, "thread_id": 1, "pid": 9,
        "rank": 1, "attrs": {}, "mark_ids": [],
    } | fields  # fmt: skip


def mark(number: int, name: str, value: Any, at: int, **attrs: Any) -> Any:
    return {
        "id": f"{number:032x}", "span_id": SESSION, "name": name, "value_type": "int",
        "value": value, "attrs": attrs, "ts_ns": 1000 * NS + at * 1_000_000, "kind": "point",
    }  # fmt: skip


def spool_of(folder: Path, spans: list[Any], marks: list[Any] = []) -> Path:  # noqa: B006
    """A spool with one batch."""
    otel = {
        "session": SESSION,
        "resource": {"attributes": {
            "host.name": "h", "cirron.world_size": 2, "cirron.run.id": "r", "cirron.run.name": "n",
        }},
    }  # fmt: skip
    batch = {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": "f13ba32369274c18b1742532e096fd80",
        "created_ns": 1000 * NS, "spans": spans, "marks": marks, "snapshots": [], "otel": otel,
    }  # fmt: skip
    (folder / "run" / "spool").mkdir(parents=True)
    name = f"{1000 * NS:020d}-{batch['batch_id']}.json"
    (folder / "run" / "spool" / name).write_text(json.dumps(batch))
    return folder / "run"


def converted(spool: Path, folder: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """The files for a run, and what they do not contain."""
    report = convert(ConvertRequest(str(spool), f"traceml:{folder}/frames"))
    return files_of(folder / "frames"), report.losses


def test_a_step_with_its_phases(tmp_path: Path) -> None:
    spans = [
        span(0, "cirron.session", None, 0, 2000),
        span(1, "step", 0, 0, 100, index=4, gpu_ns=70_000_000,
             attrs={"cuda.memory_peak_bytes": 5, "cuda.memory_reserved_peak_bytes": 7}),
        span(2, "data_load", 1, 0, 10),
        span(3, "micro_step", 1, 10, 60),
        span(4, "forward", 3, 10, 40, gpu_ns=28_000_000),
        span(5, "loss", 3, 40, 45, gpu_ns=1_000_000),
        span(6, "backward", 3, 45, 60),
        span(7, "backward", 1, 60, 75),
        span(8, "optimizer_step", 1, 80, 90),
    ]  # fmt: skip
    files, losses = converted(spool_of(tmp_path, spans), tmp_path)
    (data,) = files.values()
    assert list(files) == ["rank1_pid9.frames"]
    (step,), (memory,) = (
        [row for _, table, row in rows_of([data]) if table == name]
        for name in ("StepTimeTable", "step_memory")
    )
    assert (step["timestamp"], step["step"]) == (1000.1, 4)
    sums = {
        name.removeprefix("_traceml_internal:"): next(iter(devices.values()))
        for name, devices in step["events"].items()
    }
    assert {name: (each["duration_ms"], each["n_calls"]) for name, each in sums.items()} == {
        "dataloader_next": (10, 1), "forward_time": (29, 2), "backward_time": (30, 2),
        "optimizer_step": (10, 1), "step_time": (70, 1),
    }  # fmt: skip
    assert sums["forward_time"] == {
        "is_gpu": True, "duration_ms": 29.0, "cpu_ms": 35.0, "gpu_ms": 29.0, "n_calls": 2
    }  # fmt: skip
    assert (memory["peak_alloc"], memory["peak_resv"]) == (5.0, 7.0)
    last = list(envelopes(data))[-1]
    assert last.control == "rank_finished"
    assert last.meta["session_id"] == "n"
    assert last.meta["run_nonce"] == "r"
    assert losses == {"positions of phases, of which TraceML has the sums": 6}


def test_everything_else_is_counted(tmp_path: Path) -> None:
    spans = [
        span(1, "epoch", 0, 0, 100),
        span(2, "step", 1, 0, 100, attrs={"lr": 1, "x": 2}, memory_peak_bytes=5, cpu_ns=7),
        span(3, "mine", 2, 0, 10),
        span(4, "forward", 1, 0, 10),
        span(5, "step", 1, 100, 101, start_ns=1795197971 * NS + 1, end_ns=1795197971 * NS + 3),
    ]
    marks = [mark(1, "loss", 5, 10), mark(2, "memory", 5, 10, device_id=-1, backend="cpu")]
    _, losses = converted(spool_of(tmp_path, spans, marks), tmp_path)
    assert losses == {
        "spans that are neither steps nor phases of steps": 3,
        "marks that are not samples of memory": 1,
        "attributes": 2,
        "CPU times and peaks of the resident set": 2,
        "times that a double of seconds rounds": 1,
    }


def test_samples_of_memory(tmp_path: Path) -> None:
    marks = [
        mark(1, "memory", 5, 10, device_id=-1, backend="cpu", host_total_bytes=100),
        mark(2, "memory", 6, 20, device_id=1, backend="cuda", device_total_bytes=80,
             allocator_reserved_bytes=7, process_rss_bytes=50),
    ]  # fmt: skip
    files, _ = converted(spool_of(tmp_path, [span(1, "step", 0, 0, 100)], marks), tmp_path)
    rows = [row for _, table, row in rows_of(files.values()) if table == "ProcessTable"]
    assert [(row["ram_used"], row["gpu"]) for row in rows] == [
        (5.0, None),
        (50.0, {"device": 1, "mem_used": 6.0, "mem_reserved": 7.0, "mem_total": 80.0}),
    ]
    spool, report = imported(tmp_path / "frames", tmp_path)
    assert report.exit_code == 0
    found = [
        (mark["value"], mark["attrs"]["device_id"])
        for batch in batches(spool).values()
        for mark in batch["marks"]
    ]
    assert found == [(5, -1), (6, 1)]


@pytest.mark.parametrize("numbers", [(0, 1, 0, 1), (None, None, None, None)])
def test_steps_with_repeated_numbers_are_renumbered(
    numbers: tuple[int | None, ...], tmp_path: Path
) -> None:
    spans = [
        span(1 + at, "step", 0, 10 * at, 10 * at + 10, index=number)
        for at, number in enumerate(numbers)
    ]
    files, _ = converted(spool_of(tmp_path, spans), tmp_path)
    assert [row["step"] for _, _, row in rows_of(files.values())] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["01_torch_basic", "07_ranks", "23_sigkill_plus_stray_tmp"])
def test_recordings_of_the_sdk(name: str, tmp_path: Path) -> None:
    """The steps and phases of a real run, and their durations, are found again."""
    source = RECORDED / name
    files, losses = converted(source, tmp_path)
    assert losses
    spool, report = imported(tmp_path / "frames", tmp_path)
    assert report.exit_code in (0, 1)  # 1 for lists that are empty

    def totals(folder: Path) -> dict[tuple[Any, str], list[int]]:
        spans = [span for batch in batches(folder).values() for span in batch["spans"]]
        steps = {span["id"] for span in spans if span["name"] in ("step", "batch")}
        found: dict[tuple[Any, str], list[int]] = {}
        for each in spans:
            if each["id"] in steps or each["parent_id"] in steps:
                name = "step" if each["id"] in steps else each["name"]
                total = found.setdefault((each["rank"], name), [0, 0])
                total[0] += 1
                total[1] += each["end_ns"] - each["start_ns"]
        return {key: total for key, total in found.items() if key[1] != "clip"}

    ours, theirs = totals(source), totals(spool)
    assert theirs.keys() == ours.keys()
    assert len(files) >= len({rank for rank, _ in ours})
    for key, (count, total) in ours.items():
        assert theirs[key][0] == (24 if key == (0, "forward") else count)  # two calls in a step
        assert theirs[key][1] == pytest.approx(total, abs=300 * count)


def test_odd_records_do_not_stop_the_conversion(tmp_path: Path) -> None:
    odd = span(3, "step", 0, 0, 10) | {"attrs": {"cuda.memory_peak_bytes": "x"}, "rank": None}
    spool = spool_of(tmp_path, [span(1, "step", 0, 0, 100), odd], [mark(1, "memory", None, 10)])
    files, losses = converted(spool, tmp_path)
    assert len(rows_of(files.values())) == 2
    assert losses["marks that are not samples of memory"] == 1


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    from cirron_otel.errors import InputError

    spool = spool_of(tmp_path, [span(0, "cirron.session", None, 0, 10)])
    with pytest.raises(InputError, match="neither steps nor samples"):
        converted(spool, tmp_path)
    assert not (tmp_path / "frames").exists()
