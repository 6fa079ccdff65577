"""Leases: one holder at a time, and none that is dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cirron_otel.core.spool.lease import claim, claim_delivery
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.errors import TargetError
from tests.kit.spools.processes import Process

HOLD = "lease = claim(paths, 'x'); say(bool(lease)); sys.stdin.read(); lease and lease.release()"


@pytest.fixture
def paths(tmp_path: Path) -> SpoolPaths:
    return SpoolPaths.under(tmp_path)


def test_one_holds_it_until_it_is_released(paths: SpoolPaths) -> None:
    with claim(paths, "x") or pytest.fail("not free") as lease:
        assert lease.is_held
        assert claim(paths, "x") is None
        assert [path.stat().st_mode & 0o777 for path in paths.state.iterdir()] == [0o600]
        with claim(paths, "y") or pytest.fail("not free"):
            assert len(list(paths.state.iterdir())) == 2
    assert not lease.is_held
    assert list(paths.state.iterdir()) == []
    again = claim(paths, "x")
    assert again is not None
    again.release()
    again.release()


def test_deliveries_of_each_target_and_owner_have_separate_leases(paths: SpoolPaths) -> None:
    held = [claim_delivery(paths, *each) for each in (("t", "a"), ("t", "b"), ("u", "a"))]
    assert all(held)
    assert claim_delivery(paths, "t", "b") is None
    for lease in held:
        assert lease is not None
        lease.release()


def test_death_frees_it(paths: SpoolPaths) -> None:
    with Process(HOLD, paths.root) as first, Process(HOLD, paths.root) as second:
        told = {first.line(): first}
        told[second.line()] = second
        assert set(told) == {"True", "False"}
        assert claim(paths, "x") is None
        told["True"].kill()
        lease = claim(paths, "x")
        assert lease is not None
        lease.release()


def test_lease_is_not_held_once_its_file_is_removed(paths: SpoolPaths) -> None:
    lease = claim(paths, "x")
    assert lease is not None
    lease.path.unlink()
    assert not lease.is_held
    other = claim(paths, "x")
    assert other is not None
    lease.release()
    assert other.is_held
    other.release()


def test_a_forked_child_neither_has_nor_ends_it(paths: SpoolPaths) -> None:
    lease = claim(paths, "x")
    assert lease is not None
    child = os.fork()
    if child == 0:
        is_held = lease.is_held
        lease.release()
        os.kill(os.getpid(), signal.SIGKILL if is_held else signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert lease.is_held
    assert claim(paths, "x") is None
    lease.release()
    assert claim(paths, "x") is not None


def test_many_processes_take_turns(tmp_path: Path) -> None:
    """Each adds 50 under the lease to what it reads there: nothing is lost."""
    script = """
count = paths.root / "count"
done = 0
while done < 50:
    lease = claim(paths, "count")
    if lease is None:
        time.sleep(0.001)
        continue
    with lease:
        count.write_text(str(int(count.read_text()) + 1))
    done += 1
"""
    (tmp_path / "count").write_text("0")
    running = [Process(script, tmp_path) for _ in range(4)]
    for process in running:
        with process:
            assert process.end() == 0
    assert (tmp_path / "count").read_text() == "200"


def test_a_state_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(TargetError, match="cannot be written"):
        claim(SpoolPaths.under(tmp_path), "x")
