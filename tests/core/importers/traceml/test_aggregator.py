"""The real TraceML 0.5.0 reads the frames that are written for runs of our own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.conftest import leave_out
from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.spools.comparing import RECORDED, batches

from .peers import TRACEML_050
from .recordings import (
    SHORT,
    files_of,
    frames_folder,
    imported,
)
from .test_own_runs import span, spool_of

PROGRAM = Path(__file__).parent / "programs" / "aggregate.py"


def aggregated(frames: Path, folder: Path) -> dict[str, Any]:
    """The summary of the real aggregator, whose history is `folder`/telemetry."""
    try:
        python = TRACEML_050.make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), str(PROGRAM), str(folder / "telemetry"), *map(str, sorted(frames.iterdir()))],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["ok"]
    return document


def test_its_means_are_ours(tmp_path: Path) -> None:
    convert(ConvertRequest(str(RECORDED / "01_torch_basic"), f"traceml:{tmp_path}/frames"))
    document = aggregated(tmp_path / "frames", tmp_path)
    window = document["summary"]["step_time"]["global"]["window"]
    numbers = range(window["start_step"], window["end_step"] + 1)
    found = document["summary"]["step_time"]["groups"]["rows"]
    again, _ = imported(tmp_path / "frames", tmp_path, "again")
    durations: dict[str, list[float]] = {}
    for batch in batches(again).values():
        steps = {
            each["id"]
            for each in batch["spans"]
            if each["name"] == "step" and each["index"] in numbers
        }
        for each in batch["spans"]:
            if each["id"] in steps or each["parent_id"] in steps:
                milliseconds = (each["end_ns"] - each["start_ns"]) / 1e6
                durations.setdefault(each["name"], []).append(milliseconds)
    assert len(durations["step"]) == window["steps_analyzed"] == 24
    (metrics,) = (row["metrics"] for row in found.values())
    for metric, name in (
        ("step_time_ms", "step"), ("input_wait_ms", "data_load"), ("forward_ms", "forward"),
        ("backward_ms", "backward"), ("optimizer_ms", "optimizer_step"),
    ):  # fmt: skip
        assert metrics[metric] == pytest.approx(fmean(durations[name]), rel=1e-5)


def test_peaks_samples_and_the_end_are_read(tmp_path: Path) -> None:
    spans = [
        span(0, "cirron.session", None, 0, 6000),
        *(span(1 + n, "step", 0, 100 * n, 100 * n + 100, index=n, gpu_ns=70_000_000,
               attrs={"cuda.memory_peak_bytes": 5, "device": "cuda:0",
                      "cuda.memory_reserved_peak_bytes": 7}) for n in range(60)),
    ]  # fmt: skip
    convert(ConvertRequest(str(spool_of(tmp_path, spans)), f"traceml:{tmp_path}/frames"))
    document = aggregated(tmp_path / "frames", tmp_path)
    assert document["finished"] == [1]
    rows = document["summary"]["step_memory"]["groups"]["rows"]
    metrics = [
        (row["metrics"]["peak_allocated_bytes"], row["metrics"]["peak_reserved_bytes"])
        for row in rows.values()
    ]
    assert metrics == [(5.0, 7.0)]


def test_a_history_that_it_writes_has_the_steps_of_the_frames(tmp_path: Path) -> None:
    aggregated(frames_folder(SHORT), tmp_path)
    history, _ = imported(tmp_path / "telemetry", tmp_path, "from-history")
    wire, _ = imported(frames_folder(SHORT), tmp_path, "from-frames")
    found = [
        sorted(
            (each["rank"], each["name"], each["index"], each["start_ns"], each["end_ns"])
            for batch in batches(spool).values()
            for each in batch["spans"]
            if each["name"] != "cirron.session"
        )
        for spool in (history, wire)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 100
    assert files_of(tmp_path)["telemetry"][:6] == b"SQLite"
