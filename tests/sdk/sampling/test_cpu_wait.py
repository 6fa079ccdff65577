"""The time for which the training waits for a CPU: threads that count, and the marks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cirron_otel as ci
from cirron_otel.sdk.sampling import host_readers
from cirron_otel.sdk.sampling.host_readers import CpuWaitReader, cpu_wait_reader
from cirron_otel.semconv import CPU_WAIT_NS
from tests.kit.sessions.processes import until
from tests.kit.sessions.spool_trees import read_spool

pytestmark = pytest.mark.skipif(
    cpu_wait_reader() is None, reason="the system does not report waits for a CPU"
)
OWN = threading.get_ident()
NATIVE = 4_000_000
"""The id of a thread that Python has not started: larger than any in Linux by default."""


def write(proc: Path, waits: dict[int, int]) -> None:
    for number, wait in waits.items():
        folder = proc / "self" / "task" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"777 {wait} 5\n")


@pytest.fixture
def other() -> Iterator[threading.Thread]:
    """A thread of Python that does not train."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread
    over.set()
    thread.join()


def test_waits_of_the_training_thread_and_of_the_slowest_computing_thread_count(
    tmp_path: Path, other: threading.Thread
) -> None:
    own, beside = threading.get_native_id(), other.native_id
    assert beside is not None
    reader = CpuWaitReader(tmp_path)
    write(tmp_path, {own: 1_000, beside: 50, NATIVE: 10, NATIVE + 1: 20})
    assert reader.read(OWN) is None
    write(tmp_path, {own: 1_300, beside: 9_000, NATIVE: 15, NATIVE + 1: 60})
    assert reader.read(OWN) == 300 + 40
    write(tmp_path, {own: 1_300, beside: 9_900, NATIVE + 2: 7})
    assert reader.read(OWN) == 7


def test_another_thread_trains_from_then_on(tmp_path: Path, other: threading.Thread) -> None:
    assert other.native_id is not None
    assert other.ident is not None
    reader = CpuWaitReader(tmp_path)
    write(tmp_path, {threading.get_native_id(): 5, other.native_id: 6})
    assert reader.read(OWN) is None
    write(tmp_path, {threading.get_native_id(): 500, other.native_id: 16})
    assert reader.read(other.ident) == 10


def test_old_thread_that_is_read_for_the_first_time_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more threads than are read, and others of them once some have ended."""
    monkeypatch.setattr(host_readers, "_MOST_THREADS", 3)
    own = threading.get_native_id()
    reader = CpuWaitReader(tmp_path)
    write(tmp_path, {own: 1_000, **{NATIVE + each: 10_000 for each in range(9)}})
    assert reader.read(OWN) is None
    read = reader._before.keys() - {own}
    for each in read:
        (tmp_path / "self" / "task" / str(each) / "schedstat").unlink()
        (tmp_path / "self" / "task" / str(each)).rmdir()
    write(tmp_path, {own: reader._before[own] + 70})
    assert reader.read(OWN) == 70
    assert not reader._before.keys() & read


def test_thread_of_python_that_has_ended_does_not_count(tmp_path: Path) -> None:
    """Its task may be there for longer than it is known to Python."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    own, ended = threading.get_native_id(), thread.native_id
    assert ended is not None
    reader = CpuWaitReader(tmp_path)
    write(tmp_path, {own: 1_000, ended: 50_000})
    assert reader.read(OWN) is None
    thread.join()
    write(tmp_path, {own: 1_100, ended: 50_001})
    assert reader.read(OWN) == 101


def test_system_without_the_time_has_no_reader(tmp_path: Path) -> None:
    assert cpu_wait_reader(tmp_path) is None
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "schedstat").write_text("0 0 0\n")
    assert cpu_wait_reader(tmp_path) is not None


@pytest.mark.parametrize("content", [None, "", "777\n"])
def test_kernel_without_the_time(tmp_path: Path, content: str | None) -> None:
    write(tmp_path, {threading.get_native_id(): 5})
    (file,) = tmp_path.rglob("schedstat")
    file.unlink() if content is None else file.write_text(content)
    reader = CpuWaitReader(tmp_path)
    assert [reader.read(OWN) for _ in range(3)] == [None] * 3


def test_half_of_the_time_beside_a_busy_process_on_the_same_cpu() -> None:
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    busy = subprocess.Popen([sys.executable, "-S", "-E", "-c", "while True: pass"])
    try:
        reader = CpuWaitReader(Path("/proc"))
        reader.read(OWN)
        wall, used = time.monotonic_ns(), time.thread_time_ns()
        while time.thread_time_ns() - used < 500_000_000:
            pass
        wait = reader.read(OWN)
        assert wait is not None
        wall, used = time.monotonic_ns() - wall, time.thread_time_ns() - used
        assert wait == pytest.approx(wall - used, rel=0.2)
        assert wait > 0.2 * used
    finally:
        os.sched_setaffinity(0, cpus)
        busy.kill()
        busy.wait()


def test_forked_process() -> None:
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        try:
            reader = CpuWaitReader(Path("/proc"))
            os.write(writable, str([reader.read(OWN) is None for _ in range(2)]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(readable, 100) == b"[True, False]"
    os.close(readable)
    os.close(writable)


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("places", [True, False])
def test_marks_in_the_spool(tmp_path: Path, is_on: bool, places: bool) -> None:
    profiler = ci.profile(
        output_dir=tmp_path, exporters="none", join="none", handle_signals=False, frameworks=[],
        sample_interval=0.01, cpu_wait=is_on, places=places,
    )  # fmt: skip
    try:
        with ci.scope("epoch"), ci.scope("step"):
            until(lambda: ci.health()["sampling"]["samples"] > 5)
        assert profiler.health()["swallowed_errors"] == {}
    finally:
        ci.shutdown()
    found = [mark for mark in read_spool(tmp_path).marks if mark["name"] == CPU_WAIT_NS]
    assert bool(found) is is_on
    for mark in found:
        assert (mark["value_type"], mark["value"] >= 0, mark["attrs"]) == ("int", True, {})
