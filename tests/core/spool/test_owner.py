"""Owners: alive as long as their process is, and no longer."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cirron_otel.core.spool.lease import claim
from cirron_otel.core.spool.owner import (
    NONE,
    Owner,
    dead_owners,
    group_of,
    is_alive,
    known_owners,
    lock_path,
    owner_of,
    owners,
)
from cirron_otel.core.spool.paths import SpoolPaths, file_name
from cirron_otel.core.spool.recovery import recover
from cirron_otel.core.spool.state import is_locked, lock_named, remove_unlocked
from cirron_otel.errors import TargetError
from tests.kit.spools.journals import journal, open_span
from tests.kit.spools.processes import Process

UUID4 = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")
HOLD = "owner = Owner.acquire(paths); say(owner.prefix); sys.stdin.read(); owner.release()"


@pytest.fixture
def paths(tmp_path: Path) -> SpoolPaths:
    return SpoolPaths.under(tmp_path / ".cirron")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_owner_holds_a_private_lock_and_names_its_batches(paths: SpoolPaths) -> None:
    owner = Owner.acquire(paths)
    assert re.fullmatch("[0-9a-f]{12}", owner.prefix)
    assert (mode(paths.state), mode(lock_path(paths, owner.prefix))) == (0o700, 0o600)
    ids = {owner.new_batch_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(UUID4.fullmatch(each) and each.startswith(owner.prefix) for each in ids)
    assert {owner_of(file_name(5, each)) for each in ids} == {owner.prefix}
    assert is_alive(paths, owner.prefix)
    assert (owners(paths), dead_owners(paths)) == ([owner.prefix], [])
    owner.release()
    assert not is_alive(paths, owner.prefix)
    assert list(paths.state.iterdir()) == []
    owner.release()


@pytest.mark.parametrize("name", ["notes.json", "00000000000000000005-abc.json", "x", "5-é.json"])
def test_name_of_another_form_has_no_owner(name: str) -> None:
    assert owner_of(name) is None
    assert group_of(name, {"abc"}) == NONE


def test_a_killed_process_is_dead_at_once_and_one_that_ends_leaves_nothing(
    paths: SpoolPaths,
) -> None:
    with Process(HOLD, paths.root) as killed, Process(HOLD, paths.root) as ended:
        first, second = killed.line(), ended.line()
        assert (is_alive(paths, first), is_alive(paths, second)) == (True, True)
        killed.kill()
        assert dead_owners(paths) == [first]
        assert ended.end() == 0
        assert owners(paths) == [first]


def test_owner_that_needs_recovery_retains_its_lock_file(paths: SpoolPaths) -> None:
    owner = Owner.acquire(paths)
    (paths.state / f"journal-{owner.prefix}.json").write_bytes(
        journal(owner.prefix, [open_span(1, None)])
    )
    owner.release()
    assert dead_owners(paths) == [owner.prefix]
    assert lock_path(paths, owner.prefix).exists()


FORKED = """
owner = Owner.acquire(paths)
go, gone = os.pipe()
child = os.fork()
if child == 0:
    {forgets}
    os.close(gone)
    say(owner.prefix, os.getpid())
    os.read(go, 1)
    time.sleep(60)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("forgets", "alive"),
    [("owner.abandon()", False), ("owner.release()", False), ("pass", True)],
)
def test_a_forked_child_that_outlives_its_parent(
    paths: SpoolPaths, forgets: str, alive: bool
) -> None:
    """A child that keeps the lock open keeps its dead parent alive: hence `abandon`."""
    with Process(FORKED.format(forgets=forgets), paths.root) as parent:
        prefix, child = parent.line().split()
        try:
            # What the child did has not taken it from its parent.
            assert is_alive(paths, prefix)
            parent.kill()
            os.kill(int(child), 0)
            assert is_alive(paths, prefix) is alive
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_removed_lock_file_is_recreated(paths: SpoolPaths) -> None:
    owner = Owner.acquire(paths)
    shutil.rmtree(paths.root)
    assert not is_alive(paths, owner.prefix)
    owner.ensure()
    assert is_alive(paths, owner.prefix)
    owner.release()


