"""CPU time and peak memory of scopes, read from the kernel."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.sdk.session.errors import errors
from cirron_otel.sdk.tracing import costs
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.state import state
from tests.sdk.conftest import OpenSession

needs_proc = pytest.mark.skipif(not Path(costs.STATM).exists(), reason="no /proc here")
BLOCK = 64 << 20


@pytest.fixture
def measured(session: OpenSession) -> Iterator[OpenSession]:
    """A session whose scopes are shown to the meters, as the composition root does it."""
    state.observe_start = lambda scope, _context: costs.begin(scope)
    state.observe_end = lambda scope, _end: costs.end(scope)
    state.special = True
    yield session
    costs.configure(cpu_time=False, memory_peak=False)
    state.observe_start = state.observe_end = lambda _scope, _other: None


def spin(cpu_ns: int) -> None:
    """Use that much of this thread's CPU time, however long it takes."""
    end = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end:
        pass


def resident(size: int) -> mmap.mmap:
    """So many bytes that the process did not have: the heap may hold as many already."""
    block = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        block[page] = 1
    return block


def test_nothing_is_measured_unless_asked_for(measured: OpenSession) -> None:
    with Scope("a") as scope:
        pass
    assert (scope.more.cpu_ns, scope.more.memory_peak_bytes) == (None, None)


def test_cpu_time_counts_only_the_thread_of_the_scope(measured: OpenSession) -> None:
    costs.configure(cpu_time=True, memory_peak=False)
    stop = threading.Event()
    other = threading.Thread(target=lambda: (spin(20_000_000), stop.set()))
    with Scope("waits") as waits:
        other.start()
        stop.wait()
    other.join()
    with Scope("works") as works:
        spin(5_000_000)
    cpu = {span.name: span.cpu_ns for span in measured.rows()[0]}
    assert cpu["works"] >= 5_000_000
    assert cpu["waits"] < 20_000_000, "waiting for another thread is no CPU time of this one"
    assert waits.more.memory_peak_bytes is works.more.memory_peak_bytes is None


def test_a_scope_that_ends_on_another_thread_has_no_cpu_time(measured: OpenSession) -> None:
    costs.configure(cpu_time=True, memory_peak=False)
    scope = Scope("wanders")
    scope.__enter__()
    thread = threading.Thread(target=lambda: scope.__exit__(None, None, None))
    thread.start()
    thread.join()
    assert scope.end_ns
    assert scope.more.cpu_ns is None


@needs_proc
def test_a_peak_inside_is_seen_though_it_is_gone_at_the_end(measured: OpenSession) -> None:
    costs.configure(cpu_time=False, memory_peak=True)
    # As much as the process ever held, and a block more: so the highest is reached inside.
    spare = max(costs._peak() - costs._resident(), 0)
    with Scope("outer") as outer, Scope("inner") as inner:
        resident(spare + BLOCK).close()
    after = costs._resident()
    assert inner.more.memory_peak_bytes is not None
    assert inner.more.memory_peak_bytes > after + BLOCK // 2
    assert outer.more.memory_peak_bytes == inner.more.memory_peak_bytes
    spans, _ = measured.rows()
    assert {span.memory_peak_bytes for span in spans} == {inner.more.memory_peak_bytes}


@needs_proc
def test_without_a_new_peak_it_is_the_higher_end(measured: OpenSession) -> None:
    costs.configure(cpu_time=False, memory_peak=True)
    resident(2 * BLOCK).close()
    with Scope("holds") as holds:
        block = resident(BLOCK)
    with Scope("frees") as frees:
        block.close()
    with Scope("idle") as idle:
        pass
    small = idle.more.memory_peak_bytes
    assert small is not None
    for scope in (holds, frees):
        assert scope.more.memory_peak_bytes is not None
        assert scope.more.memory_peak_bytes > small + BLOCK // 2


def test_without_proc_memory_stays_unknown(measured: OpenSession, tmp_path: Path) -> None:
    costs.configure(cpu_time=True, memory_peak=True, statm=str(tmp_path / "statm"))
    with Scope("a") as scope:
        pass
    assert scope.more.memory_peak_bytes is None
    assert scope.more.cpu_ns is not None
    assert not errors.counts


def test_unreadable_memory_is_counted_and_the_scope_continues(
    measured: OpenSession, tmp_path: Path
) -> None:
    (tmp_path / "statm").write_text("garbage")
    costs.configure(cpu_time=True, memory_peak=True, statm=str(tmp_path / "statm"))
    with Scope("a") as scope:
        pass
    assert errors.counts["costs"] == 1
    assert scope.more.memory_peak_bytes is None
    assert [span.name for span in measured.rows()[0]] == ["a"]


def test_explicitly_ended_scope_has_no_costs(measured: OpenSession) -> None:
    costs.configure(cpu_time=True, memory_peak=True)
    with Scope("a") as scope:
        scope.end()
    assert (scope.more.cpu_ns, scope.more.memory_peak_bytes) == (None, None)


def test_scopes_open_when_measuring_stops_end_as_others_do(measured: OpenSession) -> None:
    costs.configure(cpu_time=False, memory_peak=True)
    with Scope("a") as scope:
        costs.configure(cpu_time=False, memory_peak=False)
    assert scope.more.memory_peak_bytes is None
    assert not errors.counts


@needs_proc
def test_forked_child_reads_the_memory_of_its_process(measured: OpenSession) -> None:
    costs.configure(cpu_time=False, memory_peak=True)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = costs._resident()
            block = resident(BLOCK)
            os.write(write, f"{costs._resident() - before} {len(block)}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        grown = int(told.read().split()[0])
    assert grown > BLOCK // 2
