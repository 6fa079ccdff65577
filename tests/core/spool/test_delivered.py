"""What a target has of batches without an owner: what was noted, and nothing beside."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cirron_otel.core.spool import delivered as module
from cirron_otel.core.spool.cursor import Cursor
from cirron_otel.core.spool.delivered import Delivered
from cirron_otel.core.spool.owner import NONE
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.errors import InputError, TargetError
from tests.kit.spools.processes import Process


def name(number: int) -> str:
    return f"{number:020d}-{number:032x}.json"


@pytest.fixture
def paths(tmp_path: Path) -> SpoolPaths:
    return SpoolPaths.under(tmp_path)


def in_spool(paths: SpoolPaths, *numbers: int) -> list[str]:
    paths.spool.mkdir(exist_ok=True)
    for number in numbers:
        (paths.spool / name(number)).touch()
    return [name(number) for number in numbers]


def kept(paths: SpoolPaths) -> int:
    with sqlite3.connect(Delivered(paths, "target").path) as db:
        (number,) = db.execute("SELECT count(*) FROM batch").fetchone()
    return int(number)


def test_saved_acknowledgements_and_refusals_are_reloaded(paths: SpoolPaths) -> None:
    cursor = Delivered(paths, "target")
    assert name(3) not in cursor
    odd = "caf\udce9.json"  # not in UTF-8, as a file system may have it
    for each in (name(3), odd):
        cursor.acknowledge(each)
    cursor.refuse(name(5), "400 Bad Request")
    assert not paths.state.exists()
    assert name(3) in cursor
    cursor.save()
    assert {path.stat().st_mode & 0o777 for path in paths.state.iterdir()} == {0o600}
    again = Delivered(paths, "target")
    assert again.undone([name(n) for n in range(7)] + [odd]) == [name(n) for n in (0, 1, 2, 4, 6)]
    assert again.refused == {name(5): "400 Bad Request"}
    assert (again.acknowledged_count, again.refused_count) == (2, 1)
    assert name(3) not in Delivered(paths, "other")


def test_reader_sees_acknowledgements_saved_by_another_instance(paths: SpoolPaths) -> None:
    looking, cursor = Delivered(paths, "target"), Delivered(paths, "target")
    for number in range(3):
        cursor.acknowledge(name(number))
        assert name(number) not in looking
        cursor.save()
        assert name(number) in looking
    assert not looking.is_stale
    for path in paths.state.iterdir():
        path.unlink()
    cursor.save()
    assert looking.is_stale
    assert name(2) in Delivered(paths, "target")  # it is written to the new file


def test_it_is_as_long_as_the_spool(paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PRUNE_FROM", 100)
    cursor = Delivered(paths, "target")
    in_spool(paths, *range(50))
    for number in range(5000):
        cursor.acknowledge(name(number))
        if number % 10 == 9:
            cursor.save()
            assert kept(paths) <= 2 * 50 + 100 + 10
        if number % 1000 == 999:
            cursor = Delivered(paths, "target")
    assert cursor.undone(map(name, range(50))) == []
    assert cursor.acknowledged_count == 5000
    size = cursor.path.stat().st_size
    assert size < 100_000


def test_nothing_is_forgotten_while_the_spool_is_not_there(
    paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PRUNE_FROM", 10)
    cursor = Delivered(paths, "target")
    for number in range(100):
        cursor.acknowledge(name(number))
        cursor.save()
    assert cursor.undone(map(name, range(100))) == []


def test_save_writes_only_new_entries(paths: SpoolPaths) -> None:
    """Not what is kept: one more of 20,000 writes no more than one more of none."""
    cursor = Delivered(paths, "target")
    in_spool(paths, *range(20_000))
    for number in range(20_000):
        cursor.acknowledge(name(number))
    cursor.save()
    cursor.close()  # which empties the log
    cursor.acknowledge(name(20_000))
    cursor.save()
    log = cursor.path.with_name(cursor.path.name + "-wal")
    assert log.stat().st_size < 50_000
    assert cursor.path.stat().st_size > 1_000_000


@pytest.mark.parametrize("has_spool", [True, False])
def test_cursor_of_an_earlier_version_is_migrated(paths: SpoolPaths, has_spool: bool) -> None:
    old = Cursor(paths.state, "target", NONE)
    for number in range(10, 20):
        old.acknowledge(name(number))
    old.refuse(name(30), "no")
    old.mark = name(5)
    old.save()
    if has_spool:
        in_spool(paths, 1, 2, 10, 11, 21, 30)
    looking = Delivered(paths, "target")
    assert looking.undone(map(name, (2, 11, 21, 30))) == [name(21)]
    cursor = Delivered(paths, "target")
    cursor.save()
    assert not old.path.exists()
    for each in (cursor, looking, Delivered(paths, "target")):
        left = [21] if has_spool else [2, 21]
        assert each.undone(map(name, (2, 11, 21, 30))) == [name(number) for number in left]
        assert name(3) not in each  # it came later
        assert each.refused == {name(30): "no"}
        assert (each.acknowledged_count, each.refused_count) == (10, 1)


def test_old_cursor_left_by_a_kill_is_ignored_and_removed(paths: SpoolPaths) -> None:
    cursor = Delivered(paths, "target")
    cursor.acknowledge(name(9))
    cursor.save()
    cursor.close()
    old = Cursor(paths.state, "target", NONE)
    old.mark = name(5)
    old.save()
    again = Delivered(paths, "target")
    assert name(3) not in again
    again.save()
    assert not old.path.exists()


@pytest.mark.parametrize("content", [b"{" * 1000, b"\0" * 8192, b"SQLite format 3\0" * 99])
def test_a_damaged_one_is_said_to_be_and_set_aside(paths: SpoolPaths, content: bytes) -> None:
    cursor = Delivered(paths, "target")
    cursor.acknowledge(name(1))
    cursor.save()
    cursor.close()
    cursor.path.write_bytes(content)
    with pytest.raises(InputError, match=r"cursor .* cannot be read"):
        Delivered(paths, "target")
    fresh = Delivered.reset(paths, "target")
    assert name(1) not in fresh
    assert fresh.path.with_name(fresh.path.name + ".bad").read_bytes() == content
    fresh.acknowledge(name(2))
    fresh.save()
    assert Delivered(paths, "target").undone([name(1), name(2)]) == [name(1)]


def test_damage_that_is_met_at_work_is_got_over(paths: SpoolPaths) -> None:
    """What cannot be read is not done, and what is noted from then on is kept."""
    cursor = Delivered(paths, "target")
    for number in range(2_000):
        cursor.acknowledge(name(number))
    cursor.save()
    cursor.close()
    data = bytearray(cursor.path.read_bytes())
    data[3 * 4096 :] = b"\xff" * (len(data) - 3 * 4096)
    cursor.path.write_bytes(data)
    cursor = Delivered(paths, "target")
    assert cursor.undone(map(name, range(2_000)))
    cursor.acknowledge(name(5_000))
    cursor.save()
    assert Delivered(paths, "target").undone([name(1), name(5_000)]) == [name(1)]


def test_one_of_another_target_is_not_believed(paths: SpoolPaths) -> None:
    cursor = Delivered(paths, "target")
    cursor.save()
    cursor.close()
    cursor.path.rename(Delivered(paths, "other").path)
    with pytest.raises(InputError, match="expected"):
        Delivered(paths, "other")


def test_one_that_cannot_be_written(paths: SpoolPaths) -> None:
    cursor = Delivered(paths, "target")
    cursor.acknowledge(name(1))
    paths.state.touch()
    with pytest.raises(TargetError, match="cannot be written"):
        cursor.save()
    assert name(1) in cursor
    paths.state.unlink()
    cursor.save()
    assert name(1) in Delivered(paths, "target")


KILLED = """
from cirron_otel.core.spool.delivered import Delivered
cursor = Delivered(paths, "target")
for number in range(10**9):
    cursor.acknowledge(f"{number:020d}-{number:032x}.json")
    cursor.save()
    say(number)
"""


def test_a_kill_takes_nothing_that_was_saved(paths: SpoolPaths) -> None:
    said = -1
    for _ in range(3):
        with Process(KILLED, paths.root) as process:
            for _ in range(200):
                said = int(process.line())
            process.kill()
        cursor = Delivered(paths, "target")
        assert cursor.undone(map(name, range(said + 1))) == []
        assert name(10**6) not in cursor
        cursor.close()
