"""Copy results from a device to host memory, without waiting for the device."""

from __future__ import annotations

import sys
from typing import Any


class Arrival:
    """A tensor that is being copied to host memory."""

    __slots__ = ("_arrived", "values")

    def __init__(self, values: Any) -> None:
        """Start to copy `values` to pinned memory on the current stream, if it is on a device."""
        torch = sys.modules["torch"]
        self.values = values
        """The values in host memory; valid once `is_here` is true."""
        self._arrived: Any = None
        """A tensor in pinned memory that becomes 1 once the values have arrived.

        Reading it makes no CUDA call: a query in another thread would break a graph capture.
        """
        if values.device.type == "cpu":
            return
        self.values = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        self._arrived = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=True)
        self.values.copy_(values, non_blocking=True)
        one = torch.ones(1, dtype=torch.int32, device=values.device)
        self._arrived.copy_(one, non_blocking=True)

    @property
    def is_here(self) -> bool:
        """Whether the values have arrived."""
        return self._arrived is None or bool(self._arrived[0] == 1)
