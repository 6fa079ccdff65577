"""Durations in readable form."""

from __future__ import annotations

_DURATIONS = ((1, "ns", 1_000), (1_000, "µs", 1_000_000), (1_000_000, "ms", 1_000_000_000))
SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""The units of ages in options and queries."""


def duration(ns: int | None) -> str:
    """Return nanoseconds as text in a suitable unit: `412 ms`, `1 h 02 min`; `?` for None."""
    if ns is None:
        return "?"
    if ns < 0:
        return "-" + duration(-ns)
    for scale, unit, below in _DURATIONS:
        if round(ns / scale, 0 if ns >= 100 * scale else 2) * scale < below:
            return f"{ns / scale:.3g} {unit}"
    seconds = ns / SECOND_NS
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
