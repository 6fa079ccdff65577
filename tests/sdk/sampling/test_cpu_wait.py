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
from cirron_otel.sdk.sampling.host_readers import CpuWaitReader
from cirron_otel.semconv import CPU_WAIT_NS
from tests.kit.sessions.processes import until
from tests.kit.sessions.spool_trees import read_spool

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


def test_another_training_thread_begins_anew(tmp_path: Path, other: threading.Thread) -> None:
    assert other.native_id is not None
    assert other.ident is not None
    reader = CpuWaitReader(tmp_path)
    write(tmp_path, {threading.get_native_id(): 5, other.native_id: 6})
    assert reader.read(OWN) is None
    assert reader.read(other.ident) is None
    write(tmp_path, {other.native_id: 16})
    assert reader.read(other.ident) == 10


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
        reader = CpuWaitReader()
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_process() -> None:
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        reader = CpuWaitReader()
        os.write(writable, str([reader.read(OWN) is None for _ in range(2)]).encode())
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
