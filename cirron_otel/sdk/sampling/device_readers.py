"""Readers of the memory of the devices that the program uses, through torch.

Nothing here imports torch, initializes a device, or creates a context on one. Only devices on which
torch's allocator has been active are read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

DEVICE_ID: Final = "device_id"
BACKEND: Final = "backend"
RESERVED: Final = "allocator_reserved_bytes"
ACTIVE: Final = "allocator_active_bytes"
INACTIVE: Final = "allocator_inactive_bytes"
DEVICE_USED: Final = "device_used_bytes"
DEVICE_FREE: Final = "device_free_bytes"
DEVICE_TOTAL: Final = "device_total_bytes"
CPU: Final = "cpu"
CPU_ID: Final = -1

Allocation = tuple[int, dict[str, int]]
"""The allocated bytes of a device, and the allocator's other values as attributes."""


class StatisticsAllocator:
    """The allocator of CUDA (also ROCm) or XPU; both have the same interface in torch."""

    def __init__(self, backend: str, module: Any) -> None:
        """`module` is `torch.cuda` or `torch.xpu`."""
        self.backend = backend
        self._module = module
        self.used: set[int] = set()
        """The devices on which the allocator has been active."""

    def read(self) -> dict[int, Allocation]:
        """Return the allocation on each device on which the allocator has been active."""
        if not self._module.is_initialized():
            return {}
        found = {}
        for device in range(self._module.device_count()):
            statistics: dict[str, Any] = self._module.memory_stats_as_nested_dict(device)
            if device in self.used or _was_active(statistics):
                self.used.add(device)
                found[device] = self._allocation(statistics)
        return found

    def _allocation(self, statistics: dict[str, Any]) -> Allocation:
        allocated, reserved, active = (
            int(statistics[f"{name}_bytes"]["all"]["current"])
            for name in ("allocated", "reserved", "active")
        )
        values = {RESERVED: reserved, ACTIVE: active, INACTIVE: max(reserved - active, 0)}
        return allocated, values

    def memory(self, device: int) -> dict[str, int]:
        """Return the device's own memory as attributes: used by all processes, free, and total."""
        free, total = (int(each) for each in self._module.mem_get_info(device))
        return {DEVICE_USED: total - free, DEVICE_FREE: free, DEVICE_TOTAL: total}


class MpsAllocator:
    """The allocator of Apple's GPUs, which share the host's memory."""

    backend = "mps"

    def __init__(self, module: Any) -> None:
        """`module` is `torch.mps`."""
        self._module = module
        self.used: set[int] = set()

    def read(self) -> dict[int, Allocation]:
        """Return the allocation on the one device once memory is allocated on it.

        The driver's bytes are those that the allocator reserves.
        """
        allocated = int(self._module.current_allocated_memory())
        if allocated:
            self.used.add(0)
        if not self.used:
            return {}
        return {0: (allocated, {RESERVED: int(self._module.driver_allocated_memory())})}

    def memory(self, _device: int) -> dict[str, int]:
        """Return the memory that Metal recommends not to exceed."""
        return {DEVICE_TOTAL: int(self._module.recommended_max_memory())}


Allocator = StatisticsAllocator | MpsAllocator


def _was_active(statistics: dict[str, Any]) -> bool:
    reserved = statistics.get("reserved_bytes", {}).get("all", {})
    return bool(reserved.get("current") or reserved.get("allocated"))


def allocators(torch: Any) -> Iterator[Allocator]:
    """Yield the allocators of the device types that this torch supports; `torch` is imported."""
    for backend in ("cuda", "xpu"):
        module = getattr(torch, backend, None)
        if module is not None and hasattr(module, "memory_stats_as_nested_dict"):
            yield StatisticsAllocator(backend, module)
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        yield MpsAllocator(torch.mps)


def imported_torch() -> Any:
    """Return torch if the program has imported it completely; None otherwise."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        return None
    return torch if hasattr(torch, "cuda") else None
