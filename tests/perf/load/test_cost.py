"""What a new batch costs does not depend on how many batches are in the spool already.

Calls of functions and steps of SQLite are counted: no clock is read.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.collector.service.metrics import Registry
from cirron_otel.collector.service.target_sender import TargetSender
from cirron_otel.core.delivery import follow_work
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.follow_work import MOST_NOTED, Listing
from cirron_otel.core.spool.delivered import Delivered
from cirron_otel.core.spool.eviction import Eviction
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.state import make_state
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.otlp.config import target_key
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.target import StorageTarget
from tests.kit.servers.servers import http_receiver
from tests.kit.spools.following import (
    Following,
    arrived,
    config_of,
    until,
)

FEW, MANY = 100, 3_000
MOST = 1.2
"""So much more may a batch cost with MANY batches in the spool than with FEW."""
PID = 2
_BEGIN_NS = 1_790_000_000_000_000_000


def batch(number: int) -> tuple[str, bytes]:
    """The name and the bytes of a batch of one span, which is in no session."""
    at_ns, batch_id = _BEGIN_NS + number * 1000, f"{number:032x}"
    span = {
        "id": f"{number:016x}{'b' * 16}", "name": "c", "parent_id": None, "index": 1,
        "start_ns": at_ns - 5, "end_ns": at_ns, "cpu_ns": None, "gpu_ns": None,
        "memory_peak_bytes": None, "thread_id": 1, "pid": PID, "rank": 0, "attrs": {},
        "mark_ids": [],
    }  # fmt: skip
    whole = {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": batch_id, "created_ns": at_ns,
        "spans": [span], "marks": [], "snapshots": [],
    }  # fmt: skip
    return f"{at_ns:020d}-{batch_id}.json", json.dumps(whole).encode()


def fill(root: Path, count: int) -> list[str]:
    folder = root / "spool"
    folder.mkdir(parents=True)
    for name, data in map(batch, range(count)):
        (folder / name).write_bytes(data)
    return sorted(each.name for each in folder.iterdir())


def has_all(paths: SpoolPaths, key: str, names: list[str]) -> None:
    """A target has these batches."""
    with contextlib.closing(Delivered(paths, key)) as done:
        for name in names:
            done.acknowledge(name)
        done.save()


@contextlib.contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Counts the calls of functions, those of C included, in this thread."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(None)


def followed(root: Path, count: int) -> int:
    """The calls in which a follower sends a new batch, with `count` others in the spool."""
    names = fill(root, count)
    paths = SpoolPaths.under(root)
    with http_receiver() as server:
        config = config_of(server)
        has_all(paths, target_key(config), names)
        following = Following(root, config, is_noted=True)
        with following.follower._work() as work:
            work.round()
            assert not server.posts
            new = SpoolWriter(root).write(batch(count)[1]).name
            with counted() as calls:
                following.follower.note([new])
                work.round()
            assert len(server.posts) == 1
            assert following.follower.left() == []
            return calls()


def test_an_otlp_export_of_a_new_batch(tmp_path: Path) -> None:
    few, many = followed(tmp_path / "few", FEW), followed(tmp_path / "many", MANY)
    assert many <= MOST * few


class Counted:
    """The steps that SQLite takes in a storage."""

    def __init__(self, storage: Storage) -> None:
        self.steps = 0
        connection: sqlite3.Connection = storage.database._connection  # type: ignore[attr-defined]
        connection.set_progress_handler(self._count, 10)

    def _count(self) -> int:
        self.steps += 10
        return 0


def stored(path: Path, count: int, *new: tuple[str, bytes]) -> int:
    """SQLite's steps for new batches, with `count` others of the same process stored."""
    with Storage.open(f"sqlite:///{path}") as storage:
        storage.write([SealedBatch(*batch(number)) for number in range(count)])
        counter = Counted(storage)
        for each in new:
            storage.write([SealedBatch(*each)])
        return counter.steps


def test_a_new_batch_in_a_database(tmp_path: Path) -> None:
    few = stored(tmp_path / "few.db", FEW, batch(MANY))
    assert stored(tmp_path / "many.db", MANY, batch(MANY)) <= MOST * few


def session(first: int, last: int) -> tuple[str, bytes]:
    """A batch whose one span is the session of all batches between two numbers."""
    name, data = batch(MANY + 1 + first)
    whole = json.loads(data)
    whole["spans"][0] |= {
        "name": "cirron.session",
        "start_ns": _BEGIN_NS + first * 1000 - 10,
        "end_ns": _BEGIN_NS + last * 1000,
    }
    return name, json.dumps(whole).encode()


def test_ended_session_joins_only_its_spans_at_bounded_cost(tmp_path: Path) -> None:
    few = stored(tmp_path / "few.db", FEW, session(10, 12))
    assert stored(tmp_path / "many.db", MANY, session(10, 12)) <= MOST * few
    for path in (tmp_path / "few.db", tmp_path / "many.db"):
        with contextlib.closing(sqlite3.connect(path)) as database:
            [(top, count)] = database.execute(
                'SELECT "traceId", COUNT(*) FROM "TraceSpan" GROUP BY 1 HAVING COUNT(*) > 1'
            )
            loose = database.execute('SELECT COUNT(*) FROM "TraceLoose"').fetchone()[0]
            spans = database.execute('SELECT COUNT(*) FROM "TraceSpan"').fetchone()[0]
        assert (top, count) == (json.loads(session(10, 12)[1])["spans"][0]["id"], 4)
        assert loose == spans - 4


