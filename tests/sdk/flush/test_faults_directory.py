"""The spool's directory fails: it is full, or gone. Training goes on, and what can be kept is."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.core.spool.recovery import Recovered
from tests.kit.sessions.processes import Agent, until
from tests.kit.sessions.whole import batch_files, recovered, whole

ROOM = 64 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB, which root alone can mount."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> Path:
    """Leave no room in a file system; the file that takes it."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return filler
    raise AssertionError


class Full:
    """A disk that is full until `free`: a real one, or a limit on the size of files."""

    def __init__(self, agent: Agent, place: Path | None) -> None:
        self._agent = agent
        self._filler = fill(place) if place is not None else None
        if place is None:
            agent.do("limit_files", size=100)

    def free(self) -> None:
        if self._filler is not None:
            self._filler.unlink()
        else:
            self._agent.do("limit_files", size=-1)


@pytest.fixture(params=["disk", "limit"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path | None]:
    """Where the spool is to be, and the disk that can be filled."""
    if request.param == "limit":
        return tmp_path / ".cirron", None
    disk = request.getfixturevalue("small_disk")
    return disk / ".cirron", disk


def test_records_refused_by_a_full_disk_are_written_once_there_is_room(
    place: tuple[Path, Path | None],
) -> None:
    directory, disk = place
    with Agent() as agent:
        agent.do("profile", output_dir=str(directory), flush_interval=0.02)
        agent.do("enter", name="epoch")
        agent.do("steps", n=3)
        assert agent.do("flush")
        full = Full(agent, disk)
        for _ in range(3):
            agent.do("steps", n=3)
            assert agent.do("flush") is False
        health = agent.do("health")
        assert health["queue"]["batches"] > 0
        assert health["swallowed_errors"]["spool"] > 0
        assert "cannot be written" in health["last_errors"]["spool"]
        assert health["flush_mode"] == "normal"
        full.free()
        agent.do("steps", n=3)
        assert agent.do("flush")
        agent.do("leave")
        assert agent.do("shutdown")
        assert not any(agent.do("health")["drops"].values())
        assert agent.end() == 0
    found = whole(directory)
    assert found.numbers() == list(range(15))
    assert found.names()["epoch"] == 1


def test_losses_on_a_permanently_full_disk_are_counted(place: tuple[Path, Path | None]) -> None:
    directory, disk = place
    with Agent() as agent:
        agent.do("profile", output_dir=str(directory), flush_interval=0.02, overhead_marks=False)
        agent.do("steps", n=3)
        assert agent.do("flush")
        Full(agent, disk)
        agent.do("steps", n=500, size=10_000)
        assert agent.do("shutdown", timeout=10) is False
        drops = agent.do("health")["drops"]
        assert agent.end() == 0
    recovered_spans = sum(done.incomplete + done.closed for done in _freed(directory, disk))
    found = whole(directory)
    assert found.numbers()[:3] == [0, 1, 2]
    assert len(found.numbers()) + drops["marks_spool_unwritable"] == 503
    lost = drops["spans_spool_unwritable"]
    assert len(found.spans) - recovered_spans + lost == 2 * 503 + 1
    assert lost > 0


def _freed(directory: Path, disk: Path | None) -> list[Recovered]:
    if disk is not None:
        (disk / "filler").unlink()
    return recovered(directory)


def test_backlog_for_a_full_disk_is_bounded(small_disk: Path) -> None:
    with Agent() as agent:
        agent.do("profile", output_dir=str(small_disk / ".cirron"), flush_interval=0.02)
        agent.do("steps", n=1)
        fill(small_disk)
        for _ in range(10):
            agent.do("steps", n=100, size=100_000)
            agent.do("flush")
        health = agent.do("health")
        assert health["drops"]["spans_spool_unwritable"] > 0
        agent.do("shutdown", timeout=10)
        assert agent.end() == 0


def test_full_from_the_start(small_disk: Path) -> None:
    """Not even the lock of this process can be made."""
    directory = small_disk / ".cirron"
    filler = fill(small_disk)
    inodes = ["mount", "-o", "remount,nr_inodes=3,size=64k", str(small_disk)]
    subprocess.run(inodes, check=True)
    with Agent() as agent:
        assert agent.do("profile", output_dir=str(directory), flush_interval=0.02)
        agent.do("steps", n=3)
        assert agent.do("flush") is False
        more = ["mount", "-o", "remount,nr_inodes=100,size=1m", str(small_disk)]
        subprocess.run(more, check=True)
        filler.unlink()
        agent.do("steps", n=3)
        assert agent.do("flush")
        assert agent.do("shutdown")
        assert agent.end() == 0
    assert whole(directory).numbers() == list(range(6))


def test_a_directory_removed_meanwhile(tmp_path: Path) -> None:
    """Recording goes on: all that is sealed later is there, and recovery finds its way."""
    directory = tmp_path / ".cirron"
    with Agent() as agent:
        agent.do("profile", output_dir=str(directory), flush_interval=0.01)
        agent.do("enter", name="epoch")
        for _ in range(3):
            agent.do("steps", n=20)
            assert agent.do("flush")
            _remove(directory)
        first = agent.do("steps", n=20) - 20
        assert agent.do("flush")
        files = {path.name.partition("-")[0] for path in (directory / "state").iterdir()}
        assert files == {"owner", "journal"}
        with Agent() as other:  # another process sees that the first one lives
            other.do("profile", output_dir=str(directory), flush_interval=0.01)
            other.do("steps", n=1)
            assert other.do("shutdown")
        agent.do("steps", n=20)
        assert agent.do("flush")
        assert agent.do("health")["swallowed_error_count"] == 0
        pid = agent.do("pid")
        agent.kill()
    assert sum(done.incomplete for done in recovered(directory)) == 2
    found = whole(directory).of(pid)
    assert found.numbers() == list(range(first, first + 40))
    assert found.names()["epoch"] == len(found.sessions) == 1


def test_a_directory_removed_again_and_again_under_its_hands(tmp_path: Path) -> None:
    directory = tmp_path / ".cirron"
    with Agent() as agent:
        agent.do("profile", output_dir=str(directory), flush_interval=0.001)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            agent.ask("steps", n=50)
            _remove(directory)
            agent.answer()
        first = agent.do("steps", n=50) - 50
        assert agent.do("flush")
        until(lambda: batch_files(directory))
        assert agent.do("shutdown")
        assert agent.end() == 0
    assert set(range(first, first + 50)) <= set(whole_marks(directory))


def whole_marks(directory: Path) -> list[int]:
    return whole(directory).numbers()


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
