"""Rows of samples as marks on the session, under the names of the sampler's (docs/memory.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from .... import semconv as sc
from ...records.memory_devices import CPU
from .numbers import count, identifier, number, text, time_ns

PROCESS_TABLE: Final = "ProcessTable"
SYSTEM_TABLE: Final = "SystemTable"
ENVIRONMENT_TABLE: Final = "RuntimeEnvironmentTable"
SYSTEM_CPU: Final = "system.cpu.utilization"
SYSTEM_MEMORY: Final = "system.memory.usage"
_KEYS: Final = {
    PROCESS_TABLE: frozenset({
        "seq", "ts", "pid", "cpu", "cpu_cores", "ram_used", "ram_total",
        "gpu_available", "gpu_count", "gpu",
    }),
    SYSTEM_TABLE: frozenset({
        "seq", "ts", "cpu", "ram_used", "ram_total", "gpu_available", "gpu_count", "gpus",
    }),
}  # fmt: skip
_MAX_DEPTH: Final = 8
_MAX_ITEMS: Final = 1_000


class SampleMark(NamedTuple):
    """A mark on the session."""

    name: str
    value: int | float | str
    attrs: dict[str, Any]


def marks_of(table: str, row: dict[str, Any]) -> list[SampleMark]:
    """Return the marks of a row; a row of another table is one mark with its fields."""
    known = _KEYS.get(table)
    if known is None:
        return [_whole_row(table, row)]
    marks = list(_process(row) if table == PROCESS_TABLE else _system(row))
    if not marks:
        return [_whole_row(table, row)]
    extra = {key: value for key, value in row.items() if key not in known}
    if extra:
        marks[0].attrs["traceml"] = plain_object(extra)
    return marks


def _whole_row(table: str, row: dict[str, Any]) -> SampleMark:
    """Return the mark of a row without a mapping."""
    name = text(table) or "?"
    return SampleMark(f"traceml.{name}", name, plain_object(row))


def row_time(row: dict[str, Any]) -> int | None:
    """Return the time of a row, Unix nanoseconds; None if it has no valid one."""
    for key in ("ts", "timestamp"):
        found = time_ns(row.get(key))
        if found is not None:
            return found
    return None


def _process(row: dict[str, Any]) -> Iterator[SampleMark]:
    resident = count(row.get("ram_used"))
    host = _present(
        {"process_rss_bytes": resident, "host_total_bytes": count(row.get("ram_total"))}
    )
    gpu = row.get("gpu")
    allocated = count(gpu.get("mem_used")) if isinstance(gpu, dict) else None
    if isinstance(gpu, dict) and allocated is not None:
        attrs = _present({
            "device_id": identifier(gpu.get("device")),
            "backend": "cuda",
            "allocator_reserved_bytes": count(gpu.get("mem_reserved")),
            "device_total_bytes": count(gpu.get("mem_total")),
        })  # fmt: skip
        yield SampleMark(sc.MEMORY, allocated, attrs | host)
    elif resident is not None:
        yield SampleMark(sc.MEMORY, resident, {"device_id": -1, "backend": CPU} | host)
    percent, cores = number(row.get("cpu")), count(row.get("cpu_cores"))
    if percent is not None and cores:
        attrs = {"traceml.cpu_percent": percent, "traceml.cpu_cores": cores}
        yield SampleMark(sc.CPU_UTILIZATION, percent / 100 / cores, attrs)


def _system(row: dict[str, Any]) -> Iterator[SampleMark]:
    percent = number(row.get("cpu"))
    if percent is not None:
        yield SampleMark(SYSTEM_CPU, percent / 100, {"traceml.cpu_percent": percent})
    used = count(row.get("ram_used"))
    if used is not None:
        attrs = _present({"host_total_bytes": count(row.get("ram_total"))})
        yield SampleMark(SYSTEM_MEMORY, used, attrs)
    gpus = row.get("gpus")
    for index, figures in enumerate(gpus if isinstance(gpus, list) else ()):
        if isinstance(figures, list):
            yield from _gpu({sc.HW_ID: f"cuda:{index}"}, figures)


def _gpu(device: dict[str, Any], figures: list[Any]) -> Iterator[SampleMark]:
    """Yield the marks of `[util, mem_used, mem_total, temperature, power, power_limit]`."""
    util, used, total, temperature, power, limit = [*map(number, figures[:6]), *[None] * 6][:6]
    if util is not None:
        yield SampleMark(sc.GPU_UTILIZATION, util / 100, device | {"traceml.util_percent": util})
    size = count(used)
    if size is not None:
        attrs = _present({"device_total_bytes": count(total)})
        yield SampleMark(sc.GPU_MEMORY_USAGE, size, device | attrs)
    if temperature is not None:
        yield SampleMark(sc.GPU_TEMPERATURE, temperature, dict(device))
    if power is not None:
        attrs = _present({"traceml.power_limit_watts": limit})
        yield SampleMark(sc.GPU_POWER, power, device | attrs)


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def plain_object(row: dict[Any, Any]) -> dict[str, Any]:
    """Return a row as attributes: JSON values, and texts for values that JSON does not have.

    The frame itself keeps every value unchanged.
    """
    value = plain(row)
    return value if isinstance(value, dict) else {}


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def plain(value: Any, depth: int = 0) -> Any:
    """Return a JSON value, or a text for a value that JSON does not have."""
    kind = type(value)
    if kind is str:
        return _text(value)
    if value is None or kind is bool or (kind is int and identifier(value) is not None):
        return value
    if kind is float and number(value) is not None:
        return value
    if depth < _MAX_DEPTH and kind is dict and len(value) <= _MAX_ITEMS:
        return {_text(str(key)): plain(item, depth + 1) for key, item in value.items()}
    if depth < _MAX_DEPTH and kind is list and len(value) <= _MAX_ITEMS:
        return [plain(item, depth + 1) for item in value]
    return repr(value)[:200] if not isinstance(value, dict | list) else "…"
