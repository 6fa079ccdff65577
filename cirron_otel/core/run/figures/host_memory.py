"""The memory of processes on their hosts over time, from the samples of all devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ...analysis.mark_series import Point, points_of
from ...records.memory_devices import CPU
from ...records.memory_marks import SAMPLE
from .memory import MemorySample

_Process: TypeAlias = tuple[int | None, int | None]
"""The rank and the id of a process."""


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


def host_memory(
    samples: Iterable[MemorySample], points: int, of_units: Collection[int | None]
) -> Iterator[HostMemory]:
    """Yield the memory of each process with units, or of all without one, as at most `points`.

    `of_units` has the process ids of the units. Processes without units are, for example, workers
    of a loader. A sample whose scope is not recorded belongs to the process of the others, if these
    are of one process.
    """
    by_process: dict[_Process, dict[int | None, tuple[int, MemorySample]]] = {}
    unplaced: dict[int | None, tuple[int, MemorySample]] = {}
    for each in samples:
        memory, scope = each.memory, each.scope
        size = memory.resident
        if size is None and each.device == CPU:
            size = memory.allocated
        if size is not None and memory.kind == SAMPLE:
            # The marks of several devices repeat the process's memory.
            sizes = (
                unplaced if scope is None else by_process.setdefault((scope.rank, scope.pid), {})
            )
            sizes[each.mark.ts_ns] = size, each
    if len(by_process) == 1:
        (sizes,) = by_process.values()
        sizes.update(unplaced)
    elif not by_process and unplaced:
        by_process[None, None] = unplaced
    processes = [each for each in by_process if each[1] in of_units] or [*by_process]
    for process in sorted(processes, key=lambda each: [(e is not None, e or 0) for e in each]):
        sizes = by_process[process]
        in_order = sorted(sizes, key=lambda at: (at is not None, at or 0))
        records = [(float(sizes[at][0]), at) for at in in_order]
        last = sizes[in_order[-1]][1].memory
        yield HostMemory(
            process[0], max(size for size, _ in sizes.values()),
            list(points_of(records, len(records), points)), last.limit, last.limit_used,
        )  # fmt: skip
