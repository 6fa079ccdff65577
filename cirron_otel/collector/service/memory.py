"""Return the memory that the C library retains after large batches to the system."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

KEPT = {
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "67108864",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONMALLOC": "malloc",
}
"""Environment of the second process, for glibc (mallopt(3)).

A batch takes megabytes of memory. With its default thresholds, glibc returns this memory to the
system after each batch, and the next batch faults it in again page by page, which takes a tenth of
the time of a translation. With one arena, threads reuse each other's memory. Python's own allocator
returns memory only in units of a megabyte that contain no object; glibc can return single pages.
"""

_EVERY_S = 60.0


class Trimmer:
    """Returns free memory to the system once a minute.

    Otherwise the resident set would grow for hours: each batch that is larger than all earlier
    batches leaves free pages, with small objects scattered among them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds and never goes backwards."""
        self._clock = clock
        self._due_at = clock() + _EVERY_S

    def trim(self) -> bool:
        """Return free memory if at least a minute has passed; True if any was returned."""
        now = self._clock()
        if now < self._due_at:
            return False
        self._due_at = now + _EVERY_S
        return give_back()


def give_back() -> bool:
    """Return free pages to the system; False if there are none or malloc_trim(3) is missing."""
    function: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return function is not None and bool(function(0))
