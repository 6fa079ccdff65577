"""SIGKILL: what was sealed is valid, and recovery leaves nothing that hangs in the air."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from cirron_otel.core.records.validate import validate_batch
from tests.kit.sessions.processes import run, start
from tests.kit.sessions.whole import (
    Whole,
    batch_files,
    recovered,
    whole,
)

PROCESSES, DIRECTORIES = 50, 10


def check_batches(directory: Path) -> None:
    """Each sealed batch is valid by itself, before anything is recovered."""
    for path in batch_files(directory):
        found = validate_batch(path.read_bytes(), path.name)
        assert [str(finding) for finding in found if finding.severity == "error"] == []


def check_numbers(own: Whole) -> None:
    """Of what a process made, all up to some moment is there, and nothing behind it."""
    for name in ("number a", "number b"):
        values = sorted(mark["value"] for mark in own.marks if mark["name"] == name)
        assert values == list(range(len(values)))


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Five die in each directory: the next one recovers what the one before it left."""
    places = [tmp_path / str(number % DIRECTORIES) for number in range(PROCESSES)]
    pipe = subprocess.PIPE
    halves = [start("killed", *places[part::2], stdout=pipe, stderr=pipe) for part in range(2)]
    pids: list[int] = []
    for half in halves:
        out, err = half.communicate(timeout=400)
        assert half.returncode == 0, err
        pids += json.loads(out)
    assert len(set(pids)) == PROCESSES
    incomplete = 0
    for directory in sorted(set(places)):
        check_batches(directory)
        incomplete += sum(done.incomplete for done in recovered(directory))
        found = whole(directory)
        seen = {span["pid"] for span in found.spans.values()}
        assert seen <= set(pids)
        assert sorted(span["pid"] for span in found.sessions) == sorted(seen)
        for pid in seen:
            check_numbers(found.of(pid))
    assert incomplete > 0


@pytest.mark.parametrize(
    ("number", "when"),
    [
        (1, "after the journal"), (1, "before the batch"), (1, "after the batch"),
        (2, "after the journal"), (2, "after the batch"), (3, "after the batch"),
        (4, "before the batch"), (4, "after the batch"),
    ],
)  # fmt: skip
def test_killed_at_a_write_of_a_flush_of_several_batches(
    tmp_path: Path, number: int, when: str
) -> None:
    done = run("killed_at", tmp_path, number, when)
    assert done.returncode == -signal.SIGKILL, done.stderr
    check_batches(tmp_path)
    recovered(tmp_path)
    found = whole(tmp_path)
    names = found.names()
    assert names["epoch"] == names["seen open"] == len(found.sessions) == 1
    assert names["step"] > (0 if number > 2 else -1)
    assert names["outer"] == 1 or not names["step"]
    assert list((tmp_path / "state").iterdir()) == []
