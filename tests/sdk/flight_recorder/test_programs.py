"""Training programs that run out of memory: the phase that failed has the mark, and all goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.processes import environment
from tests.kit.sessions.spool_trees import Spool, read_spool

from .reading import (
    REQUESTED,
    assert_failed,
    bundles,
    every,
    oom_nodes,
    ooms_of,
    read_bundle,
)

PROGRAMS = Path(__file__).parent / "programs"
MIB = 1 << 20


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False,
        env=environment(OMP_NUM_THREADS="1", CIRRON_QUIET="true"),
    )  # fmt: skip


def assert_path_failed(spool: Spool) -> None:
    """The session and the last epoch, which the error left, have ERROR."""
    session = spool.session
    assert_failed(session, "RuntimeError")
    assert_failed(session.find("epoch")[-1], "RuntimeError")
    assert session.record["attrs"]["failure_cause"] == "out of memory"


# Torch calls the hooks of an optimizer before and after a step, and none of them if it raises. So
# the phase is still open when the error ends the program; a folded phase is not the current scope.
UNCAUGHT = {
    ("forward",): "forward", ("backward",): "backward", ("optimizer_step",): "optimizer_step",
    ("data_load",): "data_load", ("step",): "step",
    ("forward", "folded"): "forward", ("optimizer_step", "folded"): "step",
}  # fmt: skip
CAUGHT = {
    ("forward",): "forward", ("backward",): "backward", ("optimizer_step",): None,
    ("backward", "folded"): "backward",
}  # fmt: skip
"""Where the error is, by where it is raised, and whether phases have records (`detail_every`)."""
Ended = dict[tuple[str, ...], tuple[Path, subprocess.CompletedProcess[str]]]


def ended(
    scripts: ForkedScripts, folder: Path, ways: Iterable[tuple[str, ...]], ending: str
) -> Ended:
    """Run a training for each way."""
    pytest.importorskip("torch")
    directories = {way: folder / "-".join(way) for way in ways}
    return {
        way: (each, scripts.script(PROGRAMS / "training.py", each, way[0], ending, *way[1:]))
        for way, each in directories.items()
    }


@pytest.fixture(scope="module")
def uncaught(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return ended(scripts, tmp_path_factory.mktemp("uncaught"), UNCAUGHT, "uncaught")


@pytest.fixture(scope="module")
def caught(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return ended(scripts, tmp_path_factory.mktemp("caught"), CAUGHT, "caught")


@pytest.mark.parametrize("way", UNCAUGHT, ids=" ".join)
def test_an_uncaught_error_is_on_its_phase(way: tuple[str, ...], uncaught: Ended) -> None:
    directory, done = uncaught[way]
    assert done.returncode == 1
    assert done.stderr.count("DefaultCPUAllocator") == 1
    assert "cirron" not in done.stderr.split("Traceback")[0]
    spool = read_spool(directory)
    (node,) = oom_nodes(spool)
    assert node.name == UNCAUGHT[way]
    (mark,) = ooms_of(node)
    assert mark["value"] == REQUESTED
    assert mark["ts_ns"] <= node.record["end_ns"]
    assert_failed(node, "RuntimeError")
    assert_path_failed(spool)
    if node.name != "data_load":
        step = spool.session.find("step")[-1]
        assert step.record["index"] == 2
        assert node in every(step)
    (bundle,) = bundles(directory)
    files = read_bundle(bundle)
    assert bundle.name == node.record["id"]
    path = files["metadata.json"]["context"].split(" / ")
    assert (path[0], path[-1].split()[0]) == ("cirron.session", node.name)


@pytest.mark.parametrize("way", CAUGHT, ids=" ".join)
def test_a_caught_error_is_on_its_phase_and_training_goes_on(
    way: tuple[str, ...], caught: Ended
) -> None:
    directory, done = caught[way]
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    spool = read_spool(directory)
    nodes = oom_nodes(spool)
    assert [node.name for node in nodes] == ([] if CAUGHT[way] is None else [CAUGHT[way]])
    for node in nodes:
        assert_failed(node, "RuntimeError")
    assert "failure_cause" not in spool.session.record["attrs"]
    assert len(spool.session.find("step")) == 4
    assert len(bundles(directory)) == len(nodes)


def test_a_retry_with_half_the_batch_has_as_much_memory_as_without_us(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    told = {}
    for mode in ("plain", "traced"):
        variables = {"CIRRON_QUIET": "true"}
        done = scripts.script(PROGRAMS / "retry.py", tmp_path, mode, env=variables)
        assert done.returncode == 0, done.stderr
        told[mode] = json.loads(done.stdout)
    for mode, each in told.items():
        failed, retried = each["failed"], each["retried"]
        assert "DefaultCPUAllocator" in failed["error"], mode
        assert failed["during"] - failed["before"] > 300 * MIB, mode
        assert retried["bytes"] == 2 * 180 * MIB, mode
    plain, traced = (told[mode]["failed"] for mode in ("plain", "traced"))
    kept = (traced["after"] - traced["before"]) - (plain["after"] - plain["before"])
    assert kept < 16 * MIB, "the batch of the failed attempt takes 360 MiB"
    spool = read_spool(tmp_path)
    (node,) = oom_nodes(spool)
    (mark,) = ooms_of(node)
    assert (node.name, mark["value"]) == ("forward", 360 * MIB)


def test_a_memory_error_of_python(tmp_path: Path) -> None:
    done = run("memory_error", tmp_path)
    assert (done.returncode, done.stdout) == (0, "retried: 50\n"), done.stderr
    (node,) = oom_nodes(read_spool(tmp_path))
    (mark,) = ooms_of(node)
    assert (node.name, mark["value"], mark["attrs"]["reason"]) == ("step", "unknown", "MemoryError")
    assert len(bundles(tmp_path)) == 1


def test_a_memory_error_that_ends_the_program(tmp_path: Path) -> None:
    done = run("memory_error", tmp_path, "uncaught")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("MemoryError")
    spool = read_spool(tmp_path)
    assert [node.name for node in oom_nodes(spool)] == ["step", "step"]
    assert spool.session.record["attrs"]["failure_cause"] == "out of memory"
