"""`runs ls` and `--run`: every command distinguishes the runs in one spool."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel import exactjson
from cirron_otel.core.analysis.run_selection import choose_run
from cirron_otel.core.analysis.runs import Run as SpoolRun
from cirron_otel.core.analysis.runs import read_runs
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.errors import UsageError
from cirron_otel.tools.cli.main import run as run_command
from tests.kit.servers.server import OtlpServer
from tests.kit.sessions.processes import environment
from tests.tools.conftest import SPOOLS, one_line

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = """
import cirron_otel as ci

for name, steps in (("baseline", 2), ("same", 3), ("same", 4)):
    ci.profile(name=name, frameworks="none", config={"lr": 0.1})
    for epoch in ci.epochs(range(2)):
        for step in ci.batches(range(steps)):
            ci.mark("loss", 1.0)
    ci.shutdown()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spool of three runs: one script, recorded in one process."""
    directory = tmp_path_factory.mktemp("runs")
    (directory / "train.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "train.py"], cwd=directory, env=environment(), check=True)
    return directory / ".cirron"


@pytest.fixture
def three(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the same spool in the test's directory."""
    return Path(shutil.copytree(recorded, tmp_path / ".cirron"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `cirron-otel` in the test's directory and in this process: a new one takes a second."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = run_command([*map(str, words)])
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, out, err)

    return call


@pytest.fixture(scope="module")
def runs(recorded: Path) -> list[SpoolRun]:
    return read_runs(SpoolReader(recorded)).runs


def steps(result: subprocess.CompletedProcess[str]) -> int:
    """Return the number of steps in a report."""
    document = json.loads(result.stdout)
    return sum(rank["steps"]["times"] for rank in document["ranks"] if rank["rank"] is not None)


def test_the_runs_of_a_spool(run: Run, three: Path, runs: list[SpoolRun]) -> None:
    result = run("runs", "ls")
    assert (result.returncode, result.stderr) == (0, "")
    head, _, *lines = result.stdout.splitlines()
    assert head.split() == [
        "run", "name", "status", "start", "duration", "ranks", "steps", "script",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines] == [each.id[:8] for each in runs]
    assert [line.split()[1:3] for line in lines] == [
        ["baseline", "closed"], ["same", "closed"], ["same", "closed"],
    ]  # fmt: skip
    assert [line.split()[-2:] for line in lines] == [[n, "train"] for n in ("4", "6", "8")]
    document = json.loads(run("runs", "ls", "--json").stdout)
    first = document["runs"][0]
    assert (document["run_count"], first["name"], first["steps"]) == (3, "baseline", 4)
    assert (first["script"], first["ranks"], first["status"]) == ("train", [0], "closed")
    assert first["resource"]["cirron.config.lr"] == 0.1


def test_a_report_is_of_the_last_run(run: Run, three: Path) -> None:
    result = run("report", "--json")
    assert (result.returncode, steps(result)) == (0, 8)
    line = one_line(result, 0)
    assert "3 runs; this is the last" in line
    assert "same" in line
    assert "--run" in line


@pytest.mark.parametrize(("wanted", "count"), [("baseline", 4), ("last", 8), ("all", 18)])
def test_a_report_of_the_run_that_is_named(run: Run, three: Path, wanted: str, count: int) -> None:
    result = run("report", "--json", "--run", wanted)
    assert (result.returncode, result.stderr, steps(result)) == (0, "", count)
    name = {"baseline": "baseline", "last": "same"}.get(wanted)
    told = json.loads(result.stdout)["run"]
    assert (told and told["name"]) == name


def test_by_the_beginning_of_the_id(run: Run, three: Path, runs: list[SpoolRun]) -> None:
    result = run("report", "--json", "--run", runs[1].id[:10])
    assert (result.returncode, result.stderr, steps(result)) == (0, "", 6)


@pytest.mark.parametrize(
    "command",
    [
        ("report",), ("spool", "show"), ("convert", ".cirron", "out.jsonl"),
        ("export", ".cirron"), ("diff", "--run", "baseline"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_name_that_is_ambiguous_or_unknown(
    run: Run, three: Path, runs: list[SpoolRun], command: tuple[str, ...]
) -> None:
    """Exit code 2, and nothing is written."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    result = run(*command, "--run", "same", env=env)
    assert result.stdout == ""
    line = one_line(result, 2)
    assert "'same' matches 2 runs" in line
    assert all(each.id in line for each in runs[1:])
    result = run(*command, "--run", "nosuch", env=env)
    assert result.stdout == ""
    assert "no run has the name or id 'nosuch'" in one_line(result, 2)
    assert not (three.parent / "out.jsonl").exists()


def test_unreadable_batch_is_reported_for_each_run_it_may_belong_to(
    run: Run, tmp_path: Path
) -> None:
    program = """
import sys
import cirron_otel as ci
ci.profile(name=sys.argv[1], frameworks="none")
for step in ci.batches(range(4)):
    ci.flush()
"""
    for name in ("first", "second"):
        subprocess.run(
            [sys.executable, "-c", program, name], cwd=tmp_path, env=environment(), check=True
        )
    first, second = read_runs(SpoolReader(tmp_path / ".cirron")).runs
    torn = sorted(second.batches)[1]
    path = tmp_path / ".cirron" / "spool" / torn
    path.write_bytes(path.read_bytes()[:-20])
    for options in ((), ("--run", "second"), ("--run", "last"), ("--run", second.id[:8])):
        result = run("report", *options)
        assert result.returncode == 1
        assert f"skipped: {torn}: not JSON" in result.stderr
    result = run("convert", ".cirron", "out.jsonl", "--run", "second")
    assert result.returncode == 1
    assert torn in result.stderr
    for options in (("--run", "first"), ("--run", first.id)):
        result = run("report", *options)
        assert (result.returncode, result.stderr) == (0, "")
    assert run("report", "--run", "all").returncode == 1


def batches(directory: Path) -> dict[str, Any]:
    return {each.name: exactjson.loads(each.data) for each in SpoolReader(directory)}


def test_a_run_is_converted_and_comes_back(
    run: Run, three: Path, runs: list[SpoolRun], tmp_path: Path
) -> None:
    """Only the run's batches come back, unchanged; its id and name are in the OTLP resource."""
    assert run("convert", ".cirron", "run.jsonl", "--run", "baseline").returncode == 0
    text = (tmp_path / "run.jsonl").read_text()
    assert f'"key":"cirron.run.id","value":{{"stringValue":"{runs[0].id}"}}' in text
    assert '"key":"service.name","value":{"stringValue":"train"}' in text
    assert runs[1].id not in text
    assert run("convert", "run.jsonl", "back").returncode == 0
    wanted = {name: batch for name, batch in batches(three).items() if name in runs[0].batches}
    assert batches(tmp_path / "back") == wanted
    assert steps(run("report", "run.jsonl", "--json")) == 4
    assert run("convert", ".cirron", "all.jsonl").returncode == 0
    assert run("convert", "all.jsonl", "again", "--run", "baseline").returncode == 0
    assert batches(tmp_path / "again") == wanted


def test_a_run_is_exported(run: Run, three: Path, runs: list[SpoolRun], server: OtlpServer) -> None:
    result = run("export", ".cirron", "--run", "baseline", "--json", env=server.environ)
    assert json.loads(result.stdout)["spans"] == runs[0].spans
    result = run("export", ".cirron", "--run", "last", "--follow", env=server.environ)
    assert "--follow" in one_line(result, 2)


def test_the_tree_of_a_run(run: Run, three: Path) -> None:
    document = json.loads(run("spool", "show", "--run", "baseline", "--json").stdout)
    assert len(document["trees"]) == 1
    assert document["spans"] == 1 + 2 + 4
    assert len(json.loads(run("spool", "show", "--json").stdout)["trees"]) == 3


def test_two_runs_of_a_spool_side_by_side(run: Run, three: Path) -> None:
    result = run("diff", "--run", "baseline", "--run", "last")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[:2] == [
        "A  .cirron, baseline: 4 steps of 1 rank",
        "B  .cirron, same: 8 steps of 1 rank",
    ]
    document = json.loads(run("diff", "--run", "baseline", "--run", "last", "--json").stdout)
    assert [document[side]["run"]["name"] for side in "ab"] == ["baseline", "same"]
    result = run("diff")
    assert "B is missing" in one_line(result, 2)


def test_each_batch_of_other_software_is_in_the_run_of_its_records() -> None:
    """The rows of marks and those of spans are both numbered from 1: a query must not mix them."""
    found = read_runs(SpoolReader(SPOOLS / "07_ranks"))
    assert [len(each.batches) for each in found.runs] == [3] * 7 + [2]
    assert len(frozenset().union(*(each.batches for each in found.runs))) == 23
    for each in found.runs:
        ids = {id_ for batch in SpoolReader(SPOOLS / "07_ranks") if batch.name in each.batches
               for id_ in _span_ids(batch.data)}  # fmt: skip
        assert len(ids) == each.spans


def _span_ids(data: bytes) -> list[str]:
    return [span["id"] for span in exactjson.loads(data)["spans"]]


def test_recordings_without_sessions_are_read_as_one_run(run: Run) -> None:
    """cirron-sdk's batches name no session, so it is not known which of them form a run."""
    ranks = SPOOLS / "07_ranks"
    result = run("report", ranks, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert {each["rank"] for each in json.loads(result.stdout)["ranks"]} == {-3, 0, 1, 2, 3, 5}
    reader = SpoolReader(ranks)
    chosen = choose_run(reader, "last")
    assert chosen.run is not None
    assert {batch.name for batch in reader} == chosen.run.batches
    assert chosen.run.steps == 10


def older(spool: Path, change: Any) -> list[SpoolRun]:
    """Return the runs of a spool after changing its batches into those from before run ids."""
    for file in sorted((spool / "spool").iterdir()):
        batch = exactjson.loads(file.read_bytes())
        attributes = batch["otel"]["resource"]["attributes"]
        for name in [name for name in attributes if name.startswith("cirron.run.")]:
            del attributes[name]
        change(batch)
        file.write_bytes(exactjson.dumps(batch))
    return read_runs(SpoolReader(spool)).runs


def test_older_recordings_are_grouped_by_trace(three: Path, runs: list[SpoolRun]) -> None:
    assert [each.steps for each in older(three, lambda _: None)] == [4, 6, 8]
    (one,) = older(three, lambda batch: batch["otel"].update(session_trace_id="7" * 32))
    assert (one.id, one.spans) == ("7" * 32, sum(each.spans for each in runs))


def test_older_ranks_of_a_job_that_overlap(three: Path) -> None:
    seen: dict[str, int] = {}

    def change(batch: dict[str, Any]) -> None:
        rank = seen.setdefault(batch["otel"]["session"], len(seen) % 2)
        batch["otel"]["resource"]["attributes"]["cirron.job.id"] = "nightly"
        for span in batch["spans"]:
            span["rank"] = rank
            span["start_ns"] = 1 if len(seen) == 2 else span["start_ns"]

    found = older(three, change)
    assert [(each.ranks, each.steps) for each in found] == [([0, 1], 6), ([0], 8)]


def test_a_spool_without_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty" / "spool").mkdir(parents=True)
    assert run("runs", "ls", "empty").stdout == "empty/spool: no run\n"
    assert run("report", "empty").returncode == 0
    result = run("report", "empty", "--run", "last")
    assert "no run" in one_line(result, 2)


def test_runs_in_python_and_in_a_notebook(three: Path, runs: list[SpoolRun]) -> None:
    found = ci.runs(three)
    assert [each.id for each in found] == [each.id for each in runs]
    assert found.named("last").steps == 8
    assert found.named("baseline") == found[0]
    with pytest.raises(UsageError, match="matches 2 runs"):
        found.named("same")
    shown = found._repr_html_()
    assert shown.count("<tr>") == 4
    assert "<td>baseline</td>" in shown
    hostile = dataclasses.replace(found[0], name="<script>")._repr_html_()
    assert "<script>" not in hostile
    assert "&lt;script&gt;" in hostile
    assert "cirron.config.lr" in hostile


KILLED = """
import os
import cirron_otel as ci

ci.profile(name="killed", frameworks="none")
with ci.scope("step", 0):
    ci.flush()
    os.kill(os.getpid(), 9)
"""
FAILED = """
import cirron_otel as ci

ci.profile(name="failed", frameworks="none")
with ci.scope("step", 0):
    raise ValueError("too large")
"""


def test_a_run_that_failed_and_one_that_was_killed(run: Run, three: Path, tmp_path: Path) -> None:
    """There are also runs that ended well; each run has its own report and state."""
    for program, code in ((KILLED, -9), (FAILED, 1)):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment(), check=False,
            capture_output=True,
        )  # fmt: skip
        assert done.returncode == code
    states = [(each.name, each.status) for each in read_runs(SpoolReader(three)).runs]
    assert states[-2:] == [("killed", "killed"), ("failed", "failed")]
    assert {state for _, state in states[:3]} == {"closed"}
    for name, count in (("baseline", 0), ("killed", 1), ("failed", 1)):
        document = json.loads(run("report", "--json", "--run", name).stdout)
        assert len(document["failures"]) == count, name
        assert all(each["state"] == name for each in document["failures"])
