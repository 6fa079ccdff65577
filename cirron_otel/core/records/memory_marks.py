"""Recognise the marks about memory: those of the sampler, and those of imported Stormlog events.

Both have the same attributes (docs/memory.md), and the allocated bytes as their value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ... import semconv as sc
from .memory_devices import CPU, device_name, stormlog_backend

STORMLOG: Final = "stormlog."
"""The prefix of the names of imported Stormlog events."""
SAMPLE, WARNING, CRITICAL, OOM = "sample", "warning", "critical", "oom"
DEGRADED, RECOVERED = "degraded", "recovered"
KIND_BY_NAME: Final = {
    sc.MEMORY: SAMPLE,
    sc.MEMORY_WARNING: WARNING,
    sc.MEMORY_CRITICAL: CRITICAL,
    sc.MEMORY_DEGRADED: DEGRADED,
    sc.MEMORY_RECOVERED: RECOVERED,
    sc.OOM: OOM,
    STORMLOG + "sample": SAMPLE,
    STORMLOG + "allocation": SAMPLE,
    STORMLOG + "deallocation": SAMPLE,
    STORMLOG + "peak": SAMPLE,
    STORMLOG + "warning": WARNING,
    STORMLOG + "critical": CRITICAL,
    STORMLOG + "collector_degraded": DEGRADED,
    STORMLOG + "collector_recovered": RECOVERED,
}
_SIZES: Final = ("allocator_reserved_bytes", "device_used_bytes", "device_total_bytes")
_RESIDENT: Final = "process_rss_bytes"
_LIMITS: Final = (
    ("cgroup_used_bytes", "cgroup_limit_bytes"), ("host_used_bytes", "host_total_bytes"),
)  # fmt: skip
STORMLOG_ERROR: Final = STORMLOG + "error"
_ALERTS: Final = frozenset({WARNING, CRITICAL, OOM, DEGRADED, RECOVERED})
_TEXT = 200


class MemoryMark(NamedTuple):
    """A mark about memory. Unknown sizes are None; sizes are in bytes."""

    kind: str
    device: str
    """`cpu`, or a device such as `cuda:0`."""
    allocated: int | None
    """None for an alert, whose value may be another size."""
    reserved: int | None
    device_used: int | None
    device_total: int | None
    resident: int | None
    """The resident set of the process, in samples of the sampler."""
    limit: int | None
    """The limit of the process's cgroup, or the memory of its host: the one with less left."""
    limit_used: int | None
    """The use of all processes that the limit applies to."""
    detail: str | None
    """For alerts: the limit, the reader, or the reason."""

    @property
    def is_alert(self) -> bool:
        """Whether the mark is not a sample."""
        return self.kind in _ALERTS


def kind_of(name: object) -> str | None:
    """Return the kind of a mark by its name; None for a mark that is not about memory."""
    if not isinstance(name, str):
        return None
    return OOM if name == STORMLOG_ERROR else KIND_BY_NAME.get(name)


def memory_mark(name: object, value: object, attrs: object) -> MemoryMark | None:
    """Return a mark's fields about memory; None if it is not one of these marks.

    A mark of a program may have the same name as one of the sampler's, but not its attributes.
    """
    kind = kind_of(name)
    if kind is None or not isinstance(attrs, Mapping):
        return None
    is_foreign = isinstance(name, str) and name.startswith(STORMLOG)
    detail = _detail(kind, value, attrs, is_foreign=is_foreign)
    if kind == SAMPLE:
        if _size(value) is None or type(attrs.get("device_id")) is not int:
            return None
    elif detail is None and not is_foreign:
        return None
    elif kind == OOM and is_foreign and detail is None:
        return None  # an error other than an exhausted memory
    reserved, used, total = (_size(attrs.get(key)) for key in _SIZES)
    device = _device(attrs, is_foreign=is_foreign)
    if kind == SAMPLE:
        host = _size(attrs.get(_RESIDENT)), *_limit(attrs)
        return MemoryMark(kind, device, _size(value), reserved, used, total, *host, None)
    return MemoryMark(kind, device, None, reserved, used, total, None, None, None, detail)


def _size(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _limit(attrs: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the limit of the host's memory with the least memory left, and its use."""
    known = []
    for used_name, limit_name in _LIMITS:
        used, limit = _size(attrs.get(used_name)), _size(attrs.get(limit_name))
        if used is not None and limit:
            known.append((limit - used, limit, used))
    return min(known)[1:] if known else (None, None)


def _device(attrs: Mapping[str, Any], *, is_foreign: bool) -> str:
    number = attrs.get("device_id")
    if not isinstance(number, int):
        return str(attrs.get("limit", attrs.get("backend", CPU)))[:_TEXT]
    backend = stormlog_backend(attrs) if is_foreign else attrs.get("backend")
    name = device_name(backend if isinstance(backend, str) else "device", attrs)
    return CPU if name is None else name[:_TEXT]


def _detail(kind: str, value: object, attrs: Mapping[str, Any], *, is_foreign: bool) -> str | None:
    metadata = attrs.get("metadata")
    reason: Any = None
    if kind == OOM:
        reason = metadata.get("oom_reason") if isinstance(metadata, Mapping) else None
        if not is_foreign and "reason" in attrs:
            size = f"{value:,} bytes" if type(value) is int else "an unknown size"
            reason = f"{attrs['reason']}: {size} requested"
    elif is_foreign:
        reason = attrs.get("context")
        if isinstance(metadata, Mapping):
            reason = reason or metadata.get("collector_last_error")
    elif kind in (DEGRADED, RECOVERED):
        is_ours = isinstance(value, str) and ("error" in attrs or "failures" in attrs)
        error = f": {attrs['error']}" if "error" in attrs else ""
        reason = f"{value}{error}" if is_ours else None
    else:
        share, limit = attrs.get("share"), attrs.get("limit")
        if isinstance(share, float) and isinstance(limit, str):
            reason = f"{limit}: {100 * share:.0f} % of the limit"
    return str(reason)[:_TEXT] if reason is not None else None
