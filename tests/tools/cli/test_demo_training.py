"""`demo` with torch: real trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.cli.training import train
from tests.kit.recorder.demo import IMAGES
from tests.kit.servers.server import OtlpServer
from tests.tools.conftest import Run

pytestmark = pytest.mark.torch


BEGINNING = "cirron-otel: training a small network on the CPU, for a few seconds"


def shape(fold: dict[str, Any]) -> Any:
    """Return the parts of a fold that do not depend on durations."""
    below = [shape(child) for child in fold["children"]]
    return fold["name"], fold["indexes"], fold["times"], sorted(fold["marks"]), below


PHASES = ["data_load", "forward", "loss", "backward"]
WITH_ZERO_GRAD = ["data_load", "zero_grad", "forward", "loss", "backward"]


def test_it_trains_whatever_is_configured(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cirron.yaml").write_text("profiling:\n  enabled: false\n  snapshots: none\n")
    off = {"CIRRON_ENABLED": "false", "OTEL_SDK_DISABLED": "true", "TRACEPARENT": "nonsense"}
    result = run("demo", "--output", "kept", "--json", env=off)
    assert result.returncode == 0
    first, *others = result.stderr.splitlines()
    assert first == BEGINNING
    assert all("still working, " in line for line in others)
    document = json.loads(result.stdout)
    assert (document["trained"], document["reason"], document["equal"]) == (True, None, True)
    (session,) = document["trees"]
    set_up, early, last = session["children"]
    assert (set_up["name"], set_up["children"]) == ("set_up", [])
    assert (early["indexes"], last["indexes"]) == ("0-1", "2")
    step, evaluation = early["children"]
    assert [each["name"] for each in step["children"]] == [*WITH_ZERO_GRAD, "optimizer_step"]
    assert [each["name"] for each in evaluation["children"]] == ["data_load", "forward"]
    first, second, optimizer_step = last["children"][0]["children"]
    assert (first["indexes"], second["indexes"]) == ("0", "1")
    assert optimizer_step["name"] == "optimizer_step"
    assert [each["name"] for each in first["children"]] == WITH_ZERO_GRAD
    assert [each["name"] for each in second["children"]] == PHASES
    assert (early["snapshots"], last["snapshots"]) == (24, 12)
    assert float(last["marks"]["accuracy"]) > 0.8
    assert document["breakdown"]["unattributed"]["total_ns"] >= 0
    assert document["collector"]["spans"] == document["spans"] > 1_000
    assert document["collector"]["slowest_step"]["durationNs"] > 0
    assert document["endpoint"] is None
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "spool",
        "state",
        "trace.db",
        "trace.jsonl",
    ]


def test_demo_recording_matches_a_fresh_training_run(run: Run, tmp_path: Path) -> None:
    """If this fails, make the recording again with `python -m tests.kit.recorder.demo`."""
    session = train(tmp_path / "made", IMAGES, CIRRON_SAMPLE_INTERVAL="none")
    trees = [
        json.loads(run("spool", "show", path, "--fold", "--json").stdout)["trees"]
        for path in (tmp_path / "made", RECORDING)
    ]
    assert [shape(tree) for tree in trees[0]] == [shape(tree) for tree in trees[1]]
    listed = json.loads(run("spool", "ls", tmp_path / "made", "--json").stdout)
    assert [each["id"] for each in listed["sessions"]] == [session]


def test_a_second_training_in_the_same_place_is_shown_alone(
    run: Run, tmp_path: Path, server: OtlpServer
) -> None:
    assert run("demo", "--replay", "--output", "kept").returncode == 0
    result = run("demo", "--output", "kept", env=server.environ)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("This is what ")
    assert result.stdout.count("cirron.session  ") == 1
    assert "every value of every batch is the same" in result.stdout
    (trace,) = server.trace_ids()
    assert f"look for trace {trace})" in result.stdout
