"""Recovery after SIGKILL: real processes, killed at every point of the protocol."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.spool.cursor import Cursor
from cirron_otel.core.spool.journal import OwnerJournal, journal_path
from cirron_otel.core.spool.lease import claim
from cirron_otel.core.spool.owner import Owner, dead_owners, lock_path, owners
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.recovery import MESSAGE, Recovered, recover
from cirron_otel.core.spool.writer import SpoolWriter
from tests.kit.spools.journals import (
    SESSION,
    WRITTEN_NS,
    journal,
    open_span,
    sealed,
)
from tests.kit.spools.made import (
    EPOCH_NS,
    mark,
    span,
    span_id,
)
from tests.kit.spools.processes import Process
from tests.kit.spools.recorded import NAMES, copy_of

DEAD = "00000000dead"


@pytest.fixture
def paths(tmp_path: Path) -> SpoolPaths:
    return SpoolPaths.under(tmp_path)


def die(
    paths: SpoolPaths,
    opened: list[dict[str, Any]],
    closed: list[dict[str, Any]] | None = None,
    batches: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> None:
    """Leave what an owner leaves that was killed: batches, a journal, and a lock nobody holds."""
    writer = SpoolWriter(paths.root)
    for number, records in enumerate(batches or []):
        writer.write(*sealed(DEAD, number, **records))
    paths.state.mkdir(exist_ok=True)
    lock_path(paths, DEAD).touch()
    journal_path(paths, DEAD).write_bytes(journal(DEAD, opened, closed, **changes))


def spans_of(paths: SpoolPaths) -> dict[str, dict[str, Any]]:
    spans: dict[str, dict[str, Any]] = {}
    for batch in SpoolReader(paths.root):
        for each in json.loads(batch.data)["spans"]:
            assert each["id"] not in spans
            spans[each["id"]] = each
    return spans


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_open_scopes_are_closed_as_incomplete(paths: SpoolPaths) -> None:
    die(
        paths,
        [
            open_span(1, None, name="cirron.session"),
            open_span(2, 1, attrs={"lr": 1e-7, "incomplete": "mine"}, otel={"trace_id": SESSION}),
            open_span(3, 2, otel={"status": {"code": 2, "message": "out of memory"}}),
        ],
        batches=[
            {"spans": [span(4, 2, end_ns=WRITTEN_NS + 7)], "marks": [mark(21, 2), mark(20, 2)]},
            {"marks": [mark(22, 1), mark(5, 2), mark(6, 9)]},
        ],
    )
    [done] = recover(paths)
    assert done == Recovered(DEAD, SESSION, done.name, incomplete=3)
    assert done.name is not None
    batch = json.loads((paths.spool / done.name).read_bytes())
    assert batch["otel"] == {"session": SESSION, "trace_id": SESSION}
    assert (batch["created_ns"], batch["batch_id"][:12]) == (WRITTEN_NS, DEAD)
    assert batch["sdk_version"] == "0.3.0+cirron-otel.0.1.0"
    third, first, second = batch["spans"]
    assert [each["end_ns"] - WRITTEN_NS for each in (third, second, first)] == [0, 7, 7]
    assert second["mark_ids"] == [f"{number:032x}" for number in (5, 20, 21)]
    assert first["mark_ids"] == [f"{22:032x}"]
    incomplete = {"code": 2, "message": MESSAGE}
    assert first["otel"] == {"status": incomplete}
    assert second["otel"] == {"trace_id": SESSION, "status": incomplete}
    assert third["otel"]["status"]["message"] == "out of memory"
    assert (first["attrs"], second["attrs"]["incomplete"]) == ({"incomplete": True}, "mine")
    assert b'"lr":1e-7' in (paths.spool / done.name).read_bytes()
    assert list(paths.state.iterdir()) == []
    assert not [f for f in verify_spool(SpoolReader(paths.root)) if f.severity == "error"]


def test_recovery_preserves_batches_sealed_since_the_journal(paths: SpoolPaths) -> None:
    """The journal may be one flush old, and its next batch sealed or not."""
    die(
        paths,
        [open_span(1, None), open_span(2, 1), open_span(3, 2)],
        [span(4, 2), span(5, 2)],
        [{"spans": [span(3, 2), span(4, 2)]}],
    )
    before = spans_of(paths)
    [done] = recover(paths)
    assert (done.incomplete, done.closed) == (2, 1)
    after = spans_of(paths)
    assert set(after) == {span_id(number) for number in (1, 2, 3, 4, 5)}
    assert {key: after[key] for key in before} == before
    assert after[span_id(5)] == span(5, 2)


def test_a_parent_ends_with_its_last_child(paths: SpoolPaths) -> None:
    late = EPOCH_NS + 10**9
    die(
        paths,
        [open_span(1, None), open_span(2, 1), open_span(3, 2, start_ns=late)],
        [span(4, 3, end_ns=late + 5), span(6, 1)],
    )
    recover(paths)
    found = spans_of(paths)
    assert [found[span_id(number)]["end_ns"] for number in (1, 2, 3)] == [late + 5] * 3


def test_parents_in_a_circle_end_too(paths: SpoolPaths) -> None:
    die(paths, [open_span(1, 2), open_span(2, 1, start_ns=WRITTEN_NS + 5), open_span(3, 3)])
    recover(paths)
    assert [found["end_ns"] for found in spans_of(paths).values()].count(WRITTEN_NS + 5) == 2


def test_twice_is_once(paths: SpoolPaths) -> None:
    die(paths, [open_span(1, None), open_span(2, 1)], [span(3, 2)], [{"marks": [mark(7, 1)]}])
    kept = paths.state.parent / "kept"
    shutil.copytree(paths.state, kept)
    spool = files(paths.spool)
    assert recover(paths)[0].incomplete == 2
    once = files(paths.spool)
    assert recover(paths) == []
    # As if it had been killed between the batch and the end of the journal.
    shutil.copytree(kept, paths.state, dirs_exist_ok=True)
    assert recover(paths) == [Recovered(DEAD, SESSION)]
    assert files(paths.spool) == once
    # And from the beginning: the same bytes.
    shutil.rmtree(paths.spool)
    shutil.copytree(kept, paths.state, dirs_exist_ok=True)
    paths.spool.mkdir()
    for name, data in spool.items():
        (paths.spool / name).write_bytes(data)
    recover(paths)
    assert files(paths.spool) == once


def test_process_killed_ahead_of_its_first_batch_is_recovered(paths: SpoolPaths) -> None:
    paths.state.mkdir()
    journal_path(paths, DEAD).write_bytes(journal(DEAD, [open_span(1, None)]))
    [done] = recover(paths)
    assert done.incomplete == 1
    assert list(spans_of(paths)) == [span_id(1)]


def test_a_spool_of_another_name(tmp_path: Path) -> None:
    paths = SpoolPaths.bare(tmp_path)
    paths.state.mkdir()
    journal_path(paths, DEAD).write_bytes(journal(DEAD, [open_span(1, None)]))
    [done] = recover(paths)
    assert done.name is not None
    assert (tmp_path / done.name).exists()


@pytest.mark.parametrize("content", [b"{", b"", b'{"version":9}'])
def test_a_damaged_journal_is_set_aside(paths: SpoolPaths, content: bytes) -> None:
    die(paths, [])
    journal_path(paths, DEAD).write_bytes(content)
    [done] = recover(paths)
    assert (done.owner, done.name, done.session) == (DEAD, None, None)
    assert "cannot be read" in done.problem
    assert files(paths.state) == {f"journal-{DEAD}.json.bad": content}
    assert recover(paths) == []


def test_damaged_batch_does_not_prevent_recovery(paths: SpoolPaths) -> None:
    die(paths, [open_span(1, None)], batches=[{}, {"spans": [span(2, 1)]}])
    min(paths.spool.iterdir()).write_bytes(b'{"spans":[{"id"')
    assert recover(paths)[0].incomplete == 1


def test_recovery_removes_only_temporary_files_of_dead_writers(paths: SpoolPaths) -> None:
    die(paths, [])
    living = Owner.acquire(paths)
    keep = [
        f"{5:020d}-{living.new_batch_id()}.json.tmp",
        f"{5:020d}-{'f' * 32}.json.tmp",
        "notes.tmp",
    ]
    torn = f"{5:020d}-{DEAD}{'0' * 20}.json.tmp"
    paths.spool.mkdir()
    for name in (torn, *keep):
        (paths.spool / name).write_bytes(b"{")
    assert recover(paths) == [Recovered(DEAD, SESSION, torn=(torn,))]
    assert sorted(files(paths.spool)) == sorted(keep)
    living.release()


def test_one_that_another_process_is_recovering_is_left_to_it(paths: SpoolPaths) -> None:
    die(paths, [open_span(1, None)])
    lease = claim(paths, f"recovery {DEAD}")
    assert lease is not None
    assert recover(paths) == []
    lease.release()
    assert len(recover(paths)) == 1


def test_cursors_stay_as_long_as_there_are_batches(paths: SpoolPaths) -> None:
    die(paths, [], batches=[{}])
    cursor = Cursor(paths.state, "target", DEAD)
    cursor.acknowledge("x")
    cursor.save()
    recover(paths)
    assert list(paths.state.iterdir()) == [cursor.path]
    next(paths.spool.iterdir()).unlink()
    other = "00000000beef"
    lock_path(paths, other).touch()
    recover(paths)
    assert list(paths.state.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_recording_of_cirron_sdk_is_left_unchanged(tmp_path: Path, name: str) -> None:
    root = copy_of(name, tmp_path)
    before = files(root / "spool")
    assert recover(SpoolPaths.under(root)) == []
    assert files(root / "spool") == before
    assert not (root / "state").exists()


# A recording process as the SDK is one: the journal, and then the batch. Scope n is opened in
# round n and closed in round n + 2; the session stays open.
RECORD = """
owner = Owner.acquire(paths)
kept, writer = OwnerJournal(paths, owner), SpoolWriter(paths.root, max_bytes=None)
offset = int(sys.argv[2])
session = open_span(offset, None, name="cirron.session")
say(owner.prefix)
for number in range(1, 10**6):
    new = [open_span(offset + number, offset)]
    before = [open_span(offset + n, offset) for n in (number - 1,) if n > 0]
    closing = [span(offset + n, offset) for n in (number - 2,) if n > 0]
    leaf = span(offset + 500_000 + number, offset + number)
    data, name = sealed(owner, number, spans=[*closing, leaf], marks=[mark(number, offset)])
    kept.write(journal(owner.prefix, [session, *before, *new], closing, next_batch=name,
        session=span_id(offset)))
    writer.write(data, name)
