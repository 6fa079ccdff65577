"""The metric points of one mark: memory, utilisation, temperature and power, at the mark's time.

Two families of marks contain such readings: the SDK's sampler's own (`memory`,
`process.cpu.utilization`, `hw.…`), and the events that were imported from Stormlog
(`stormlog.sample`, `stormlog.allocation`, `stormlog.deallocation`). A reading that is null, absent
or unknown to its collector is no point. docs/metrics.md, "Memory", defines the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from ... import semconv as sc
from .memory_devices import CPU, device_name, stormlog_backend

Number = int | float
Attributes = tuple[tuple[str, str], ...]
"""The attributes of a point, which identify its series within an instrument and a resource."""

STORMLOG_PREFIX: Final = "stormlog."


class PointKind(Enum):
    """The kinds of OTLP metric data that points belong to."""

    UP_DOWN = auto()
    """An up-down counter: a cumulative sum that is not monotonic. Each point is the current sum."""
    GAUGE = auto()
    CHANGE = auto()
    """A sum of changes with delta temporality, which is not monotonic."""


class Instrument(NamedTuple):
    """The name, the unit and the kind of a metric."""

    name: str
    kind: PointKind
    unit: str
    description: str


class MemoryPoint(NamedTuple):
    """One data point."""

    instrument: Instrument
    attributes: Attributes
    time_ns: int
    """The time of the mark, in ns since the Unix epoch."""
    value: Number


PROCESS_USAGE: Final = Instrument(
    sc.MEMORY_USAGE, PointKind.UP_DOWN, "By", "The resident set of the process"
)
DEVICE_USAGE: Final = Instrument(
    sc.GPU_MEMORY_USAGE, PointKind.UP_DOWN, "By", "Memory of the device that is in use"
)
DEVICE_LIMIT: Final = Instrument(
    sc.GPU_MEMORY_LIMIT, PointKind.UP_DOWN, "By", "The size of the device's memory"
)
ALLOCATOR: Final = Instrument(
    sc.MEMORY_ALLOCATOR, PointKind.GAUGE, "By", "Memory of the allocator, by kind"
)
GAP: Final = Instrument(
    sc.MEMORY_GAP, PointKind.GAUGE, "By",
    "device: used on the device, but not reserved by the allocator;"
    " allocator: reserved, but not allocated",
)  # fmt: skip
CHANGE: Final = Instrument(
    sc.MEMORY_ALLOCATOR_CHANGE, PointKind.CHANGE, "By",
    "Changes of the allocated memory between two samples",
)  # fmt: skip
CPU_UTILIZATION: Final = Instrument(
    sc.CPU_UTILIZATION, PointKind.GAUGE, "1",
    "CPU time of the process, as a fraction of the time of its CPUs",
)  # fmt: skip
UTILIZATION: Final = Instrument(
    sc.GPU_UTILIZATION, PointKind.GAUGE, "1", "The fraction of time in which the device worked"
)
TEMPERATURE: Final = Instrument(
    sc.GPU_TEMPERATURE, PointKind.GAUGE, "Cel", "The temperature of the device"
)
POWER: Final = Instrument(sc.GPU_POWER, PointKind.GAUGE, "W", "The power that the device consumes")

INSTRUMENTS: Final = (
    PROCESS_USAGE, DEVICE_USAGE, DEVICE_LIMIT, ALLOCATOR, GAP, CHANGE,
    CPU_UTILIZATION, UTILIZATION, TEMPERATURE, POWER,
)  # fmt: skip
"""Every instrument, in the order of a message."""

_OF_DEVICE: Final = {each.name: each for each in (UTILIZATION, TEMPERATURE, POWER)}
_TYPED: Final = frozenset({TEMPERATURE, POWER})
"""The instruments for which the conventions require the attribute `hw.type`."""
_GPU: Final = (sc.HW_TYPE, "gpu")

_ALLOCATED: Final = "allocator_allocated_bytes"
_RESERVED: Final = "allocator_reserved_bytes"
_USED: Final = "device_used_bytes"
_TOTAL: Final = "device_total_bytes"
_CHANGED: Final = "allocator_change_bytes"
_RESIDENT: Final = "process_rss_bytes"
_KINDS: Final = {
    _ALLOCATED: "allocated",
    _RESERVED: "reserved",
    "allocator_active_bytes": "active",
    "allocator_inactive_bytes": "inactive",
}
"""The fields of a sample that are memory of the allocator, and the kind of each."""
_FIELDS: Final = (_RESERVED, *list(_KINDS)[2:], _USED, _TOTAL, _CHANGED)
"""The fields of a sample that are attributes of its mark."""


def memory_points(mark: Mapping[str, Any]) -> list[MemoryPoint]:
    """Return the points of a mark of a batch; empty if the mark is not a reading.

    `mark` has `name`, `value`, `attrs` and `ts_ns`, as in the spool. All points are at `ts_ns`, and
    belong to the resource of the mark's session.
    """
    name, attrs, time_ns = mark.get("name"), mark.get("attrs"), mark.get("ts_ns")
    if type(name) is not str or not isinstance(attrs, Mapping):
        return []
    if type(time_ns) is not int or time_ns < 0:
        return []
    value = _number(mark.get("value"))
    if name.startswith(STORMLOG_PREFIX):
        return _stormlog_points(name.removeprefix(STORMLOG_PREFIX), value, attrs, time_ns)
    if name == sc.MEMORY:
        return _sampled_points(value, attrs, time_ns)
    if value is None:
        return []
    if name == sc.CPU_UTILIZATION:
        return [MemoryPoint(CPU_UTILIZATION, (), time_ns, value)]
    instrument, hw_id = _OF_DEVICE.get(name), attrs.get(sc.HW_ID)
    if instrument is None or type(hw_id) is not str:
        return []
    device: Attributes = ((sc.HW_ID, hw_id),)
    if instrument in _TYPED:
        device = (*device, _GPU)
    return [MemoryPoint(instrument, device, time_ns, value)]


def _sampled_points(
    value: Number | None, attrs: Mapping[str, Any], time_ns: int
) -> list[MemoryPoint]:
    """Return the points of a `memory` mark; only the sampler's have the attribute `backend`."""
    backend = attrs.get("backend")
    if type(backend) is not str:
        return []
    resident = _number(attrs.get(_RESIDENT))
    if backend == CPU:
        resident = value if resident is None else resident
        return [] if resident is None else [MemoryPoint(PROCESS_USAGE, (), time_ns, resident)]
    points = _device_points(_device(backend, attrs), _readings(value, attrs), time_ns)
    if resident is not None:
        points.append(MemoryPoint(PROCESS_USAGE, (), time_ns, resident))
    return points


