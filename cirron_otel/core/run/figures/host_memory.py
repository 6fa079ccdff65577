"""The memory of processes on their hosts over time, from the samples of all devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...analysis.mark_series import Point, points_of
from ...records.memory_devices import CPU
from ...records.memory_marks import SAMPLE
from .memory import MemorySample


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The resident set of a process over time. Sizes are in bytes."""

    rank: int | None
    peak_bytes: int
    points: list[Point]
    limit_bytes: int | None
    """The limit of the cgroup, or the memory of the host: the one with less left."""
    used_bytes: int | None
    """The use of all processes that the limit applies to, in the last sample."""


def host_memory(samples: Iterable[MemorySample], points: int) -> Iterator[HostMemory]:
    """Yield the memory of each rank's process, as at most `points` points."""
    by_rank: dict[int | None, dict[int | None, tuple[int, MemorySample]]] = {}
    for each in samples:
        memory = each.memory
        size = memory.resident
        if size is None and each.device == CPU:
            size = memory.allocated
        if size is not None and memory.kind == SAMPLE:
            # The marks of several devices repeat the process's memory.
            by_rank.setdefault(each.rank, {})[each.mark.ts_ns] = size, each
    for rank in sorted(by_rank, key=lambda rank: (rank is not None, rank)):
        sizes = by_rank[rank]
        in_order = sorted(sizes, key=lambda at: (at is not None, at or 0))
        records = [(float(sizes[at][0]), at) for at in in_order]
        last = sizes[in_order[-1]][1].memory
        yield HostMemory(
            rank, max(size for size, _ in sizes.values()),
            list(points_of(records, len(records), points)), last.limit, last.limit_used,
        )  # fmt: skip
