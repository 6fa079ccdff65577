"""The journal: whole or the one before, and read back as it was meant."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from cirron_otel.core.spool.journal import OwnerJournal, read_journal
from cirron_otel.core.spool.owner import Owner, is_alive
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.errors import InputError, TargetError
from tests.kit.spools.journals import (
    SESSION,
    WRITTEN_NS,
    journal,
    open_span,
)
from tests.kit.spools.made import span, span_id
from tests.kit.spools.processes import Process

OWNER = "0123456789ab"


@pytest.fixture
def paths(tmp_path: Path) -> SpoolPaths:
    return SpoolPaths.under(tmp_path)


def put(paths: SpoolPaths, content: bytes) -> None:
    paths.state.mkdir(exist_ok=True)
    (paths.state / f"journal-{OWNER}.json").write_bytes(content)


def test_written_journal_is_read_back(paths: SpoolPaths) -> None:
    owner = Owner.acquire(paths)
    kept = OwnerJournal(paths, owner)
    opened = [open_span(1, None), open_span(2, 1, attrs={"big": 10**30, "x": "é\ud800"})]
    closed = [span(3, 2)]
    kept.write(journal(owner.prefix, opened, closed, next_batch="00000000000000000007-x.json"))
    assert kept.path.stat().st_mode & 0o777 == 0o600
    read = read_journal(paths, owner.prefix)
    assert read is not None
    assert (read.state.session, read.state.written_ns) == (SESSION, WRITTEN_NS)
    assert [each.id for each in read.state.open] == [span_id(1), span_id(2)]
    assert (read.exact["open"], read.exact["closed"]) == (opened, closed)
    kept.remove()
    kept.remove()
    assert read_journal(paths, owner.prefix) is None
    owner.release()
    assert list(paths.state.iterdir()) == []


def test_a_journal_is_never_without_the_lock_of_its_owner(paths: SpoolPaths) -> None:
    owner = Owner.acquire(paths)
    shutil.rmtree(paths.state)
    OwnerJournal(paths, owner).write(journal(owner.prefix, [open_span(1, None)]))
    assert is_alive(paths, owner.prefix)
    assert read_journal(paths, owner.prefix) is not None
    owner.release()


def test_killed_process_leaves_a_complete_journal(paths: SpoolPaths) -> None:
    script = """
owner = Owner.acquire(paths)
kept = OwnerJournal(paths, owner)
kept.write(journal(owner.prefix, []))
say(owner.prefix)
for number in range(10**9):
    kept.write(journal(owner.prefix, [open_span(n, None) for n in range(number % 300)]))
"""
    for _ in range(5):
        with Process(script, paths.root) as process:
            prefix = process.line()
            process.kill()
        assert read_journal(paths, prefix) is not None


GOOD = json.loads(journal(OWNER, [open_span(1, None)]))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\x00",
        b"[" * 100_000,
        json.dumps(GOOD | {"version": 2}).encode(),
        json.dumps(GOOD | {"owner": "ba9876543210"}).encode(),
        json.dumps(GOOD | {"owner": "../../etc"}).encode(),
        json.dumps(GOOD | {"session": "x"}).encode(),
        json.dumps(GOOD | {"written_ns": 2**63}).encode(),
        json.dumps(GOOD | {"written_ns": -1}).encode(),
        json.dumps(GOOD | {"otel": None}).encode(),
        json.dumps(GOOD | {"next_batch": "../x.json"}).encode(),
        json.dumps(GOOD | {"open": [7]}).encode(),
        json.dumps(GOOD | {"open": [{"id": "x"}]}).encode(),
        json.dumps(GOOD | {"open": [open_span(1, None, start_ns=1.5)]}).encode(),
        json.dumps({k: v for k, v in GOOD.items() if k != "closed"}).encode(),
        json.dumps(GOOD)[:-20].encode(),
    ],
)
def test_damaged_journal_is_an_input_error(paths: SpoolPaths, content: bytes) -> None:
    put(paths, json.dumps(GOOD).encode())
    assert read_journal(paths, OWNER) is not None
    put(paths, content)
    with pytest.raises(InputError, match=r"journal .*0123456789ab\.json"):
        read_journal(paths, OWNER)


def test_one_that_cannot_be_written(paths: SpoolPaths) -> None:
    owner = Owner.acquire(paths)
    os.mkdir(paths.state / f"journal-{owner.prefix}.json")  # noqa: PTH102
    with pytest.raises(TargetError, match="cannot be written"):
        OwnerJournal(paths, owner).write(journal(owner.prefix, []))
    with pytest.raises(TargetError, match="cannot be written"):
        OwnerJournal(paths, owner).remove()
    assert not list(paths.state.glob("*.tmp"))
    owner.abandon()
