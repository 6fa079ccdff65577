"""Tracing changes no bit of a run: losses, weights, and the next values of every generator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.sessions.processes import ROOT, environment
from tests.kit.sessions.spool_trees import read_spool

from .programs.two_hundred_steps import EPOCHS, STEPS, UNTRACED

MODES = ("sampled", "full")


def _start(directory: Path, mode: str) -> subprocess.Popen[str]:
    program = [
        sys.executable,
        "-m",
        "tests.sdk.instrumentation.torch.programs.two_hundred_steps",
        str(directory),
        mode,
    ]
    return subprocess.Popen(
        program,
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="", CIRRON_SAMPLE_INTERVAL="0.02"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """By mode: the directory that was traced into, and what the run came to."""
    directories = {mode: tmp_path_factory.mktemp(mode) for mode in (UNTRACED, *MODES)}
    processes = {mode: _start(path, mode) for mode, path in directories.items()}
    found = {}
    for mode, process in processes.items():
        out, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        found[mode] = (directories[mode], out)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_losses_weights_and_generators_are_the_same(
    mode: str, runs: dict[str, tuple[Path, str]]
) -> None:
    assert json.loads(runs[mode][1]) == json.loads(runs[UNTRACED][1])


@pytest.mark.parametrize("mode", MODES)
def test_the_run_was_sampled(mode: str, runs: dict[str, tuple[Path, str]]) -> None:
    spool = read_spool(runs[mode][0])
    assert spool.lost == []
    assert sum(mark["name"] == "memory" for mark in spool.marks) >= 10


@pytest.mark.parametrize("mode", MODES)
def test_the_run_was_traced(mode: str, runs: dict[str, tuple[Path, str]]) -> None:
    spool = read_spool(runs[mode][0])
    epochs = spool.session.find("epoch")
    assert len(epochs) == EPOCHS
    for epoch in epochs:
        steps = [child for child in epoch.children if child.name == "step"]
        assert len(steps) == STEPS
        for step in steps:
            phases = [child.name for child in step.children]
            first, *others = phases
            assert first == "data_load"
            assert others == ["zero_grad", "forward", "loss", "backward", "optimizer_step"]
    snapshots = [each for batch in spool.batches for each in batch["snapshots"]]
    assert {each["span_id"] for each in snapshots} == {epoch.record["id"] for epoch in epochs}
    if mode == "full":
        assert any(each["blob_uri"] for each in snapshots)
