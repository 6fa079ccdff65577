"""The names of devices in marks about memory, such as `cuda:0`, which reports and metrics share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CPU: Final = "cpu"
TRACKERS: Final = {
    "cuda": "stormlog.cuda_tracker",
    "rocm": "stormlog.rocm_tracker",
    "mps": "stormlog.mps_tracker",
    CPU: "stormlog.cpu_tracker",
}
"""Stormlog's trackers by its names of the backends."""
_ANY_DEVICE: Final = "gpu"
_BACKENDS: Final = {
    tracker: "cuda" if backend == "rocm" else backend for backend, tracker in TRACKERS.items()
}
"""The backends of Stormlog's trackers, as PyTorch names them: ROCm's devices are `cuda:N`."""
_OF_PROCESS: Final = frozenset({"stormlog.cpu_tracker", "stormlog.tensorflow.memory_tracker"})
"""The trackers whose samples without a device are the resident set of the process."""


def stormlog_backend(attrs: Mapping[str, Any]) -> str | None:
    """Return the backend of the device of an imported event; None if the device is unknown.

    `cpu` means that the event's memory is the resident set of the process.
    """
    collector = attrs.get("collector")
    if device_number(attrs) is None:
        return CPU if collector in _OF_PROCESS else None
    if isinstance(collector, str) and collector in _BACKENDS:
        return _BACKENDS[collector]
    return _ANY_DEVICE


def device_number(attrs: Mapping[str, Any]) -> int | None:
    """Return the number of a mark's device; None if the mark has none."""
    number = attrs.get("device_id")
    return number if type(number) is int and number >= 0 else None


def device_name(backend: str | None, attrs: Mapping[str, Any]) -> str | None:
    """Return the name of a mark's device; None if the device is unknown."""
    number = device_number(attrs)
    return None if backend is None or number is None else f"{backend}:{number}"
