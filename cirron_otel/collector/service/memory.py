"""Return memory to the system that the C library keeps after large batches."""

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

A batch takes megabytes of memory. With its default thresholds glibc gives them back after each
batch, and the next batch faults them in page by page: a tenth of the time of a translation. With
one arena the threads reuse the memory of one another. Python's own allocator gives memory back by
the megabyte only, if no object is left in it; glibc can give back single pages.
"""

_EVERY_S = 60.0


class Trimmer:
    """Returns free memory to the system once a minute.

    Without it the resident set grows for hours: each batch that is larger than all earlier ones
    leaves pages behind, and small objects are scattered among them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds and never goes back."""
        self._clock = clock
        self._due_at = clock() + _EVERY_S

    def trim(self) -> bool:
        """Return free memory if the last time was a minute ago; True if any was returned."""
        now = self._clock()
        if now < self._due_at:
            return False
        self._due_at = now + _EVERY_S
        return give_back()


def give_back() -> bool:
    """Return free pages to the system; False if there are none, or without malloc_trim(3)."""
    function: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return function is not None and bool(function(0))
