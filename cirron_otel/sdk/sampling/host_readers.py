"""Readers of the process's and the host's memory and of the process's CPU time (Linux).

A reader returns the mark attributes that are known; a value that the system does not have is
absent. It raises OSError or ValueError if a value that it has cannot be read.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...core.cgroup import memory_cgroup, read_small

Values = dict[str, int]
Reader = Callable[[], Values]

RSS: Final = "process_rss_bytes"
HOST_USED, HOST_TOTAL = "host_used_bytes", "host_total_bytes"
CGROUP_USED, CGROUP_LIMIT = "cgroup_used_bytes", "cgroup_limit_bytes"
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_KIB = 1024
_MOST_THREADS = 64


def process_reader(proc: Path) -> Reader | None:
    """Return a reader of the process's resident set; None if the system does not report it."""
    path = proc / "self" / "statm"

    def read() -> Values:
        return {RSS: int(read_small(path).split(b" ", 2)[1]) * _PAGE}

    return read if os.path.exists(path) else None  # noqa: PTH110 - it never raises


def host_reader(proc: Path) -> Reader | None:
    """Return a reader of the host's memory; None if the system does not report it.

    Used memory is the total without the memory that is available to programs without swapping.
    """
    path = proc / "meminfo"

    def read() -> Values:
        values = {}
        for line in read_small(path).splitlines()[:8]:
            name, _, rest = line.partition(b":")
            values[name] = int(rest.split()[0]) * _KIB
        total = values.get(b"MemTotal")
        if total is None or b"MemAvailable" not in values:
            raise ValueError(f"{path} has no MemTotal or no MemAvailable")
        return {HOST_USED: total - values[b"MemAvailable"], HOST_TOTAL: total}

    return read if os.path.exists(path) else None  # noqa: PTH110 - it never raises


def cgroup_reader(proc: Path) -> Reader | None:
    """Return a reader of the process's memory cgroup; None if the process has none."""
    group = memory_cgroup(proc / "self")
    if group is None:
        return None

    def read() -> Values:
        values = {CGROUP_USED: group.used()}
        limit = group.limit()
        if limit is not None:
            values[CGROUP_LIMIT] = limit
        return values

    return read


class CpuReader:
    """Reads the process's CPU utilization since the previous reading.

    The result is the share, 0 to 1, of the CPUs that the process may use (OpenTelemetry's
    `process.cpu.utilization`).
    """

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._before: tuple[int, int] | None = None

    def read(self) -> float | None:
        """Return the utilization; None for the first reading. Raises OSError."""
        at, used = self._now_ns(), time.process_time_ns()
        before, self._before = self._before, (at, used)
        if before is None or at <= before[0]:
            return None
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return (used - before[1]) / (at - before[0]) / max(cpus or 1, 1)


def cpu_wait_reader(proc: Path = Path("/proc")) -> CpuWaitReader | None:
    """Return a reader of waits for a CPU; None if the system does not report them."""
    path = proc / "self" / "schedstat"
    return CpuWaitReader(proc) if os.path.exists(path) else None  # noqa: PTH110 - it never raises


class CpuWaitReader:
    """Reads for how long the training was ready to run and waited for a CPU (Linux).

    The kernel keeps this time for each thread (`run_delay` in `schedstat`,
    Documentation/scheduler/sched-stats.rst). The result is the wait of the training thread, and the
    longest wait among the threads that Python does not know: libraries compute in those, and the
    training thread waits for the slowest of them.
    """

    def __init__(self, proc: Path) -> None:
        """`proc` is the mount point of procfs."""
        self._tasks = os.fspath(proc / "self" / "task")
        self._before: dict[int, int] = {}
        """The waits of all threads at the previous reading, ns."""
        self._is_part = False
        """Whether there were more threads than are read, so that an unknown one may be old."""

    def read(self, ident: int) -> int | None:
        """Return the wait since the previous reading, ns; `ident` is the training thread's id.

        None for the first reading of a thread, and for a thread that Python does not know.
        """
        python = {each.ident: each.native_id for each in threading.enumerate()}
        # In a forked process, Python 3.11 has the parent's number.
        python[threading.main_thread().ident] = os.getpid()
        training = python.get(ident)
        if training is None:
            return None
        before, is_part = self._before, self._is_part
        waits = self._before = self._read(training)
        if training not in waits or training not in before:
            return None
        known = {*python.values()}
        longest = max(
            (wait - before.get(number, wait if is_part else 0)
             for number, wait in waits.items() if number not in known),
            default=0,
        )  # fmt: skip
        return max(waits[training] - before[training], 0) + max(longest, 0)

    def _read(self, training: int) -> dict[int, int]:
        """Return the waits of the threads so far."""
        with os.scandir(self._tasks) as tasks:
            numbers = {int(task.name) for task in itertools.islice(tasks, _MOST_THREADS)}
        self._is_part = len(numbers) == _MOST_THREADS
        waits = {}
        for number in numbers | {training}:
            try:
                content = read_small(f"{self._tasks}/{number}/schedstat")
                waits[number] = int(content.split(b" ", 2)[1])
            except (OSError, IndexError):  # the thread has ended
                continue
        return waits
