"""The time that the training thread loses to the flush thread.

While the flush thread holds the interpreter lock, or the CPU, the training thread waits. Its CPU
time shows that: during a flush it grows more slowly than between two flushes. Work of the training
thread that needs no lock, such as a matrix product, continues, and costs nothing
(docs/adr/0049).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from ..tracing.clock import now
from ..tracing.phase import Phase
from ..tracing.scope import Scope

MOST_WINDOWS: Final = 4_096
"""Maximum number of flushes whose times wait for the records of the scopes that they slowed."""
_LEAST_NS: Final = 1_000_000
"""A shorter time between two flushes does not show how much CPU time the thread uses."""
_end = attrgetter("_end")
_LEAST_RATE: Final = 0.05
"""A thread that uses less CPU time than this part of the time waits for other work."""


class Window:
    """The time of a flush, monotonic ns, and the time that the training thread lost in it, ns."""

    __slots__ = ("end", "lost", "start")

    def __init__(self, start: int, end: int, lost: int) -> None:
        self.start, self.end, self.lost = start, end, lost


class Background:
    """Measures the flushes of one thread, which calls `begin` and `end`. Nothing is raised."""

    def __init__(self) -> None:
        self.thread: int | None = None
        """The training thread, by `threading.get_ident`; None until a scope has ended."""
        self.windows: deque[Window] = deque(maxlen=MOST_WINDOWS)
        """The flushes whose times are not recorded yet."""
        self.cpu_ns = self.lost_ns = 0
        """The CPU time of all flushes, and the time that the training thread lost in them."""
        self._clock: int | None = None
        self._clock_of: int | None = None
        self._last: tuple[int, int] | None = None
        """The end of the last flush, and the CPU time of the training thread then."""
        self._begun: tuple[int, int, int | None] | None = None
        self._rate: float | None = None
        """The CPU time of the training thread per nanosecond between flushes, smoothed."""
        self._sum = 0.0
        """The lost time, ns, before limits; it may decrease."""

    def begin(self) -> None:
        """Record that a flush begins."""
        try:
            at, cpu = now(), self._training_cpu()
            if cpu is not None and self._last is not None:
                wall = at - self._last[0]
                if wall >= _LEAST_NS:
                    rate = min(max((cpu - self._last[1]) / wall, 0.0), 1.0)
                    self._rate = rate if self._rate is None else (self._rate + rate) / 2
            self._begun = at, time.thread_time_ns(), cpu
        except (OSError, ValueError):
            self._begun = None

    def end(self) -> None:
        """Record that the flush has ended."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            start, own, before = begun
            end, cpu = now(), self._training_cpu()
            own = time.thread_time_ns() - own
        except (OSError, ValueError):
            return
        self.cpu_ns += own
        self._last = None if cpu is None else (end, cpu)
        if cpu is not None and before is not None:
            if self._rate is not None and self._rate >= _LEAST_RATE:
                self._sum += (end - start) - (cpu - before) / self._rate
        elif self.thread is not None and not has_clocks():
            self._sum += own  # the thread may have lost as much as this one used
        # One flush may be off by a switch of threads, either way; the sum is not.
        lost = int(min(self._sum, self.cpu_ns)) - self.lost_ns
        if lost > 0:
            self.lost_ns += lost
            self.windows.append(Window(start, end, lost))

    def _training_cpu(self) -> int | None:
        """Return the CPU time of the training thread, ns; None if it is unknown."""
        if self.thread is None or not has_clocks():
            return None
        if self._clock_of != self.thread:
            self._clock_of, self._clock, self._last = self.thread, _clock_of(self.thread), None
        if self._clock is None:
            return None
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:  # the thread has ended
            self._clock = None
            return None


def distribute(windows: Iterable[Window], ended: Sequence[Scope], inside: dict[Any, int]) -> int:
    """Add the lost times to those inside the scopes that ended in the windows.

    `ended` is sorted by end. The time of a window without an ended scope is added to the next one,
    or else to the last one. Returns the number of windows whose times were added.
    """
    count = 0
    for window in windows:
        first = bisect_left(ended, window.start, key=_end)
        last = bisect_right(ended, window.end, first, key=_end)
        some = [each for each in ended[first:last] if type(each) is not Phase]
        if not some:
            later = (each for each in ended[last:] if type(each) is not Phase)
            some = list(islice(later, 1)) or [each for each in ended[:first] if each._depth][-1:]
        if not some:
            break
        share, rest = divmod(window.lost, len(some))
        for each in some:
            inside[each] = inside.get(each, 0) + share
        inside[some[-1]] += rest
        count += 1
    return count


def has_clocks() -> bool:
    """Return whether the CPU time of another thread can be read."""
    return sys.platform == "linux"


def _clock_of(ident: int) -> int | None:
    """Return the CPU clock of a thread of this process; None if there is no such thread.

    Linux encodes the kernel's id of the thread in the number of the clock, and refuses that of a
    thread that has ended, whereas `pthread_getcpuclockid` would read freed memory then.
    """
    for thread in threading.enumerate():
        if thread.ident == ident and thread.native_id is not None:
            return (~thread.native_id << 3) | 6
    return (~os.getpid() << 3) | 6 if ident == threading.main_thread().ident else None
