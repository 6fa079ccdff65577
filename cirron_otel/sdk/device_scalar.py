"""A scalar on a GPU: copied where the mark is made, read by the flush thread once it is here.

The flush thread asks nothing of CUDA. Its own stream would not wait for the one that the value was
computed on, and a question from another thread breaks a graph capture (CUDA's documentation,
"cudaThreadExchangeStreamCaptureMode").
"""

from __future__ import annotations

import sys
from time import monotonic, sleep
from typing import Any

DEADLINE_S = 10.0
"""So long it is waited for; a device that hangs is not to hold up the flush thread for good."""
SHORT_S = 0.05
"""So long behind one that did not come: many may be on their way from the same device."""


class CapturedError(RuntimeError):
    """The value is not computed yet: what it comes out of is captured into a graph."""


class _Patience:
    """How long the next one is waited for."""

    def __init__(self) -> None:
        self.seconds = DEADLINE_S


patience = _Patience()


class Arriving:
    """A copy of a scalar on its way from the device. Called, it gives the number."""

    __slots__ = ("_arrived", "_told")

    def __init__(self, told: Any, arrived: Any) -> None:
        """`told` is the copy, `arrived` turns 1 behind it: tensors in the host's memory."""
        self._told, self._arrived = told, arrived

    def __call__(self) -> Any:
        """The number. Raises TimeoutError where it does not come."""
        until = monotonic() + patience.seconds
        while int(self._arrived.item()) != 1:
            if monotonic() >= until:
                waited, patience.seconds = patience.seconds, SHORT_S
                raise TimeoutError(f"the device did not come to it within {waited:g} s")
            sleep(0.001)
        patience.seconds = DEADLINE_S
        return self._told.item()


def arriving(value: Any) -> Arriving | None:
    """Have a tensor of one element copied, on the stream that is current; None where it is on no
    CUDA device (ROCm has the same interface). Nothing is waited for.

    Raises CapturedError while a graph is captured, for then nothing is computed.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.device.type != "cuda":
        return None
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise CapturedError("it is computed in a CUDA graph that is being captured")
    with torch.no_grad():
        told = torch.empty((), dtype=value.dtype, device="cpu", pin_memory=True)
        arrived = torch.zeros((), dtype=torch.int32, device="cpu", pin_memory=True)
        told.copy_(value.detach().reshape(()), non_blocking=True)
        arrived.copy_(
            torch.ones((), dtype=torch.int32, device=value.device), non_blocking=True
        )  # fmt: skip
    return Arriving(told, arrived)
