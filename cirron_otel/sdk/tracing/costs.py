"""Optional costs of a scope: CPU time of its thread, and the process's peak resident set.

Both are off by default, because each reading is a system call. `begin` and `end` are called for
every scope while at least one of them is on.
"""

from __future__ import annotations

import os
import sys
from threading import get_ident
from time import thread_time_ns
from typing import Any

from ..session.errors import record_error

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

STATM = "/proc/self/statm"
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in a unit of `ru_maxrss` (getrusage(2))."""


class _Meters:
    """The costs that are measured, and the open file from which memory is read."""

    def __init__(self) -> None:
        self.cpu_time = self.memory_peak = False
        self.statm = -1


_meters = _Meters()


def configure(*, cpu_time: bool, memory_peak: bool, statm: str = STATM) -> None:
    """Set the costs to measure from now on; `statm` is the kernel's file of memory sizes."""
    meters = _meters
    if meters.statm >= 0:
        os.close(meters.statm)
        meters.statm = -1
    meters.cpu_time, meters.memory_peak = cpu_time, memory_peak
    if memory_peak:
        try:
            meters.statm = os.open(statm, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            meters.memory_peak = False  # no such file on this system: memory stays None


def _renew() -> None:
    """In a forked child, reopen the file: the inherited one still reports the parent's memory."""
    if _meters.statm >= 0:
        configure(cpu_time=_meters.cpu_time, memory_peak=_meters.memory_peak)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def begin(scope: Any) -> None:
    """Read the costs when a scope starts. Raises nothing."""
    meters = _meters
    if not (meters.cpu_time or meters.memory_peak):
        return
    try:
        resident = peak = 0
        if meters.memory_peak:
            resident, peak = _resident(), _peak()
        cpu = thread_time_ns() if meters.cpu_time else -1
        scope.more.costs = (cpu, resident, peak)
    except Exception as error:
        record_error("costs", error)


def end(scope: Any) -> None:
    """Set `cpu_ns` and `memory_peak_bytes` of a scope that ends. Raises nothing.

    CPU time is measured per thread, so a scope that ends on a different thread than it began on has
    none. The peak is exact if the process reached its highest resident set so far inside the scope;
    otherwise it is the higher of the readings at the start and the end. A scope that is ended
    explicitly (`Span.end`) gets neither value.
    """
    extras = scope._extras
    costs = extras.costs if extras is not None else None
    if costs is None or scope._end:
        return
    try:
        cpu, resident, peak = costs
        extras.costs = None
        if cpu >= 0 and scope._thread == get_ident():
            extras.cpu_ns = max(thread_time_ns() - cpu, 0)
        if resident and _meters.memory_peak:
            highest = _peak()
            extras.memory_peak_bytes = highest if highest > peak else max(resident, _resident())
    except Exception as error:
        record_error("costs", error)


def resident_now(statm: str = STATM) -> int | None:
    """Return the current resident set in bytes; None if the kernel does not report it."""
    try:
        with open(statm, "rb") as file:  # noqa: PTH123 - a file of the kernel
            return int(file.read(64).split(b" ", 2)[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def _resident() -> int:
    """Return the current resident set in bytes (proc_pid_statm(5): second number, in pages)."""
    return int(os.pread(_meters.statm, 64, 0).split(b" ", 2)[1]) * _PAGE


def _peak() -> int:
    """Return the process's highest resident set so far in bytes; 0 if it is not available."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