def measured(root: Path, count: int) -> int:
    """The calls in which a delivery is asked where it stands while it waits for its database."""
    names = fill(root, count)
    paths, target = SpoolPaths.under(root), StorageTarget(f"sqlite:///{root}/spool")
    has_all(paths, target.key, names)
    sending = TargetSender(paths, target, Registry(), "database")
    try:
        new = SpoolWriter(root).write(batch(count)[1]).name
        with counted() as calls:
            sending.stored([new])
            found = sending.progress()
        assert found.waiting == 1
        assert found.age_s > 0
        return calls()
    finally:
        sending.end(0.0)


def test_progress_cost_is_independent_of_the_spool_size(tmp_path: Path) -> None:
    few, many = measured(tmp_path / "few", FEW), measured(tmp_path / "many", MANY)
    assert many <= MOST * few


def test_oldest_waiting_batch_skips_deleted_and_delivered_ones(tmp_path: Path) -> None:
    names = fill(tmp_path, 10)
    paths, target = SpoolPaths.under(tmp_path), StorageTarget(f"sqlite:///{tmp_path}/spool")
    sending = TargetSender(paths, target, Registry(), "database")
    try:
        assert sending.progress().waiting == 10
        (paths.spool / names[0]).unlink()
        has_all(paths, target.key, names[1:4])
        assert sending.progress().age_s > 0
        assert list(sending._oldest._names) == names[4:]
    finally:
        sending.end(0.0)


class Reader(SpoolReader):
    """Counts how often the directory is read."""

    reads = 0

    def names(self) -> Iterator[str]:
        self.reads += 1
        return super().names()


def test_the_directory_is_not_read_for_batches_that_are_named(tmp_path: Path) -> None:
    names = fill(tmp_path, 3)
    reader = Reader(tmp_path)
    listing = Listing(reader, is_noted=True)
    assert listing.is_due()
    assert listing.read() == names
    for number in range(10, 60):
        name = SpoolWriter(tmp_path).write(batch(number)[1]).name
        listing.note([name])
        assert listing.take() == [name]
        assert not listing.is_due()
    assert reader.reads == 1


def test_batches_written_by_others_are_listed(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    listing = Listing(SpoolReader(tmp_path))
    listing.read()
    later = SpoolWriter(tmp_path).write(batch(7)[1]).name
    until(listing.is_due)
    assert listing.read() == [later]
    earlier = tmp_path / "spool" / batch(5)[0]
    earlier.with_suffix(".tmp").write_bytes(batch(5)[1])
    earlier.with_suffix(".tmp").rename(earlier)
    until(listing.is_due)
    assert listing.read() == [earlier.name]


def test_listing_reads_the_directory_if_too_many_names_are_noted(tmp_path: Path) -> None:
    names = fill(tmp_path, 3)
    listing = Listing(SpoolReader(tmp_path), is_noted=True)
    listing.read()
    for number in range(MOST_NOTED + 5):
        listing.note([f"{number}"])
    assert listing.noted() is None
    assert listing.is_due()
    late = SpoolWriter(tmp_path).write(batch(9)[1]).name
    assert late in listing.read()
    assert listing.present == {*names, late}
    assert not listing.is_due()


def test_undone_batches_are_selected_with_few_calls_per_name(tmp_path: Path) -> None:
    names = fill(tmp_path, 1_300)
    paths = SpoolPaths.under(tmp_path)
    has_all(paths, "target", names[::2])
    with contextlib.closing(Delivered(paths, "target")) as done:
        done.acknowledge(names[1])
        with counted() as calls:
            left = done.undone(reversed(names))
        assert left == [name for name in reversed(names[2:]) if name not in set(names[::2])]
        assert calls() < 10 * len(names)


def test_a_backlog_does_not_keep_new_batches_waiting(tmp_path: Path) -> None:
    fill(tmp_path, 50)
    make_state(tmp_path / "state")
    with http_receiver() as server:
        following = Following(tmp_path, config_of(server), is_noted=True)
        with following.follower._work() as work:
            whole = json.loads(batch(99)[1]) | {"otel": {"session": "5e55" * 8}}
            new = SpoolWriter(tmp_path).write(json.dumps(whole).encode()).name
            following.follower.note([new])
            work.round()
        assert arrived(server)[0][0].hex() == whole["spans"][0]["id"][:16]
        assert len(arrived(server)) == 51
        assert following.follower.unsent() == 0


def test_a_long_backlog_is_sent_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_work, "MOST_AT_ONCE", 10)
    names = fill(tmp_path, 35)
    with http_receiver() as server:
        following = Following(tmp_path, config_of(server))
        with following.running():
            until(lambda: len(arrived(server)) >= len(names))
            until(lambda: following.follower.left() == [])
        # An id of zeros is not sent as it is.
        assert [some_id.hex() for some_id, _ in arrived(server)[1:]] == [
            f"{number:016x}" for number in range(1, 35)
        ]
        assert following.follower.unsent() == 0


def test_the_spool_is_not_looked_through_for_its_size_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 5)
    eviction = Eviction(SpoolPaths.under(tmp_path), 10**9)
    eviction.make_room(*batch(6))
    begun = time.monotonic()
    monkeypatch.setattr(eviction, "_scan_took", 1.0)
    clock: Any = type("Clock", (), {"monotonic": staticmethod(lambda: begun + 2900.0)})
    monkeypatch.setattr("cirron_otel.core.spool.eviction.time", clock)
    eviction.make_room(*batch(7))
    assert eviction.scans == 1
