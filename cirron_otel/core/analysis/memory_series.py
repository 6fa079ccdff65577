"""The memory of a run: samples by device, peaks by phase, gaps, and alerts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any

from ..records.memory_devices import CPU
from .index import SpoolIndex, id_of
from .mark_series import Point, points_of

MAX_ROWS = 1000
"""The maximum number of devices, of phases, and of alerts in a report."""
_JOINED = """
FROM sample JOIN mark ON mark.file = sample.file AND mark.position = sample.position
LEFT JOIN span ON span.id = mark.span
"""
_LAST = "ORDER BY mark.ts_ns DESC, mark.no DESC LIMIT 1"
_DEVICES = f"""
SELECT span.rank, sample.device, count(*), min(sample.allocated), max(sample.allocated),
    max(sample.reserved), max(sample.device_used), max(sample.device_total),
    max(CASE WHEN sample.device <> 'cpu' THEN max(sample.device_used - sample.reserved, 0) END),
    max(CASE WHEN sample.device <> 'cpu' THEN max(sample.reserved - sample.allocated, 0) END)
{_JOINED} WHERE sample.kind = 'sample' GROUP BY span.rank, sample.device
ORDER BY span.rank, sample.device LIMIT ?
"""
_GAPS = f"""
SELECT max(sample.device_used - sample.reserved, 0), max(sample.reserved - sample.allocated, 0)
{_JOINED} WHERE sample.kind = 'sample' AND span.rank IS ? AND sample.device = ? {_LAST}
"""
_PHASES = f"""
SELECT span.rank, coalesce(nullif(span.name, ''), '?') AS named, sample.device, count(*),
    max(sample.allocated)
{_JOINED} WHERE sample.kind = 'sample' AND span.no IS NOT NULL
GROUP BY span.rank, named, sample.device ORDER BY span.rank, sample.device, 5 DESC, named LIMIT ?
"""
_PEAKS = """
SELECT rank, coalesce(nullif(name, ''), '?') AS named, is_peak_sampled, max(device_peak),
    max(memory_peak)
FROM span WHERE device_peak IS NOT NULL OR memory_peak IS NOT NULL
GROUP BY rank, named, is_peak_sampled ORDER BY rank, named LIMIT ?
"""
_ALERTS = f"""
SELECT span.rank, sample.kind, sample.device, sample.detail, mark.ts_ns, mark.span, mark.value,
    coalesce(nullif(span.name, ''), '?')
{_JOINED} WHERE sample.kind <> 'sample'
ORDER BY sample.kind <> 'oom', sample.kind <> 'critical', sample.kind = 'warning',
    mark.ts_ns, mark.no LIMIT ?
"""
"""The alerts, the most severe first."""
_COURSE = f"""
SELECT sample.allocated, mark.ts_ns
{_JOINED} WHERE sample.kind = 'sample' AND span.rank IS ? AND sample.device = ?
ORDER BY mark.ts_ns, mark.no
"""


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


def memory_report(index: SpoolIndex) -> MemoryReport:
    """Return the memory of the run in an index. Raises TargetError if there is no disk space."""
    devices = [DeviceMemory(*row) for row in index.rows(_DEVICES, MAX_ROWS)]
    for each in devices:
        if each.device != CPU:  # the resident set has neither gap
            last = next(index.rows(_GAPS, each.rank, each.device), (None, None))
            each.last_device_gap_bytes, each.last_allocator_gap_bytes = last
    alerts = [
        MemoryAlert(
            rank, kind, device, detail, time_ns, id_of(span) if span is not None else None,
            value, scope,
        )
        for rank, kind, device, detail, time_ns, span, value, scope in index.rows(
            _ALERTS, MAX_ROWS
        )
    ]  # fmt: skip
    alerts.sort(key=lambda alert: alert.time_ns or 0)
    return MemoryReport(devices, _phases(index), alerts)


def most_severe(alerts: list[MemoryAlert], most: int) -> list[MemoryAlert]:
    """Return at most `most` alerts in the order of time: warnings are left out first."""
    severity = {"oom": 0, "critical": 1, "warning": 3}
    ranked = sorted(enumerate(alerts), key=lambda pair: severity.get(pair[1].kind, 2))
    return [alert for _, alert in sorted(ranked[:most], key=itemgetter(0))]


def _phases(index: SpoolIndex) -> list[MemoryByPhase]:
    """Return the peaks by phase: of the samples, and of the scopes' own attributes."""
    phases = [MemoryByPhase(*row) for row in index.rows(_PHASES, MAX_ROWS)]
    by_name: dict[tuple[int | None, str, bool], list[MemoryByPhase]] = {}
    devices: dict[tuple[int | None, bool], set[str]] = {}
    for each in phases:
        is_cpu = each.device == CPU
        by_name.setdefault((each.rank, each.name, is_cpu), []).append(each)
        devices.setdefault((each.rank, is_cpu), set()).add(each.device)
    for rank, name, is_sampled, device_peak, memory_peak in index.rows(_PEAKS, MAX_ROWS):
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


def memory_courses(
    index: SpoolIndex, report: MemoryReport, most: int, limit: int
) -> Iterator[tuple[DeviceMemory, list[Point]]]:
    """Yield the samples of the first `most` devices over time, as at most `limit` points each."""
    for each in report.devices[:most]:
        rows = index.rows(_COURSE, each.rank, each.device)
        yield each, list(points_of(rows, each.samples, limit))
