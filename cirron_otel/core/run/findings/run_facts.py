"""The facts about a recorded run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...analysis.mark_series import Point
from ...analysis.memory_series import DeviceMemory, MemoryReport
from ...analysis.summary import SessionSummary
from ...records.memory_devices import CPU
from ..stall import Stall
from .facts import Facts, MemoryUse, OutOfMemory, State, ValueSeries
from .failures import is_interrupt

if TYPE_CHECKING:
    from ..run import Run

_OOM: Final = "oom"
_MOST_DEVICES: Final = 64
_POINTS: Final = 400


def facts_of(
    run: Run,
    *,
    unit: str | None = None,
    world_size: int | None = None,
    stalls: Sequence[Stall] = (),
    missing_files: int = 0,
) -> Facts:
    """Return the facts about a run.

    `unit` is the name of a unit, by default the recorded one. `world_size` is the number of ranks
    that the job has, if it is known. `stalls` are those of a running job. `missing_files` are parts
    of another source that could not be converted.
    """
    ledger: Any = getattr(run, "ledger", None)
    return Facts(
        ledger=ledger,
        unit=run.recording.unit_name if unit is None else unit,
        state=state_of(run.sessions),
        failures=run.failures,
        sessions=run.sessions,
        series=[
            ValueSeries(name, rank, numbers, times, is_eval)
            for name, rank, is_eval, numbers, times in run.mark_values()
        ],
        memory=list(_memory(run)),
        out_of_memory=list(_out_of_memory(run.memory)),
        cpu=run.readings.cpu(),
        gpu=run.readings.gpu(),
        temperature=run.readings.temperature(),
        stalls=stalls,
        dropped_records=sum(each.count for each in run.drops) + run.dropped_marks,
        missing_files=missing_files + run.unreadable_batches,
        summarised=run.summarised,
        replicas=run.replicas,
        places=run.places,
        cpu_waits=run.cpu_waits,
        settings=run.settings,
        world_size=world_size,
    )


def state_of(sessions: Iterable[SessionSummary]) -> State:
    """Return the state of a run from its sessions."""
    states = {each.state for each in sessions}
    if "open" in states:
        return "running"
    if any(is_interrupt(each.error) for each in sessions):
        return "interrupted"
    return "incomplete" if states & {"unfinished", "killed"} else "ended"


def _memory(run: Run) -> Iterator[MemoryUse]:
    report = run.memory
    peaks: dict[tuple[int | None, str], int] = {}
    for phase in report.phases:
        key = phase.rank, phase.device
        peaks[key] = max(peaks.get(key, 0), phase.peak_bytes or 0)
    points = [of_device for _, of_device in run.memory_points(_MOST_DEVICES, _POINTS)]
    for place, device in enumerate(report.devices):
        samples = points[place] if place < len(points) else []
        if device.device != CPU:
            yield _use(device, samples, peaks.get((device.rank, device.device), 0))
    for each in run.host_memory(_POINTS):
        times, sizes = _timed(each.points)
        peak = max(each.peak_bytes, peaks.get((each.rank, CPU), 0))
        yield MemoryUse(each.rank, CPU, peak, each.limit_bytes, times, sizes, each.used_bytes)


def _use(device: DeviceMemory, samples: Sequence[Point], exact_bytes: int) -> MemoryUse:
    sampled = device.max_reserved_bytes
    return MemoryUse(
        device.rank,
        device.device,
        max(device.max_bytes if sampled is None else sampled, exact_bytes),
        device.device_total_bytes,
        *_timed(samples),
    )


def _timed(samples: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """Return the times and the sizes of samples whose times are known."""
    timed = [each for each in samples if each.begin_ns is not None and each.numbers]
    times = np.array([each.begin_ns for each in timed], np.int64)
    return times, np.array([each.middle for each in timed], np.float64)


def _out_of_memory(memory: MemoryReport) -> Iterator[OutOfMemory]:
    for each in memory.alerts:
        if each.kind == _OOM:
            value = each.value or ""
            requested = int(value) if value.isdecimal() else None
            yield OutOfMemory(each.rank, each.time_ns, each.device or None, requested)
