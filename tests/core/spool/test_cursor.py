"""Cursors: what was acknowledged stays so, what was not is sent, however late it comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cirron_otel.core.spool import cursor as module
from cirron_otel.core.spool.cursor import Cursor
from cirron_otel.core.spool.owner import NONE
from cirron_otel.errors import InputError, TargetError

OWNER = "0123456789ab"


def name(number: int) -> str:
    return f"{number:020d}-{number:032x}.json"


def test_saved_cursor_is_restored(tmp_path: Path) -> None:
    state = tmp_path / "state"
    cursor = Cursor(state, "target", OWNER)
    cursor.acknowledge(name(3))
    cursor.refuse(name(5), "400 Bad Request")
    assert not state.exists()
    cursor.save()
    assert [path.stat().st_mode & 0o777 for path in state.iterdir()] == [0o600]
    again = Cursor(state, "target", OWNER)
    assert [number for number in range(8) if name(number) in again] == [3, 5]
    assert again.refused == {name(5): "400 Bad Request"}
    assert (again.acknowledged_count, again.refused_count) == (1, 1)
    for other in (Cursor(state, "other", OWNER), Cursor(state, "target", NONE)):
        assert name(3) not in other


def test_a_batch_that_is_renamed_into_place_late_is_not_skipped(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path, "target", OWNER)
    for number in (1, 2, 4, 9):
        cursor.acknowledge(name(number))
    cursor.save()
    assert name(3) not in Cursor(tmp_path, "target", OWNER)


def test_it_stays_small_and_skips_nothing_that_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT", 100)
    cursor = Cursor(tmp_path, "target", OWNER)
    for number in range(1000, 5000):
        if number != 1500:
            cursor.acknowledge(name(number))
        if number % 20 == 19:
            cursor.save(pending=[name(1500)] if number < 3000 else [])
        if number == 2999:
            assert name(1500) not in Cursor(tmp_path, "target", OWNER)
            cursor.acknowledge(name(1500))
    again = Cursor(tmp_path, "target", OWNER)
    assert all(name(number) in again for number in range(1000, 5000))
    # What comes late by no more than the names that are kept is seen to be new.
    assert name(5000) not in again
    assert name(4900)[:-5] + "x.json" not in again
    assert len(again.path.read_bytes()) < 200 * 70
    assert again.acknowledged_count == 4000


def test_a_target_that_refuses_for_ever_does_not_fill_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT", 10)
    cursor = Cursor(tmp_path, "target", OWNER)
    for number in range(100):
        cursor.refuse(name(number), "no")
        cursor.save()
    assert len(cursor.refused) <= 21
    assert cursor.refused_count == 100
    assert all(name(number) in cursor for number in range(100))


def test_names_of_evicted_batches_are_forgotten(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path, "target", OWNER)
    for number in range(10):
        cursor.acknowledge(name(number))
    cursor.refuse(name(20), "no")
    cursor.forget({name(8), name(9)})
    cursor.save()
    told = json.loads(cursor.path.read_bytes())
    assert (told["acknowledged"], told["refused"]) == ([name(8), name(9)], {})


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"version":1}', b"\xff" * 9, b"[" * 100_000, b"{}"],
)
def test_a_damaged_one_is_said_to_be_and_set_aside(tmp_path: Path, content: bytes) -> None:
    cursor = Cursor(tmp_path, "target", OWNER)
    cursor.acknowledge(name(1))
    cursor.save()
    cursor.path.write_bytes(content)
    with pytest.raises(InputError, match=r"cursor .* cannot be read"):
        Cursor(tmp_path, "target", OWNER)
    fresh = Cursor.reset(tmp_path, "target", OWNER)
    assert name(1) not in fresh
    assert fresh.path.with_name(fresh.path.name + ".bad").read_bytes() == content
    fresh.save()
    assert name(1) not in Cursor(tmp_path, "target", OWNER)


def test_one_of_another_target_is_not_believed(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path, "target", OWNER)
    cursor.acknowledge(name(1))
    cursor.save()
    other = Cursor(tmp_path, "other", OWNER)
    cursor.path.rename(other.path)
    with pytest.raises(InputError, match="expected other"):
        Cursor(tmp_path, "other", OWNER)


def test_empty_file_after_a_power_cut_is_an_empty_cursor(tmp_path: Path) -> None:
    path = Cursor(tmp_path, "target", OWNER).path
    path.touch()
    assert name(1) not in Cursor(tmp_path, "target", OWNER)


def test_one_that_cannot_be_written(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path / "state", "target", OWNER)
    cursor.acknowledge(name(1))
    (tmp_path / "state").touch()
    with pytest.raises(TargetError, match="cannot be written"):
        cursor.save()