"""


def orphans(paths: SpoolPaths) -> list[str]:
    found = spans_of(paths)
    return [key for key, each in found.items() if (each["parent_id"] or key) not in found]


def test_killed_at_any_moment_no_child_is_without_its_parent(paths: SpoolPaths) -> None:
    chance = random.Random(11)
    for number in range(1, 13):
        with Process(RECORD, paths.root, number * 1_000_000) as process:
            prefix = process.line()
            time.sleep(chance.uniform(0, 0.06))
            process.kill()
        before = files(paths.spool) if paths.spool.exists() else {}
        had_journal = journal_path(paths, prefix).exists()
        [done] = recover(paths)
        assert (done.owner, done.problem) == (prefix, "")
        assert done.name is not None or not had_journal
        assert orphans(paths) == []
        after = files(paths.spool)
        assert {name: after[name] for name in before if name.endswith(".json")} == {
            name: data for name, data in before.items() if name.endswith(".json")
        }
        assert not [name for name in after if name.endswith(".tmp")]
        assert recover(paths) == []
        assert files(paths.spool) == after
    assert owners(paths) == []


def test_eight_share_a_directory_and_one_is_killed(paths: SpoolPaths) -> None:
    running = [Process(RECORD, paths.root, number * 1_000_000) for number in range(1, 9)]
    try:
        prefixes = [process.line() for process in running]
        for prefix in prefixes:
            while not journal_path(paths, prefix).exists():
                time.sleep(0.005)
        running[3].kill()
        assert dead_owners(paths) == [prefixes[3]]
        [done] = recover(paths)
        assert (done.owner, done.session) == (prefixes[3], span_id(4_000_000))
        assert recover(paths) == []
        assert len(owners(paths)) == 7
        for process in running:
            process.kill()
        assert len(recover(paths)) == 7
        assert orphans(paths) == []
        assert list(paths.state.iterdir()) == []
    finally:
        for process in running:
            with process:
                pass


def test_many_recover_at_once(paths: SpoolPaths) -> None:
    script = """
