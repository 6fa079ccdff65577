"""The memory of a run as text: devices with their gaps, peaks by phase, and alerts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core.analysis.memory_series import most_severe
from .formatting import local_moment, printable, size, wrapped
from .tables import rows_table

if TYPE_CHECKING:
    from rich.table import Table

    from ...core.analysis.memory_series import MemoryAlert, MemoryReport

_MOST_DEVICES = 32
_MOST_PHASES = 32
_MOST_ALERTS = 16


def memory_lines(memory: MemoryReport) -> Iterator[str | Table]:
    """Yield the section of a report; nothing if no memory is recorded."""
    if not memory:
        return
    yield "Memory:"
    yield ""
    if memory.devices:
        heads = ("device", "rank", "samples", "lowest", "highest", "reserved", "used", "capacity")
        yield rows_table(heads, set(heads[1:]), [
            (each.device, rank_text(each.rank), f"{each.samples:,}", size_text(each.min_bytes),
             size_text(each.max_bytes), size_text(each.max_reserved_bytes),
             size_text(each.max_device_used_bytes), size_text(each.device_total_bytes))
            for each in memory.devices[:_MOST_DEVICES]
        ])  # fmt: skip
        if len(memory.devices) > _MOST_DEVICES:
            yield f"and {len(memory.devices) - _MOST_DEVICES:,} more"
    yield from _gaps(memory)
    if memory.phases:
        yield ""
        yield "The highest memory by phase:"
        yield ""
        by_phase = ("phase", "rank", "device", "samples", "sampled", "exact peak")
        yield rows_table(by_phase, {"rank", "samples", "sampled", "exact peak"}, [
            (each.name, rank_text(each.rank), each.device, f"{each.samples:,}",
             size_text(each.sampled_peak_bytes), size_text(each.peak_bytes))
            for each in memory.phases[:_MOST_PHASES]
        ])  # fmt: skip
        if len(memory.phases) > _MOST_PHASES:
            yield f"and {len(memory.phases) - _MOST_PHASES:,} more"
    if memory.alerts:
        yield ""
    for alert in most_severe(memory.alerts, _MOST_ALERTS):
        yield from wrapped(alert_text(alert), "  ", "    ")
    if len(memory.alerts) > _MOST_ALERTS:
        yield f"and {len(memory.alerts) - _MOST_ALERTS:,} more alerts"


def _gaps(memory: MemoryReport) -> Iterator[str]:
    """Yield the gaps of the devices that have them: the highest and the last one."""
    for each in memory.devices[:_MOST_DEVICES]:
        parts = [
            f"{what} up to {size(highest)}, {size(last or 0)} at the end"
            for what, highest, last in (
                ("used outside of the allocator", each.max_device_gap_bytes,
                 each.last_device_gap_bytes),
                ("reserved and not allocated", each.max_allocator_gap_bytes,
                 each.last_allocator_gap_bytes),
            )
            if highest is not None
        ]  # fmt: skip
        if parts:
            rank = "" if each.rank is None else f" of rank {each.rank}"
            yield from wrapped("; ".join(parts), f"Gaps on {printable(each.device)}{rank}: ", "  ")


def alert_text(alert: MemoryAlert) -> str:
    """Return an alert as one line: its time, kind, detail, and scope."""
    rank = "" if alert.rank is None else f", rank {alert.rank}"
    detail = f": {printable(alert.detail)}" if alert.detail else ""
    return (
        f"{local_moment(alert.time_ns)} {alert.kind} ({printable(alert.device)}{rank})"
        f"{detail} in {printable(alert.scope)}"
    )


def rank_text(rank: int | None) -> str:
    """Return a rank as a cell of a table."""
    return "-" if rank is None else str(rank)


def size_text(number: int | None) -> str:
    """Return a size, or `-` if it is unknown."""
    return "-" if number is None else size(number)
