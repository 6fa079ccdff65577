"""Processes of one run to which no launcher gives a rank: each has its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import pytest

from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.sdk.session.process_number import ProcessNumber, is_started_below_job
from tests.kit.sessions.processes import environment
from tests.kit.sessions.spool_trees import read_spool

RUN = [sys.executable, "-m", "cirron_otel"]
TRAIN = """
import sys
import cirron_otel as ci

def train(steps, is_flushed=False, opens=True):
    if opens:
        ci.profile(output_dir=".cirron", frameworks="none")
    for epoch in ci.epochs(range(1)):
        for step in ci.batches(range(steps)):
            with ci.scope("forward"):
                pass
    if is_flushed:
        ci.flush()
    else:
        ci.shutdown()
"""
SPAWNED = """
import multiprocessing

if __name__ == "__main__":
    how, main = sys.argv[1:]
    if main == "first":
        train(5, is_flushed=True)
    elif main == "sets-up":
        ci.profile(output_dir=".cirron", frameworks="none")
        with ci.scope("set-up"):
            pass
        ci.flush()
    opens = (how, main) != ("fork", "first")  # else the session of a forked child opens by itself
    create = multiprocessing.get_context(how).Process
    processes = [create(target=train, args=(n, False, opens)) for n in (2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
"""
STARTED = """
import subprocess

if len(sys.argv) > 1:
    train(int(sys.argv[1]), is_flushed=True)
    print("trained", flush=True)
    sys.stdin.read()
else:
    processes = [
        subprocess.Popen([sys.executable, __file__, n], stdin=-1, stdout=-1) for n in ("2", "3")
    ]
    for process in processes:  # both have trained before one of them ends
        assert process.stdout.readline() == b"trained\\n"
    for process in processes:
        process.communicate()
        assert process.returncode == 0
"""
CASES = {
    "spawn": (SPAWNED, ["spawn", "-"], {0: 2, 1: 3}),
    "fork": (SPAWNED, ["fork", "-"], {0: 2, 1: 3}),
    "spawn after a set-up": (SPAWNED, ["spawn", "sets-up"], {0: 2, 1: 3}),
    "spawn by a process that trains": (SPAWNED, ["spawn", "first"], {0: 5, 1: 2, 2: 3}),
    "fork by a process that trains": (SPAWNED, ["fork", "first"], {0: 5, 1: 2, 2: 3}),
    "a command starts processes": (STARTED, [], {0: 2, 1: 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_processes_without_ranks_are_reported_separately(tmp_path: Path, case: str) -> None:
    source, arguments, expected = CASES[case]
    (tmp_path / "train.py").write_text(TRAIN + source)
    command = [sys.executable, "train.py", *arguments]
    if source is STARTED:
        command = [*RUN, "run", "--output", ".cirron", "--", *command]
    ran(command, tmp_path)
    report = json.loads(ran([*RUN, "report", "--json", ".cirron"], tmp_path))
    counts = {each["rank"]: each["count"] for each in report["units"]["ranks"]}
    assert sorted(counts.values()) == sorted(expected.values())
    if source is SPAWNED:
        assert sorted(counts) == sorted(expected)
    spool = read_spool(tmp_path / ".cirron")
    steps = [each for each in spool.spans if each["name"] == "step"]
    assert len({(each["pid"], each["rank"]) for each in steps}) == len(expected)
    assert set(Counter(each["rank"] for each in steps).values()) == set(expected.values())
    kinds = {each["kind"] for each in report["findings"]}
    assert not kinds & {"RESTARTED", "RANK_MISSING"}
    assert not [*(tmp_path / ".cirron" / "state").glob("lease-*")]


def ran(command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, env=environment(CIRRON_QUIET="true"), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_number_is_free_again_after_the_end_of_its_process(tmp_path: Path) -> None:
    paths = SpoolPaths.under(tmp_path)
    first, second, third = (ProcessNumber(paths, "a run") for _ in range(3))
    assert (first.take(trains=True), second.take(trains=True), first.take(trains=True)) == (
        0,
        1,
        None,
    )
    assert ProcessNumber(paths, "another run").take(trains=True) == 0
    first.release()
    assert third.take(trains=True) == 0


def _take(root: Path) -> int | None:
    return ProcessNumber(SpoolPaths.under(root), "a run").take(trains=True)


def test_a_process_of_a_pool_has_its_place_among_the_processes(tmp_path: Path) -> None:
    """The main process trains, so its children are counted from 1."""
    number = ProcessNumber(SpoolPaths.under(tmp_path), "a run")
    assert number.take(trains=True) == 0
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(_take, (tmp_path,)) is not None
        assert pool.apply(_take, (tmp_path,)) != 0


def test_only_processes_below_the_first_of_a_job_are_started_by_one() -> None:
    variable = "CIRRON_OTEL_JOB_PID"
    assert not is_started_below_job({})
    assert not is_started_below_job({variable: str(os.getppid())})
    assert is_started_below_job({variable: str(os.getpid())})


def test_a_spool_that_cannot_be_written_leaves_the_rank_at_zero(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    assert ProcessNumber(SpoolPaths.under(tmp_path), "a run").take(trains=True) == 0
