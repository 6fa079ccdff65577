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
