"""The memory of a run: samples by device, peaks by phase, and alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...analysis.memory_series import (
    MAX_ROWS,
    DeviceMemory,
    MemoryAlert,
    MemoryByPhase,
    MemoryReport,
)
from ...analysis.run_batch import either
from ...records.memory_devices import CPU
from ...records.memory_marks import SAMPLE, MemoryMark
from ...records.rows import IndexedMark, IndexedSpan, shown

_SEVERITY: Final = {"oom": 0, "critical": 1, "warning": 3}


class MemorySample(NamedTuple):
    """A mark about memory, and the scope that it is on, if that is recorded."""

    no: int
    mark: IndexedMark
    memory: MemoryMark
    scope: IndexedSpan | None

    @property
    def rank(self) -> int | None:
        """The rank of the scope."""
        return None if self.scope is None else self.scope.rank

    @property
    def device(self) -> str:
        """The device as text."""
        return shown(self.memory.device) or ""

    def is_of(self, device: DeviceMemory) -> bool:
        """Return whether it is a sample of a device of a rank."""
        is_same = self.rank == device.rank and self.device == device.device
        return is_same and self.memory.kind == SAMPLE

    @property
    def time(self) -> tuple[bool, int, int]:
        """The place in the order of time; a mark without a time comes first."""
        return self.mark.ts_ns is not None, self.mark.ts_ns or 0, self.no


@dataclass(slots=True)
class MemoryFold:
    """The samples and alerts of a run, which are added in any order."""

    _devices: dict[tuple[int | None, str], DeviceMemory] = field(default_factory=dict)
    _last: dict[tuple[int | None, str], MemorySample] = field(default_factory=dict)
    _phases: dict[tuple[int | None, str, str], MemoryByPhase] = field(default_factory=dict)
    _alerts: list[MemorySample] = field(default_factory=list)

    def add(self, samples: Iterable[MemorySample]) -> None:
        """Add marks about memory."""
        for each in samples:
            if each.memory.kind == SAMPLE:
                self._add_sample(each)
            else:
                self._alerts.append(each)

    def _add_sample(self, each: MemorySample) -> None:
        memory, device = each.memory, each.device
        allocated, key = memory.allocated or 0, (each.rank, device)
        found = self._devices.get(key)
        if found is None:
            found = self._devices[key] = DeviceMemory(
                each.rank, device, 0, allocated, allocated, None, None, None, None, None
            )
        found.samples += 1
        found.min_bytes = min(found.min_bytes, allocated)
        found.max_bytes = max(found.max_bytes, allocated)
        found.max_reserved_bytes = either(max, found.max_reserved_bytes, memory.reserved)
        found.max_device_used_bytes = either(max, found.max_device_used_bytes, memory.device_used)
        found.device_total_bytes = either(max, found.device_total_bytes, memory.device_total)
        if device != CPU:
            of_device, of_allocator = _gaps(memory)
            found.max_device_gap_bytes = either(max, found.max_device_gap_bytes, of_device)
            found.max_allocator_gap_bytes = either(max, found.max_allocator_gap_bytes, of_allocator)
        last = self._last.get(key)
        if last is None or each.time > last.time:
            self._last[key] = each
        if each.scope is not None:
            name = shown(each.scope.name) or "?"
            phase = self._phases.setdefault(
                (each.rank, name, device), MemoryByPhase(each.rank, name, device, 0, allocated)
            )
            phase.samples += 1
            phase.sampled_peak_bytes = either(max, phase.sampled_peak_bytes, allocated)

    def result(
        self, peaks: Iterable[tuple[int | None, str, bool, int | None, int | None]]
    ) -> MemoryReport:
        """Return the memory of the run; `peaks` are those of the scopes' own attributes."""
        devices = sorted(self._devices.values(), key=lambda each: (_rank(each.rank), each.device))
        for each in devices:
            if each.device != CPU:  # the resident set has neither gap
                gaps = _gaps(self._last[each.rank, each.device].memory)
                each.last_device_gap_bytes, each.last_allocator_gap_bytes = gaps
        phases = sorted(
            self._phases.values(),
            key=lambda each: (
                _rank(each.rank), each.device, -(each.sampled_peak_bytes or 0), each.name
            ),
        )  # fmt: skip
        return MemoryReport(
            devices[:MAX_ROWS],
            list(_with_peaks(phases[:MAX_ROWS], peaks)),
            list(self._most_severe()),
        )

    def _most_severe(self) -> Iterator[MemoryAlert]:
        ranked = sorted(
            self._alerts,
            key=lambda each: (_SEVERITY.get(each.memory.kind, 2), *each.time),
        )
        for each in sorted(ranked[:MAX_ROWS], key=lambda each: each.mark.ts_ns or 0):
            mark, memory, scope = each.mark, each.memory, each.scope
            value = mark.value if mark.value is not None else mark.value_nonfinite
            yield MemoryAlert(
                each.rank, memory.kind, each.device, shown(memory.detail),
                mark.ts_ns, mark.span_id, shown(value),
                "?" if scope is None else shown(scope.name) or "?",
            )  # fmt: skip


def _with_peaks(
    phases: list[MemoryByPhase],
    peaks: Iterable[tuple[int | None, str, bool, int | None, int | None]],
) -> list[MemoryByPhase]:
    by_name: dict[tuple[int | None, str, bool], list[MemoryByPhase]] = {}
    devices: dict[tuple[int | None, bool], set[str]] = {}
    for each in phases:
        is_cpu = each.device == CPU
        by_name.setdefault((each.rank, each.name, is_cpu), []).append(each)
        devices.setdefault((each.rank, is_cpu), set()).add(each.device)
    for rank, name, is_sampled, device_peak, memory_peak in list(peaks)[:MAX_ROWS]:
        for is_cpu, device, peak in ((False, "cuda", device_peak), (True, CPU, memory_peak)):
            if peak is None:
                continue
            same = by_name.get((rank, name, is_cpu), [])
            if len(same) != 1:
                if len(phases) == MAX_ROWS:
                    continue
                # The attribute does not name the device; samples are those of a known one.
                only = devices.get((rank, is_cpu), set()) if is_sampled else set()
                known = next(iter(only)) if len(only) == 1 else device
                same = [MemoryByPhase(rank, name, known, 0, None)]
                phases += same
            if is_sampled:
                same[0].sampled_peak_bytes = max(same[0].sampled_peak_bytes or 0, peak)
            else:
                same[0].peak_bytes = peak
    return phases


def _gaps(memory: MemoryMark) -> tuple[int | None, int | None]:
    """Return what others use on the device, and what the allocator keeps unused, bytes."""
    used, reserved, allocated = memory.device_used, memory.reserved, memory.allocated
    of_device = None if used is None or reserved is None else max(used - reserved, 0)
    of_allocator = None if reserved is None or allocated is None else max(reserved - allocated, 0)
    return of_device, of_allocator


def _rank(rank: int | None) -> tuple[bool, int]:
    return rank is not None, rank or 0
