"""The statistics and the memory history of torch's allocators, read without waiting for a device.

Nothing here imports torch, initialises a device, or creates a context on one.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any, Final

from ..session.errors import record_error

_BACKENDS: Final = ("cuda", "xpu")
_ACTIVE: Final = "reserved_bytes.all.peak"
_MPS: Final = ("current_allocated_memory", "driver_allocated_memory", "recommended_max_memory")


def statistics() -> dict[str, dict[str, int]]:
    """Return the statistics of the allocators by device, such as `cuda:0`, in torch's own names.

    Only devices whose allocator has been active are included.
    """
    torch = sys.modules.get("torch")
    found: dict[str, dict[str, int]] = {}
    for backend in _BACKENDS:
        module = getattr(torch, backend, None)
        try:
            if module is None or not module.is_initialized():
                continue
            for device in range(module.device_count()):
                values = {name: int(value) for name, value in module.memory_stats(device).items()}
                if values.get(_ACTIVE):
                    found[f"{backend}:{device}"] = values
        except Exception as error:
            record_error("allocator statistics", error)
    try:
        found |= _mps(torch)
    except Exception as error:
        record_error("allocator statistics", error)
    return found


def _mps(torch: Any) -> dict[str, dict[str, int]]:
    mps = getattr(torch, "mps", None)
    if mps is None or not torch.backends.mps.is_available():
        return {}
    return {"mps:0": {name: int(getattr(mps, name)()) for name in _MPS if hasattr(mps, name)}}


def history() -> bytes | None:
    """Return torch's memory history as a pickle; None if torch does not record one.

    https://pytorch.org/memory_viz reads it. `torch.cuda.memory._record_memory_history` switches it
    on.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    is_recorded = getattr(getattr(torch, "_C", None), "_cuda_isHistoryEnabled", None)
    try:
        if cuda is None or is_recorded is None or not cuda.is_initialized() or not is_recorded():
            return None
        return pickle.dumps(cuda.memory._snapshot())
    except Exception as error:
        record_error("memory history", error)
        return None


def is_rocm() -> bool:
    """Return whether torch was built for AMD's devices, which it also calls `cuda`."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return bool(getattr(version, "hip", None))