from cirron_otel.core.spool.recovery import recover
say("ready")
sys.stdin.readline()
say(sum(done.incomplete for done in recover(paths)))
"""
    paths.state.mkdir()
    for number in range(30):
        prefix = f"{number:012x}"
        lock_path(paths, prefix).touch()
        opened = [open_span(1 + number, None)]
        told = journal(prefix, opened, session=span_id(1 + number))
        journal_path(paths, prefix).write_bytes(told)
    running = [Process(script, paths.root) for _ in range(3)]
    for process in running:
        assert process.line() == "ready"
    for process in running:
        assert process.popen.stdin is not None
        process.popen.stdin.write("go\n")
        process.popen.stdin.flush()
    assert sum(int(process.line()) for process in running) == 30
    for process in running:
        with process:
            assert process.end() == 0
    assert len(spans_of(paths)) == 30
    assert os.listdir(paths.state) == []  # noqa: PTH208


def test_a_living_owner_goes_on_while_others_recover(paths: SpoolPaths) -> None:
    owner = Owner.acquire(paths)
    kept = OwnerJournal(paths, owner)
    for number in range(20):
        kept.write(journal(owner.prefix, [open_span(number, None)]))
        assert recover(paths) == []
    assert kept.path.exists()
    kept.remove()
    owner.release()