def _stormlog_points(
    event_type: str, value: Number | None, attrs: Mapping[str, Any], time_ns: int
) -> list[MemoryPoint]:
    """Return the points of an imported event: readings of a sample, or a change of allocations.

    No other event has a reading of its own. The trackers repeat the reading of a sample in the
    peak, allocation and alert events of the same sample, and the last one in boundaries of phases.
    """
    if event_type not in ("sample", "allocation", "deallocation"):
        return []
    unknown = _unknown_fields(attrs.get("metadata"))
    if unknown is None:
        return []
    readings = _readings(value, attrs)
    for field in unknown:
        readings.pop(field, None)
    backend = stormlog_backend(attrs)
    device = () if backend == CPU else _device(backend, attrs)
    if event_type != "sample":
        changed = readings.get(_CHANGED)
        return [] if changed is None else [MemoryPoint(CHANGE, device, time_ns, changed)]
    if backend == CPU:
        resident = readings.get(_ALLOCATED)
        return [] if resident is None else [MemoryPoint(PROCESS_USAGE, (), time_ns, resident)]
    return _device_points(device, readings, time_ns)


def _device_points(
    device: Attributes, readings: Mapping[str, Number], time_ns: int
) -> list[MemoryPoint]:
    """Return the points of the known readings of a device, and of its gaps."""
    points = []
    for field, instrument in ((_USED, DEVICE_USAGE), (_TOTAL, DEVICE_LIMIT)):
        if device and field in readings:
            points.append(MemoryPoint(instrument, device, time_ns, readings[field]))
    for field, kind in _KINDS.items():
        if field in readings:
            attributes = (*device, (sc.MEMORY_KIND, kind))
            points.append(MemoryPoint(ALLOCATOR, attributes, time_ns, readings[field]))
    for kind, whole, part in (("device", _USED, _RESERVED), ("allocator", _RESERVED, _ALLOCATED)):
        if whole in readings and part in readings:
            attributes = (*device, (sc.MEMORY_KIND, kind))
            gap = readings[whole] - readings[part]
            points.append(MemoryPoint(GAP, attributes, time_ns, gap))
    return points


def _readings(value: Number | None, attrs: Mapping[str, Any]) -> dict[str, Number]:
    """Return the readings of a sample that are numbers, by field."""
    readings = {} if value is None else {_ALLOCATED: value}
    for field in _FIELDS:
        number = _number(attrs.get(field))
        if number is not None:
            readings[field] = number
    return readings


def _unknown_fields(metadata: Any) -> frozenset[str] | None:
    """Return the fields that the collector could not read; None if its readings give no points.

    A collector that is not healthy gives no points: it may repeat its last reading. A healthy one
    lists the fields that it could not read.
    """
    if not isinstance(metadata, Mapping):
        return frozenset()
    if metadata.get("collector_health_status") not in (None, "healthy"):
        return None
    if metadata.get("telemetry_partial") is not True:
        return frozenset()
    fields = metadata.get("collector_partial_fields")
    if not isinstance(fields, list) or not fields:
        return None
    return frozenset(field for field in fields if isinstance(field, str))


def _device(backend: str | None, attrs: Mapping[str, Any]) -> Attributes:
    """Return the attribute `hw.id` of a device; empty if the device is unknown."""
    name = device_name(backend, attrs)
    return () if name is None else ((sc.HW_ID, name),)


def _number(value: Any) -> Number | None:
    """Return a finite number; None for any other value, booleans included."""
    if type(value) is int:
        return value
    return value if type(value) is float and math.isfinite(value) else None
