"""The memory of a run: samples by device, peaks by phase, gaps, and alerts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any

MAX_ROWS = 1000
"""The maximum number of devices, of phases, and of alerts in a report."""


@dataclass(slots=True)
class DeviceMemory:
    """The samples of one device, or of the process, in one rank. Sizes are in bytes."""

    rank: int | None
    device: str
    """`cpu` for the resident set of a process without a device."""
    samples: int
    min_bytes: int
    max_bytes: int
    """The highest sampled value; the allocator's own peak may be higher."""
    max_reserved_bytes: int | None
    max_device_used_bytes: int | None
    device_total_bytes: int | None
    max_device_gap_bytes: int | None
    """Used on the device but not reserved by the allocator: other processes and libraries."""
    max_allocator_gap_bytes: int | None
    """Reserved by the allocator but not allocated: its cache and its fragments."""
    last_device_gap_bytes: int | None = None
    last_allocator_gap_bytes: int | None = None


@dataclass(slots=True)
class MemoryByPhase:
    """The highest memory in the scopes of one name."""

    rank: int | None
    name: str
    device: str
    samples: int
    """The number of samples in these scopes themselves, not in the scopes inside them."""
    sampled_peak_bytes: int | None
    peak_bytes: int | None = None
    """The exact peak, if the run was recorded with `cuda_memory` or `memory_peak`."""


@dataclass(slots=True)
class MemoryAlert:
    """An alert, an out-of-memory error, or a failure of the sampler."""

    rank: int | None
    kind: str
    """`warning`, `critical`, `oom`, `degraded` or `recovered`."""
    device: str
    detail: str | None
    time_ns: int | None
    span_id: str | None
    value: str | None
    scope: str


@dataclass(slots=True)
class MemoryReport:
    """The memory of a run; lists have at most 1,000 entries."""

    devices: list[DeviceMemory] = field(default_factory=list)
    phases: list[MemoryByPhase] = field(default_factory=list)
    alerts: list[MemoryAlert] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Return whether anything is recorded."""
        return bool(self.devices or self.phases or self.alerts)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object; sizes in bytes, times in Unix ns."""
        return {
            "devices": [asdict(each) for each in self.devices],
            "phases": [asdict(each) for each in self.phases],
            "alerts": [asdict(each) for each in self.alerts],
        }


def most_severe(alerts: list[MemoryAlert], most: int) -> list[MemoryAlert]:
    """Return at most `most` alerts in the order of time: warnings are left out first."""
    severity = {"oom": 0, "critical": 1, "warning": 3}
    ranked = sorted(enumerate(alerts), key=lambda pair: severity.get(pair[1].kind, 2))
    return [alert for _, alert in sorted(ranked[:most], key=itemgetter(0))]
