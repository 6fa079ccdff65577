"""The rank of a process that no variable of a launcher contains, read from torch.distributed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.processes import ROOT, environment
from tests.kit.sessions.spool_trees import read_spool

from . import trees
from .test_processes import check

MODULE = "tests.sdk.instrumentation.torch.programs.spawned_ranks"
SCRIPT = ROOT / f"{MODULE.replace('.', '/')}.py"
PROGRAM = [sys.executable, "-m", MODULE]
RUN = [sys.executable, "-m", "cirron_otel"]
TREE = """
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward{module=DistributedDataParallel}
      backward
      optimizer_step
"""


def ran(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("moment", ["before", "after"])
def test_spawned_processes_have_their_ranks(
    scripts: ForkedScripts, tmp_path: Path, moment: str
) -> None:
    """Parametrised over a script and a module run with `-m`."""
    if moment == "before":
        name, done = SCRIPT.stem, scripts.script(SCRIPT, moment, tmp_path)
    else:
        name, done = MODULE, scripts.module(MODULE, moment, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    spool = read_spool(tmp_path)
    trained = [each for each in spool.sessions if "worker" not in each.record["attrs"]]
    workers = [each for each in spool.sessions if "worker" in each.record["attrs"]]
    for sessions in (trained, workers):
        assert sorted(each.record["rank"] for each in sessions) == [0, 1]
    for session in trained:
        check(session, TREE)
    assert {span["rank"] for span in spool.spans if span["pid"] == pid_of(trained, 1)} == {1}
    resources = [batch["otel"]["resource"]["attributes"] for batch in spool.batches]
    assert len({each["cirron.run.id"] for each in resources}) == 1
    assert {each["cirron.run.script"] for each in resources} == {name}
    assert {each["cirron.world_size"] for each in resources if "cirron.world_size" in each} >= {2}


def test_spawned_processes_without_a_process_group_are_numbered(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    """The rank is the index that `spawn` passes to the function, also in the workers."""
    done = scripts.module(MODULE, "alone", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    sessions = read_spool(tmp_path).sessions
    ranks = {each.record["attrs"].get("worker"): set() for each in sessions}
    for each in sessions:
        ranks[each.record["attrs"].get("worker")].add(each.record["rank"])
    assert ranks == {None: {0, 1}, 0: {0, 1}}
    report = json.loads(ran(*RUN, "report", "--json", str(tmp_path)).stdout)
    assert report["units"]["ranks"] == [{"rank": 0, "count": 3}, {"rank": 1, "count": 3}]
    assert [each["rank"] for each in report["ledger"]["ranks"]] == [0, 1]


def pid_of(sessions: list[trees.Node], rank: int) -> int:
    found: int = next(each.record["pid"] for each in sessions if each.record["rank"] == rank)
    return found


def test_ranks_below_the_command_line(tmp_path: Path) -> None:
    """The program imports cirron_otel but never calls profile()."""
    command = [*RUN, "run", "--output", str(tmp_path), "--", *PROGRAM, "never", "-"]
    done = ran(*command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert " of 2 ranks" in done.stderr
    report = json.loads(ran(*RUN, "report", "--json", str(tmp_path)).stdout)
    assert {each["rank"] for each in report["ranks"]} == {0, 1, None}  # None: the job's own session


def test_a_launcher_goes_first(scripts: ForkedScripts, tmp_path: Path) -> None:
    """Variables that state a rank take precedence; the ranks are forked, not spawned."""
    variables = {"RANK": "5", "WORLD_SIZE": "8"}
    done = scripts.script(SCRIPT, "after", tmp_path, "fork", env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {each.record["rank"] for each in read_spool(tmp_path).sessions} == {5}
