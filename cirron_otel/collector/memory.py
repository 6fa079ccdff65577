"""Memory that the C library keeps after large batches, given back to the system."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

KEPT = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "67108864"}
"""Environment of the second process, for glibc (mallopt(3)).

A batch takes megabytes of memory. Without these settings glibc gives it back after each batch, and
the next batch faults it in page by page: a tenth of the time of a translation.
"""

_EVERY_S = 60.0


class Trimmer:
    """Gives free memory back once in a while, so that one large batch does not keep its memory.

    Without it the resident set grows for hours: each batch that is larger than those before it
    leaves its pages behind, and small objects lie scattered among them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._due_at = clock() + _EVERY_S

    def trim(self) -> bool:
        """Give memory back if the last time was a minute ago; returns whether any was."""
        now = self._clock()
        if now < self._due_at:
            return False
        self._due_at = now + _EVERY_S
        return give_back()


def give_back() -> bool:
    """Give all free pages back; returns whether there were any. Only glibc can (malloc_trim(3))."""
    function: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return function is not None and bool(function(0))
