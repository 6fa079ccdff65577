"""SQLite files are opened, and files are replaced, by one helper each."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import sqlite3
import stat
import threading
from functools import cache
from pathlib import Path

import pytest

import cirron_otel
from cirron_otel.core.atomic_files import replace_file, replacing_file
from cirron_otel.core.state_database import (
    WAL,
    create_private_file,
    open_database,
    transaction,
)

ROOT = Path(cirron_otel.__file__).parent
SETS_ASIDE = {"state.py", "state_file.py"}
"""The modules that rename a damaged file."""
_FUNCTIONS = {"connect", "fsync", "fdatasync", "replace", "rename"}
"""The last parts of the names of calls that are checked."""


@cache
def _calls() -> list[tuple[Path, str, ast.Call]]:
    """Return the calls of a function of one of these names, in all modules."""
    return [
        (module, ast.unparse(node.func), node)
        for module in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _FUNCTIONS
    ]


def _violations(helper: str) -> list[str]:
    found = []
    for module, name, call in _calls():
        # The intake journal has its own rules for syncing and renaming.
        is_journal = "receiver/journal" in module.as_posix()
        if helper == "state_database.py":
            is_own = name == "sqlite3.connect"
        else:
            is_sync = name in {"os.fsync", "os.fdatasync"} and not is_journal
            # str.replace has two arguments, and that of datetime has keywords.
            is_move = name in {"os.replace", "os.rename"} or (
                name.endswith((".replace", ".rename"))
                and len(call.args) == 1
                and not call.keywords
                and not name.startswith(("dataclasses.", "structs."))
            )
            is_own = is_sync or (is_move and not is_journal and module.name not in SETS_ASIDE)
        if is_own and module.name != helper:
            found.append(f"{module.relative_to(ROOT)}:{call.lineno} {name}")
    return found


@pytest.mark.parametrize("helper", ["state_database.py", "atomic_files.py"])
def test_no_other_module_does_it_itself(helper: str) -> None:
    assert len(list(ROOT.rglob(helper))) == 1
    assert _violations(helper) == []


def test_a_replaced_file_is_private_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"before")
    replace_file(path, b"x" * 100_000)
    assert path.read_bytes() == b"x" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_file_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"before")
    with pytest.raises(IsADirectoryError), replacing_file(path) as descriptor:
        os.write(descriptor, tmp_path.read_bytes())
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("is_durable", "syncs_name", "syncs"), [(True, True, 2), (True, False, 1), (False, True, 0)]
)
def test_number_of_fsync_calls_matches_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_durable: bool, syncs_name: bool, syncs: int
) -> None:
    count = itertools.count()
    sync = os.fsync

    def counted(descriptor: int) -> None:
        next(count)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    with replacing_file(tmp_path / "state", is_durable=is_durable, syncs_name=syncs_name):
        pass
    assert next(count) == syncs


def test_a_database_is_private_and_closed_if_a_setting_fails(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    create_private_file(path)
    connection = open_database(path, "journal_mode=WAL", "synchronous=FULL", busy_s=1.5)
    connection.execute("CREATE TABLE t (x)")
    values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _PRAGMAS]
    assert values == ["wal", 2, 1500]
    for each in tmp_path.iterdir():
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
    with pytest.raises(sqlite3.Error), transaction(connection):
        connection.executemany("INSERT INTO t VALUES (?)", [(1,), (connection.backup,)])
    assert connection.execute("SELECT * FROM t").fetchall() == []
    connection.close()
    with pytest.raises(sqlite3.OperationalError):
        open_database(tmp_path / "missing.db", must_exist=True)
    with pytest.raises(sqlite3.DatabaseError):
        open_database(path, "not a pragma")


_PRAGMAS = ("journal_mode", "synchronous", "busy_timeout")


def test_the_switch_to_wal_waits_for_a_writer(tmp_path: Path) -> None:
    writer = open_database(tmp_path / "a.sqlite", is_shared=True)
    writer.execute("CREATE TABLE a (n)")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO a VALUES (1)")
    commit = threading.Timer(0.3, writer.execute, ["COMMIT"])
    commit.start()
    with contextlib.closing(open_database(tmp_path / "a.sqlite", WAL, busy_s=30)) as second:
        assert second.execute("SELECT n FROM a").fetchall() == [(1,)]
    commit.join()
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        open_database(tmp_path / "a.sqlite", "journal_mode=DELETE", busy_s=0.05)
    writer.close()
