"""The page's section on memory: over time with the alerts, by phase, and the gaps."""

from __future__ import annotations

from ....core.analysis.mark_series import Point
from ....core.analysis.memory_series import DeviceMemory, MemoryAlert, most_severe
from ...present.formatting import size
from ...present.memory_text import alert_text, rank_text, size_text
from .charts import Marker, Scale, course
from .content import RunContent
from .element import Element
from .parts import note, number, rank_name, section, short, table

_MOST_ROWS = 200
_MOST_MARKERS = 60


def memory_section(content: RunContent) -> Element | None:
    """Return the section on memory; None if the run has no samples of it."""
    memory = content.report.memory
    if not memory:
        return None
    high = max((point.high for _, points in content.memory for point in points), default=1.0)
    scale = Scale(0.0, max(high, 1.0))
    devices = [
        (short(each.device), rank_text(each.rank), number(each.samples), size(each.max_bytes),
         size_text(each.max_reserved_bytes), size_text(each.max_device_used_bytes),
         size_text(each.device_total_bytes), size_text(each.max_device_gap_bytes),
         size_text(each.max_allocator_gap_bytes))
        for each in memory.devices[:_MOST_ROWS]
    ]  # fmt: skip
    heads = ("device", "rank", "samples", "highest", "reserved", "used", "capacity",
             "gap: device", "gap: allocator")  # fmt: skip
    phases = [
        (short(each.name), short(each.device), rank_text(each.rank), number(each.samples),
         size_text(each.sampled_peak_bytes), size_text(each.peak_bytes))
        for each in memory.phases[:_MOST_ROWS]
    ]  # fmt: skip
    by_phase = ("phase", "device", "rank", "samples", "sampled", "exact peak")
    figures = [_figure(content, *each, scale) for each in content.memory]
    alerts = [Element("li", alert_text(each)) for each in most_severe(memory.alerts, _MOST_ROWS)]
    return section(
        "memory",
        "Memory",
        note(
            "The allocated bytes of a device, or the resident set of a process without one. A red"
            " line is an alert, an error because of exhausted memory, or a failed reading; the"
            " other lines are the starts of the epochs."
        )
        if figures
        else None,
        Element("div", figures, class_="figures") if figures else None,
        table("The memory of each device", heads, devices, right=heads[1:]) if devices else None,
        table("The highest memory by phase", by_phase, phases, right=by_phase[2:])
        if phases
        else None,
        Element("ul", alerts) if alerts else None,
    )


def _figure(
    content: RunContent, device: DeviceMemory, points: list[Point], scale: Scale
) -> Element:
    text = f" {rank_name(device.rank)}, {device.samples:,} samples, up to {size(device.max_bytes)}"
    concerned = [each for each in content.report.memory.alerts if _concerns(each, device)]
    alerts = most_severe(concerned, _MOST_MARKERS)
    markers = [Marker(each.time_ns, alert_text(each)) for each in alerts if each.time_ns]
    drawn = course(
        points, scale, lambda value: size(round(value)),
        label=f"Memory of {short(device.device)},{text}",
        epochs=content.epochs.get(device.rank, ()), markers=markers,
    )  # fmt: skip
    caption = Element("figcaption", Element("strong", short(device.device, 40)), text)
    return Element("figure", caption, drawn)


def _concerns(alert: MemoryAlert, device: DeviceMemory) -> bool:
    """Return whether an alert is drawn in a device's chart: limits of the host are in all."""
    others = {each for each in (alert.device,) if ":" in each and each != device.device}
    return alert.rank == device.rank and not others
