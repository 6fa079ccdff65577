"""Tracing changes no bit of a run: losses, weights, and the next values of every generator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit import forked_scripts, program_server, references
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.spool_trees import read_spool

from .programs import two_hundred_steps
from .programs.two_hundred_steps import EPOCHS, STEPS, UNTRACED

MODES = ("sampled", "full")


PROGRAM = Path(two_hundred_steps.__file__)
FILES = [PROGRAM, Path(forked_scripts.__file__), Path(program_server.__file__)]
"""The result of an untraced run depends on these."""


def _run(scripts: ForkedScripts, directory: Path, mode: str) -> str:
    """Return what the program prints."""
    done = scripts.script(PROGRAM, directory, mode, env={"CIRRON_SAMPLE_INTERVAL": "0.02"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs(
    scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, str]]:
    """By mode: the directory of the trace, and what the program printed."""
    found = {}
    for mode in (UNTRACED, *MODES):
        directory = tmp_path_factory.mktemp(mode)
        key = references.key_of(FILES, mode)
        printed = references.load(key) if mode == UNTRACED else None
        if printed is None:
            printed = _run(scripts, directory, mode)
            if mode == UNTRACED:
                references.store(key, printed)
        found[mode] = directory, printed
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
