"""Rows of StepTimeTable and step_memory: steps with their phases and peaks of memory."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ....ids import INT64_LIMIT
from .numbers import MAX_DURATION_MS, count, duration_ns, identifier, number, text, time_ns

STEP_TABLE: Final = "StepTimeTable"
MEMORY_TABLE: Final = "step_memory"
PHASES: Final = {
    "_traceml_internal:dataloader_next": "data_load",
    "_traceml_internal:h2d_time": "h2d",
    "_traceml_internal:forward_time": "forward",
    "_traceml_internal:backward_time": "backward",
    "_traceml_internal:optimizer_step": "optimizer_step",
}
"""The names of phases by the names of TraceML's events, in the order in which they are laid out."""
STEP_EVENT: Final = "_traceml_internal:step_time"
PEAK: Final = "cuda.memory_peak_bytes"
RESERVED_PEAK: Final = "cuda.memory_reserved_peak_bytes"
SUMS: Final = "traceml.phases_are_sums"
STEP_NS: Final = "traceml.step_time_ns"
_STEP_KEYS: Final = frozenset({"seq", "timestamp", "step", "events"})
_EVENT_KEYS: Final = frozenset({"is_gpu", "duration_ms", "cpu_ms", "gpu_ms", "n_calls"})


_PLACES: Final = {event: (name, at) for at, (event, name) in enumerate(PHASES.items())} | {
    STEP_EVENT: ("", -1)
}
"""The phase of each event, and its position; step_time has no name."""


class Timing(NamedTuple):
    """The sum of one event's durations in a step, over its devices."""

    duration_ns: int
    gpu_ns: int | None
    """The sum of the durations on devices; None if none was measured there."""
    calls: int
    devices: tuple[str, ...]


class StepPhase(NamedTuple):
    """A phase with its place in the step."""

    name: str
    start_ns: int
    timing: Timing


class StepRow(NamedTuple):
    """A step as its row describes it."""

    number: int | None
    start_ns: int
    end_ns: int
    phases: tuple[StepPhase, ...]
    whole: Timing | None
    """The event step_time, which does not contain the loading of data."""
    extra: dict[str, Any]
    """Keys and events of the row that the step has no place for, verbatim."""


class Peaks(NamedTuple):
    """The peaks of a step_memory row, bytes; None if unknown."""

    allocated: int | None
    reserved: int | None
    device: str | None

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the step."""
        values = {PEAK: self.allocated, RESERVED_PEAK: self.reserved, "device": self.device}
        return {key: value for key, value in values.items() if value is not None}


class UsualStep(NamedTuple):
    """A step as nearly all rows describe it: each event on the CPU only, with known keys."""

    number: int
    start_ns: int
    end_ns: int
    phases: list[tuple[int, str, int, int]]
    """The position in PHASES, the name, the duration in ns, and the number of calls."""
    whole_ns: int | None
    """The duration of step_time."""


def usual_step_of(row: dict[str, Any]) -> UsualStep | None:
    """Return the step of a row of the usual shape, or None: `step_of` reads all rows.

    This is the fast path of the collector.
    """
    events, number, end_ns = row.get("events"), row.get("step"), time_ns(row.get("timestamp"))
    if type(events) is not dict or type(number) is not int or end_ns is None:
        return None
    if row.keys() != _STEP_KEYS or not 0 <= number < INT64_LIMIT:
        return None
    phases: list[tuple[int, str, int, int]] = []
    whole_ns, load_ns, phases_ns = None, 0, 0
    for event, devices in events.items():
        place = _PLACES.get(event)
        if place is None or type(devices) is not dict or len(devices) != 1:
            return None
        figures = devices.get("cpu")
        if type(figures) is not dict or not figures.keys() <= _EVENT_KEYS:
            return None
        ms, calls = figures.get("duration_ms"), figures.get("n_calls")
        if type(ms) is not float or not 0 <= ms < MAX_DURATION_MS or type(calls) is not int:
            return None
        if figures.get("is_gpu") or figures.get("gpu_ms") is not None or not 0 <= calls < 2**31:
            return None
        name, position = place
        duration_ns = round(ms * 1_000_000)
        if not name:
            whole_ns = duration_ns
            continue
        if position:
            phases_ns += duration_ns
        else:
            load_ns = duration_ns
        phases.append((position, name, duration_ns, calls))
    phases.sort()
    start_ns = max(0, end_ns - load_ns - max(whole_ns or 0, phases_ns))
    return UsualStep(number, start_ns, end_ns, phases, whole_ns)


def step_of(row: dict[str, Any]) -> StepRow | None:
    """Return the step of a row; None if its time is missing or not valid."""
    end_ns, events = time_ns(row.get("timestamp")), row.get("events")
    if end_ns is None or not isinstance(events, dict):
        return None
    extra = {key: value for key, value in row.items() if key not in _STEP_KEYS}
    timings: dict[str, Timing] = {}
    unknown: dict[str, Any] = {}
    for name, devices in events.items():
        timing = _timing(devices) if name in PHASES or name == STEP_EVENT else None
        if timing is None:
            unknown[name] = devices
        else:
            timings[name] = timing
            odd = _unknown_parts(devices)
            if odd:
                unknown[name] = odd
    if unknown:
        extra["events"] = unknown
    whole = timings.pop(STEP_EVENT, None)
    load = timings.get("_traceml_internal:dataloader_next")
    load_ns = load.duration_ns if load is not None else 0
    phases_ns = sum(each.duration_ns for each in timings.values()) - load_ns
    start_ns = max(0, end_ns - load_ns - max(whole.duration_ns if whole else 0, phases_ns))
    phases, at = [], start_ns
    for event, name in PHASES.items():
        if event in timings:
            phases.append(StepPhase(name, at, timings[event]))
            at += timings[event].duration_ns
    number = identifier(row.get("step"))
    if number is None and "step" in row:
        extra["step"] = row["step"]
    return StepRow(number, start_ns, end_ns, tuple(phases), whole, extra)


def _timing(devices: Any) -> Timing | None:
    """Add up the durations of an event; None if one of them is not a valid duration."""
    if not isinstance(devices, dict) or not devices:
        return None
    total, gpu_total, calls, is_measured = 0, 0, 0, False
    for figures in devices.values():
        duration = duration_ns(figures.get("duration_ms")) if isinstance(figures, dict) else None
        if duration is None:
            return None
        total += duration
        calls += count(figures.get("n_calls")) or 0
        gpu = duration_ns(figures.get("gpu_ms"))
        if gpu is None and figures.get("is_gpu") is True:
            gpu = duration
        if gpu is not None:
            gpu_total, is_measured = gpu_total + gpu, True
    return Timing(total, gpu_total if is_measured else None, calls, tuple(map(str, devices)))


def _unknown_parts(devices: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of an event that the mapping does not use, by device."""
    return {
        device: unknown
        for device, figures in devices.items()
        if (unknown := {k: v for k, v in figures.items() if k not in _EVENT_KEYS})
    }


def peaks_of(row: dict[str, Any]) -> Peaks | None:
    """Return the peaks of a row; None if a peak is neither a number of bytes nor null."""
    values = [row.get("peak_alloc"), row.get("peak_resv")]
    sizes = [count(value) for value in values]
    if any(v is not None and size is None for v, size in zip(values, sizes, strict=True)):
        return None
    if sizes == [None, None]:
        return Peaks(None, None, None)
    return Peaks(sizes[0], sizes[1], text(row.get("device")))


def step_number(row: dict[str, Any]) -> int | None:
    """Return the number of the step that a step_memory row belongs to."""
    value = number(row.get("step"))
    return identifier(value)
