"""Compute in a way that the program's modes of torch do not see.

FLOP counters, tracers and the default device are modes of a thread. Torch passes each operation of
the thread to them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


@contextmanager
def unseen() -> Iterator[None]:
    """Compute without gradients, and without the program's modes and `__torch_function__`."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction(), _without_modes(torch), torch.no_grad():
        yield


def _without_modes(torch: Any) -> AbstractContextManager[Any]:
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes  # noqa: PLC0415

    without_modes: AbstractContextManager[Any] = _disable_current_modes()
    return without_modes
