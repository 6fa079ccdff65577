"""Where a spool is found, where it is written, and which names it takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.spool.paths import (
    SpoolPaths,
    checked_name,
    file_name,
    find_spool,
    parse_name,
    target_spool,
)
from cirron_otel.errors import InputError, TargetError, UsageError

NAME = "01795197734691234492-f13ba32369274c18b1742532e096fd80.json"


class TestFind:
    def test_a_directory_that_holds_spool(self, tmp_path: Path) -> None:
        (tmp_path / "spool").mkdir()
        assert find_spool(tmp_path) == SpoolPaths.under(tmp_path)

    def test_a_directory_that_holds_dot_cirron(self, tmp_path: Path) -> None:
        (tmp_path / ".cirron" / "spool").mkdir(parents=True)
        assert find_spool(tmp_path) == SpoolPaths.under(tmp_path / ".cirron")

    def test_the_spool_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "spool").mkdir()
        assert find_spool(tmp_path / "spool") == SpoolPaths.under(tmp_path)
        monkeypatch.chdir(tmp_path / "spool")
        assert find_spool(".") == SpoolPaths.under(tmp_path)

    def test_a_directory_of_batches_under_any_name(self, tmp_path: Path) -> None:
        (tmp_path / NAME).write_bytes(b"{}")
        assert find_spool(tmp_path) == SpoolPaths.bare(tmp_path)

    def test_path_without_a_spool_is_an_input_error(self, tmp_path: Path) -> None:
        (tmp_path / "package.json").write_bytes(b"{}")
        with pytest.raises(InputError, match="contains no spool"):
            find_spool(tmp_path)
        with pytest.raises(InputError, match="is not a directory"):
            find_spool(tmp_path / "package.json")
        with pytest.raises(InputError, match="does not exist"):
            find_spool(tmp_path / "nothing")


class TestTarget:
    def test_a_new_directory_gets_spool(self, tmp_path: Path) -> None:
        assert target_spool(tmp_path / "new") == SpoolPaths.under(tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_a_spool_is_added_to(self, tmp_path: Path) -> None:
        (tmp_path / "spool").mkdir()
        assert target_spool(tmp_path).spool == tmp_path / "spool"
        assert target_spool(tmp_path / "spool").spool == tmp_path / "spool"
        (tmp_path / "bare").mkdir()
        (tmp_path / "bare" / NAME).write_bytes(b"{}")
        assert target_spool(tmp_path / "bare").spool == tmp_path / "bare"

    def test_file_is_not_a_valid_target(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(TargetError, match="is not a directory"):
            target_spool(tmp_path / "file")


@given(st.integers(0, 10**20 - 1), st.from_regex(r"\A[0-9a-f]{32}\Z"))
def test_file_name_round_trips_its_time_and_batch_id(created_ns: int, batch_id: str) -> None:
    name = file_name(created_ns, batch_id)
    assert parse_name(name) == (created_ns, batch_id)
    assert checked_name(name) == name


@given(st.lists(st.integers(0, 10**20 - 1), min_size=2))
def test_names_sort_by_time(times: list[int]) -> None:
    names = [file_name(time, "0" * 32) for time in times]
    assert sorted(names) == [file_name(time, "0" * 32) for time in sorted(times)]


@pytest.mark.parametrize(
    ("created_ns", "batch_id"), [(-1, "a"), (10**20, "a"), (0, ""), (0, "a/b")]
)
def test_invalid_file_name_parts_are_refused(created_ns: int, batch_id: str) -> None:
    with pytest.raises(UsageError):
        file_name(created_ns, batch_id)


@pytest.mark.parametrize(
    "name",
    ["../x.json", "/x.json", "a/b.json", "a\\b.json", "x\0.json", "x", "x.json.tmp", "", "..",
     "a" * 300 + ".json", "\ud800.json"],
)  # fmt: skip
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(TargetError):
        checked_name(name)


def test_a_name_of_other_bytes_than_utf8_is_a_name() -> None:
    name = os.fsdecode(b"\xff.json")
    assert checked_name(name) == name
    assert parse_name(name) is None
