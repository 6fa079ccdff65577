"""A stored result of an untraced program is loaded only if no input of the program changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from . import references


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(references.SWITCH, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text("first")
    return path


def test_a_result_is_loaded_by_the_same_key(file: Path) -> None:
    key = references.key_of([file], "name")
    assert references.load(key) is None
    references.store(key, {"losses": [0.1]})
    assert references.load(references.key_of([file], "name")) == {"losses": [0.1]}


def test_a_change_of_the_file_or_a_name_changes_the_key(file: Path) -> None:
    keys = {references.key_of([file], "name"), references.key_of([file], "other")}
    file.write_text("second")
    keys.add(references.key_of([file], "name"))
    keys.add(references.key_of([file], "name", uses_package=True))
    assert len(keys) == 4


@pytest.mark.parametrize("part", ["_installation", "_package"])
def test_a_change_of_the_packages_changes_the_key(
    part: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = references.key_of([file], uses_package=True)
    monkeypatch.setattr(references, part, lambda: "another")
    assert references.key_of([file], uses_package=True) != first


def test_the_switch_ignores_stored_results(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = references.key_of([file])
    references.store(key, 1)
    monkeypatch.setenv(references.SWITCH, "no")
    assert references.load(key) is None


def test_unused_results_are_removed(file: Path) -> None:
    names = ("old", "used")
    keys = [references.key_of([file], name) for name in names]
    for key in keys:
        references.store(key, 1)
        long_ago = time.time() - 31 * 24 * 3600
        os.utime(references.directory() / f"{key}.json", (long_ago, long_ago))
    assert references.load(keys[1]) == 1
    references.store(references.key_of([file], "new"), 1)
    assert [references.load(key) for key in keys] == [None, 1]


def test_a_directory_that_cannot_be_written_is_ignored(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    key = references.key_of([file])
    references.store(key, 1)
    assert references.load(key) is None


def test_a_torn_file_is_computed_anew(file: Path) -> None:
    key = references.key_of([file])
    references.store(key, 1)
    (references.directory() / f"{key}.json").write_text("[1, ")
    assert references.load(key) is None


def recorded(folder: Path) -> None:
    """Record with a random content."""
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_bytes(os.urandom(8))


def test_a_directory_is_filled_with_the_stored_files(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = references.key_of([file])
    contents = []
    for name in ("first", "second", "other", "anew"):
        if name == "anew":
            monkeypatch.setenv(references.SWITCH, "no")
        references.fill(tmp_path / name, f"{key}-{name == 'other'}", recorded)
        contents.append((tmp_path / name / "inner" / "file").read_bytes())
    assert contents[0] == contents[1]
    assert len(set(contents)) == 3


def test_a_torn_archive_is_recorded_anew(file: Path, tmp_path: Path) -> None:
    key = references.key_of([file])
    references.fill(tmp_path / "first", key, recorded)
    archive = references.directory() / f"{key}.tar.gz"
    os.truncate(archive, archive.stat().st_size // 3)
    references.fill(tmp_path / "second", key, recorded)
    assert (tmp_path / "second" / "inner" / "file").stat().st_size == 8


def test_a_recording_that_fails_is_not_stored(file: Path, tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "file").touch()
        raise ValueError("the program ended")

    key = references.key_of([file])
    with pytest.raises(ValueError, match="the program ended"):
        references.fill(tmp_path / "first", key, fail)
    references.fill(tmp_path / "second", key, recorded)
    assert not (tmp_path / "second" / "file").exists()