def test_lock_file_is_removed_only_while_unlocked(paths: SpoolPaths) -> None:
    """Whoever removes a dead owner's file may just hold one that is about to be locked."""
    paths.state.mkdir(parents=True)
    path = lock_path(paths, "0" * 12)
    descriptor = lock_named(path)
    assert descriptor is not None
    assert lock_named(path) is None
    assert not remove_unlocked(path)
    os.close(descriptor)
    assert not is_locked(path)
    assert remove_unlocked(path)
    assert not path.exists()
    assert not remove_unlocked(path)


def test_a_check_at_the_same_time_does_not_keep_a_file(paths: SpoolPaths) -> None:
    """A check holds a shared lock for a moment, and a lock file may be removed only once."""
    paths.state.mkdir(parents=True)
    path = lock_path(paths, "0" * 12)
    path.touch()
    checking = os.open(path, os.O_RDONLY)
    fcntl.flock(checking, fcntl.LOCK_SH)
    with ThreadPoolExecutor() as pool:
        removed = pool.submit(remove_unlocked, path)
        time.sleep(0.05)
        assert path.exists()
        os.close(checking)
        assert removed.result()
    assert not path.exists()


def test_many_come_and_go_while_their_files_are_removed(paths: SpoolPaths) -> None:
    """The file that an owner holds is always the one that has the name."""
    remove = """
from cirron_otel.core.spool.state import remove_unlocked
say("begun")
while not (paths.root / "stop").exists():
    for path in paths.state.glob("owner-*.lock"):
        remove_unlocked(path)
"""
    paths.state.mkdir(parents=True)
    with Process(remove, paths.root) as remover:
        assert remover.line() == "begun"
        for _ in range(300):
            owner = Owner.acquire(paths)
            assert is_locked(lock_path(paths, owner.prefix))
            assert lock_path(paths, owner.prefix).exists()
            owner.release()
        (paths.root / "stop").touch()
        assert remover.end() == 0


def test_traces_of_an_owner_make_it_known(paths: SpoolPaths) -> None:
    paths.state.mkdir(parents=True)
    for name in (
        "owner-00000000000a.lock",
        "journal-00000000000b.json",
        "cursor-0123456789abcdef-00000000000c.json",
        "cursor-0123456789abcdef-none.json",
        "journal-00000000000d.json.bad",
        "cursor-0123456789abcdef-00000000000e.json.tmp",
    ):
        (paths.state / name).touch()
    assert known_owners(paths) == {"00000000000a", "00000000000b", "00000000000c"}
    assert owners(paths) == ["00000000000a", "00000000000b"]
    name = file_name(1, "00000000000c" + "0" * 20)
    assert group_of(name, known_owners(paths)) == "00000000000c"
    assert group_of(name, set()) == NONE


def test_state_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TargetError, match="cannot be written"):
        Owner.acquire(SpoolPaths.under(tmp_path / "file"))
    paths = SpoolPaths.under(tmp_path / "nothing")
    assert (owners(paths), known_owners(paths), is_alive(paths, "0" * 12)) == ([], set(), False)


def test_no_owner_counts_as_dead_if_locks_are_unsupported(
    paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network file systems: to recover there could close what is open."""
    paths.state.mkdir(parents=True)
    dead = "00000000dead"
    lock_path(paths, dead).touch()
    (paths.state / f"journal-{dead}.json").write_bytes(journal(dead, [open_span(1, None)]))

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    owner = Owner.acquire(paths)
    assert is_alive(paths, dead)
    assert recover(paths) == []
    with claim(paths, "x") or pytest.fail("not free") as lease:
        assert lease.is_held
    owner.release()
