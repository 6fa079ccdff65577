"""Commands on a run of more ranks than a terminal or a page can list."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cirron_otel.core.spool.writer import SpoolWriter
from tests.kit.servers.command_server import shared_server
from tests.tools.conftest import COMMAND

from .ranks import Job, SimulatedRank

JOB = Job.of(1100, 1.5, 3, None)
_MOST_LINES = 300


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("many")
    writer = SpoolWriter(directory, durable=False)
    for rank in JOB.present:
        for each in SimulatedRank(JOB, rank).batches():
            writer.write(each.batch.data, each.batch.name)
    return directory


def output_of(*command: str | Path) -> str:
    done = shared_server().run([COMMAND, *map(str, command)], Path.cwd(), os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_the_report_is_short_and_names_the_straggler(spool: Path) -> None:
    text = output_of("report", spool, "--html", spool / "page.html", "--no-pager")
    lines = text.splitlines()
    assert len(lines) < _MOST_LINES
    assert JOB.straggler > 16
    assert f"Rank {JOB.straggler} is slow in forward" in " ".join(text.split())
    assert [line for line in lines if line.startswith("The time, ")]
    assert (spool / "page.html").stat().st_size < 2_000_000
    report = json.loads(output_of("report", spool, "--json"))
    assert [each["rank"] for each in report["ranks"]] == JOB.present
    stragglers = [each for each in report["findings"] if each["kind"].endswith("STRAGGLER")]
    assert stragglers[0]["ranks"] == [JOB.straggler]


def test_runs_are_one_line(spool: Path) -> None:
    (line,) = output_of("runs", "ls", spool).splitlines()[2:]
    assert f"and {len(JOB.present) - 1000} more" in line
    (run,) = json.loads(output_of("runs", "ls", spool, "--json"))["runs"]
    assert run["rank_count"] == len(JOB.present)
    assert run["ranks"] == JOB.present[:1000]


def test_the_diagnosis_is_short(spool: Path) -> None:
    assert len(output_of("diagnose", spool).splitlines()) < _MOST_LINES
