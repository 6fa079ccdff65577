"""The environment in a bundle: only facts and variables that are listed here, so no secrets."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any, Final

from ..session.errors import record_error

_VARIABLES: Final = (
    "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "NUMEXPR_MAX_THREADS", "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "RANK", "ROCR_VISIBLE_DEVICES", "WORLD_SIZE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "ZE_AFFINITY_MASK",
)  # fmt: skip
"""Variables that affect how much memory a program needs or gets."""


def environment(sample: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Any:
    """Return the process's environment; the host's memory is that of `sample`, if it is known."""
    return {
        "pid": os.getpid(),
        "cwd": _working_directory(),
        "system": {
            "platform": platform.system(),
            "architecture": platform.machine(),
            "python_version": sys.version,
            "cpu_count_logical": os.cpu_count(),
            **_torch(),
            **_memory(sample),
        },
        "variables": {name: environ[name] for name in _VARIABLES if name in environ},
    }


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - the text is what is needed
    except OSError:  # it was removed
        return None


def _torch() -> dict[str, Any]:
    """Return torch's versions, and the devices of the backends that the program has initialised.

    After an error of a device, its driver may refuse each call: such facts are left out.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "version"):
        return {"torch_available": False}
    values: dict[str, Any] = {"torch_available": True}
    try:
        values["torch_version"] = str(torch.__version__)
        values["cuda_version"] = torch.version.cuda
        values["rocm_version"] = torch.version.hip
        for backend in ("cuda", "xpu"):
            module = getattr(torch, backend, None)
            if module is not None and module.is_initialized():
                values[f"{backend}_available"] = True
                values[f"{backend}_devices"] = [
                    module.get_device_name(device) for device in range(module.device_count())
                ]
    except Exception as error:
        record_error("out-of-memory environment", error)
    return values


def _memory(sample: Mapping[str, Any]) -> dict[str, int]:
    total, used = sample.get("host_total_bytes"), sample.get("host_used_bytes")
    if total is None or used is None:
        return {}
    return {"memory_total": total, "memory_available": total - used}
