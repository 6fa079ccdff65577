"""The time on the device by name, and the peaks of memory, from the sums over all spans."""

from __future__ import annotations

from collections.abc import Iterator

from ...analysis.mark_series import MAX_SERIES
from ...analysis.run_report import GpuTime
from ..load.lanes import LaneSums


def device_times(sums: LaneSums) -> list[GpuTime]:
    """Return the device time of each rank's scopes by name, the longest first; at most 1,000."""
    times = [
        GpuTime(rank, name, each.timed, each.gpu_ns, each.wall_ns)
        for (rank, name), each in sums.names.items()
        if each.timed
    ]
    times.sort(key=lambda each: (each.rank is not None, each.rank or 0, -each.gpu_ns, each.name))
    return times[:MAX_SERIES]


def peaks(sums: LaneSums) -> Iterator[tuple[int | None, str, bool, int | None, int | None]]:
    """Yield the rank, the name, whether the peaks are samples, and the peaks, in order."""
    rows = []
    for (rank, name), each in sums.names.items():
        for is_sampled, device, memory in (
            (False, each.device_peak, each.memory_peak),
            (True, each.sampled_device_peak, each.sampled_memory_peak),
        ):
            if device is not None or memory is not None:
                rows.append((rank, name, is_sampled, device, memory))
    yield from sorted(rows, key=lambda row: (row[0] is not None, row[0] or 0, row[1], row[2]))
