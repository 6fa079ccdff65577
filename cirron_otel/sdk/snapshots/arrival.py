"""Copy results from a device to host memory, without waiting for the device."""

from __future__ import annotations

import sys
from typing import Any

BLOCK = 1 << 18
"""Bytes of pinned memory that results share: to allocate some may take longer than to compute."""
_WORD = 8


class ResultMemory:
    """Pinned memory, of which each result has a part that no other one ever has."""

    def __init__(self, block: int = BLOCK) -> None:
        """`block` is the number of bytes that are allocated at a time, at least."""
        self._least = block
        self._block: Any = None
        self._used = 0

    def take(self, size: int) -> Any:
        """Return `size` bytes, a multiple of 8, as int8; they are zero."""
        torch = sys.modules["torch"]
        if self._block is None or self._used + size > len(self._block):
            most = max(size, self._least)
            self._block = torch.zeros(most, dtype=torch.int8, device="cpu", pin_memory=True)
            self._used = 0
        self._used += size
        return self._block[self._used - size : self._used]


class Arrival:
    """A tensor that is being copied to host memory."""

    __slots__ = ("_arrived", "values")

    def __init__(self, values: Any, memory: ResultMemory | None = None, one: Any = None) -> None:
        """Start to copy `values` to pinned memory on the current stream, if it is on a device.

        `memory` is the memory to use, and `one` is 1 on the device, int32; None: new ones.
        """
        torch = sys.modules["torch"]
        self.values = values
        """The values in host memory; valid once `is_here` is true."""
        self._arrived: Any = None
        """A tensor in pinned memory that becomes 1 once the values have arrived.

        Reading it makes no CUDA call: a query in another thread would break a graph capture.
        """
        if values.device.type == "cpu":
            return
        size = values.numel() * values.element_size()
        room = size + -size % _WORD
        taken = (memory or ResultMemory(0)).take(room + _WORD)
        self.values = taken[:size].view(values.dtype).view(values.shape)
        self._arrived = taken[room:].view(torch.int32)
        self.values.copy_(values, non_blocking=True)
        if one is None:
            one = torch.ones(1, dtype=torch.int32, device=values.device)
        self._arrived[:1].copy_(one, non_blocking=True)

    @property
    def is_here(self) -> bool:
        """Whether the values have arrived."""
        return self._arrived is None or bool(self._arrived[0] == 1)
