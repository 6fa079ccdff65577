"""The finding on the host's memory: the slope of a process's memory over the units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...durations import SECOND_NS
from ...nouns import plural
from .assessment import Assessment, extent_of, locate
from .facts import Facts, MemoryUse
from .finding import Advice, Finding
from .thresholds import Limits
from .words import known_ranks, size

_FEWEST: Final = 8
"""The number of samples that a line is fitted to, at least."""
_FEWEST_UNITS: Final = 20
_WARM_UP: Final = 0.1
"""The part of the units that is left out: allocators, caches and libraries fill in it."""
_SMALLEST: Final = 32 * 1024**2
_NOTICEABLE: Final = 0.02
_STEADY: Final = 0.5
"""The slope of the last third / the slope of all, at least."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The line that fits the memory of a process. Sizes are in bytes."""

    use: MemoryUse
    slope: float
    """The growth with each unit, or with each second without units."""
    fit: float
    """The coefficient of determination, at most 1."""
    growth: float
    """The growth over all of the units, or seconds."""
    extent: float
    """The number of units, or of seconds."""


def host_findings(
    facts: Facts, assessment: Assessment | None, uses: Sequence[MemoryUse], limits: Limits
) -> Iterator[Finding]:
    """Yield the finding on the process that grows most, if half of the processes grow."""
    known = [pair for each in uses if (pair := _points(each, assessment)) is not None]
    lines = [_line(use, x, y, limits) for use, x, y in known]
    grown = sorted((each for each in lines if each is not None), key=lambda each: -each.growth)
    if not grown or 2 * len(grown) < len(known):
        return
    worst = grown[0]
    has_units = assessment is not None
    left = _left(facts, worst, grown)
    is_near = left is not None and left <= worst.extent
    is_confirmed = worst.growth >= limits["creep.bytes"] or is_near
    kind = "CREEP_CONFIRMED" if is_confirmed else "CREEP_EARLY"
    finding = Finding(kind, "warning" if is_confirmed else "notice", None, None, "")
    if is_near:
        finding.severity = "critical"
    finding.ranks = known_ranks(each.use.rank for each in grown)
    finding.subject = worst.use.device
    unit = facts.unit if has_units else "second"
    finding.sentence = (
        f"The host memory of {facts.who([worst.use.rank], begins=False)} grows by"
        f" {size(worst.slope)} with each {unit} (fit {worst.fit:.2f}): {size(worst.growth)} in the"
        f" {extent_of(assessment)}"
    )
    if left is not None:
        finding.sentence += (
            f"; at this rate the limit of {size(worst.use.capacity_bytes or 0)} comes after"
            f" {left:,.0f} more {plural(unit)}"
        )
        locate(finding, **{"units_until_full" if has_units else "seconds_until_full": round(left)})
    finding.sentence += "."
    if has_units:
        locate(finding, per_unit_bytes=round(worst.slope))
    locate(finding, growth_bytes=round(worst.growth), fit=round(worst.fit, 3),
           device=worst.use.device, capacity_bytes=worst.use.capacity_bytes)  # fmt: skip
    finding.advice = [
        Advice("look for objects that outlive their step: losses without .item(), lists of outputs,"
               " caches without a limit")
    ]  # fmt: skip
    yield finding


def _points(
    use: MemoryUse, assessment: Assessment | None
) -> tuple[MemoryUse, np.ndarray, np.ndarray] | None:
    """Return the units, or seconds, of the samples after the warm-up, and their sizes.

    Of several trainings, the one with the most samples counts.
    """
    if use.times is None or use.sizes is None or not len(use.times):
        return None
    times, sizes = use.times, use.sizes.astype(np.float64)
    if assessment is None:
        x = (times - times[0]) / SECOND_NS
    else:
        lanes = [each for each in assessment.ledger.lanes if len(each.start)]
        lane = next((each for each in lanes if each.rank == use.rank), next(iter(lanes), None))
        if lane is None or len(lane.start) * lane.size < _FEWEST_UNITS:
            return None
        ends = np.append(lane.start, lane.start[-1] + lane.ns[-1])
        inside = (times >= ends[0]) & (times <= ends[-1])
        times, sizes = times[inside], sizes[inside]
        longest = max(assessment.trainings_at(use.rank, times), key=lambda e: len(times[e]))
        times, sizes = times[longest], sizes[longest]
        units = np.arange(len(ends)) * lane.size
        x = np.interp(times.astype(np.float64), ends.astype(np.float64), units)
    if not len(x):
        return None
    is_warm = x >= x[0] + _WARM_UP * (x[-1] - x[0])
    x, sizes = x[is_warm], sizes[is_warm]
    return (use, x, sizes) if len(x) >= _FEWEST and x[-1] > x[0] else None


def _line(use: MemoryUse, x: np.ndarray, y: np.ndarray, limits: Limits) -> _Line | None:
    """Return the line through the sizes; None unless they grow noticeably and to the end."""
    slope, fit = _fitted(x, y)
    extent = float(x[-1] - x[0])
    growth = slope * extent
    if growth < max(_NOTICEABLE * float(y[0]), _SMALLEST) or fit < limits["creep.fit"]:
        return None
    last = x >= x[-1] - extent / 3
    if last.sum() < 2 or _fitted(x[last], y[last])[0] < _STEADY * slope:
        return None
    return _Line(use, slope, fit, growth, extent)


def _fitted(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of the line of least squares, and its coefficient of determination."""
    dx, dy = x - x.mean(), y - y.mean()
    squares, total = float(dx @ dx), float(dy @ dy)
    if not squares or not total:
        return 0.0, 0.0
    product = float(dx @ dy)
    return product / squares, product * product / (squares * total)


def _left(facts: Facts, worst: _Line, grown: Sequence[_Line]) -> float | None:
    """Return after how many units the processes of the host reach its limit."""
    use = worst.use
    if use.capacity_bytes is None or use.sizes is None:
        return None
    used = float(use.sizes[-1]) if use.used_bytes is None else use.used_bytes
    hosts = facts.hosts
    host = hosts.get(use.rank)
    slope = sum(each.slope for each in grown if hosts.get(each.use.rank) == host)
    return max(use.capacity_bytes - used, 0) / slope
