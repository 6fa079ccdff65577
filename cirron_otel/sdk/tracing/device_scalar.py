"""Scalars on a GPU: copied when the mark is made, and read by the flush thread once they arrive.

The flush thread makes no CUDA calls. Its own stream would not wait for the stream that computes
the value, and a call from another thread breaks a graph capture (CUDA's documentation,
"cudaThreadExchangeStreamCaptureMode").
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

DEADLINE_S = 10.0
"""Longest wait for a value, seconds: a device that hangs must not block the flush thread."""
SHORT_S = 0.05
"""Longest wait for a value after another has failed to arrive, seconds: many more may follow."""


class CapturedError(RuntimeError):
    """Raised if a value is not computed yet because a CUDA graph is being captured."""


class _Patience:
    """The time to wait for the next value."""

    def __init__(self) -> None:
        self.seconds = DEADLINE_S


patience = _Patience()


class Arriving:
    """A copy of a scalar that is being transferred from the device; a call returns the number."""

    __slots__ = ("_arrived", "_copy")

    def __init__(self, copy: Any, arrived: Any) -> None:
        """`copy` receives the scalar; then `arrived` becomes 1. Both are in host memory."""
        self._copy, self._arrived = copy, arrived

    def __call__(self) -> Any:
        """Return the number. Raises TimeoutError if it does not arrive."""
        await_arrival(lambda: int(self._arrived.item()) == 1)
        return self._copy.item()


def await_arrival(is_here: Callable[[], bool]) -> None:
    """Wait on the flush thread until a copy from a device is here.

    Raises TimeoutError if it does not arrive.
    """
    until = monotonic() + patience.seconds
    while not is_here():
        if monotonic() >= until:
            waited, patience.seconds = patience.seconds, SHORT_S
            raise TimeoutError(f"the value did not arrive from the device within {waited:g} s")
        sleep(0.001)
    patience.seconds = DEADLINE_S


def arriving(value: Any) -> Arriving | None:
    """Start to copy a tensor of one element on the current stream, without waiting.

    Returns None if the tensor is not on a CUDA device (ROCm has the same interface). Raises
    CapturedError while a graph is being captured, because nothing is computed then.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.device.type != "cuda":
        return None
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise CapturedError("it is computed in a CUDA graph that is being captured")
    with torch.no_grad():
        copy = torch.empty((), dtype=value.dtype, device="cpu", pin_memory=True)
        arrived = torch.zeros((), dtype=torch.int32, device="cpu", pin_memory=True)
        copy.copy_(value.detach().reshape(()), non_blocking=True)
        arrived.copy_(
            torch.ones((), dtype=torch.int32, device=value.device), non_blocking=True
        )  # fmt: skip
    return Arriving(copy, arrived)
