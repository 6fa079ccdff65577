"""Findings on memory: pressure, imbalance, and growth."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...durations import SECOND_NS
from ...nouns import plural
from ...records.memory_devices import CPU
from .assessment import Assessment, extent_of, locate
from .facts import Facts, MemoryUse
from .finding import Advice, Finding, Severity
from .host_growth import host_findings
from .thresholds import Limits
from .words import known_ranks, percent, size

_BANDS: Final = ((0.15, 0.25), (0.45, 0.55), (0.90, 1.0))
_FEWEST: Final = 5
_MANY: Final = 20
_SMALLEST: Final = 32 * 1024**2
_NOTICEABLE: Final = 0.02
_STEADY: Final = 0.5
"""The growth of the second half of a leak / the growth of its first half, at least."""


@dataclass(frozen=True, slots=True)
class _Growth:
    """The growth of a device's memory from the first band to the last."""

    use: MemoryUse
    bytes: float
    per_ns: float
    last_bytes: float
    is_steady: bool


def memory_findings(
    facts: Facts, assessment: Assessment | None, limits: Limits
) -> Iterator[Finding]:
    """Yield the findings on memory; `assessment` is None for a run without units."""
    devices = [each for each in facts.memory if each.device != CPU]
    known = [(each, each.peak_bytes / each.capacity_bytes) for each in devices
             if each.capacity_bytes]  # fmt: skip
    if known:
        worst, pressure = max(known, key=lambda pair: pair[1])
        yield from _pressure(facts, worst, pressure, limits)
        yield from _imbalance(facts, devices, pressure, limits)
    yield from _creep(facts, assessment, devices, limits)
    processes = [each for each in facts.memory if each.device == CPU]
    yield from host_findings(facts, assessment, processes, limits)


def _pressure(facts: Facts, worst: MemoryUse, pressure: float, limits: Limits) -> Iterator[Finding]:
    severity = limits.severity("pressure", pressure)
    if severity == "notice":
        return
    finding = Finding("HIGH_PRESSURE", severity, None, None, "")
    finding.ranks = [] if worst.rank is None else [worst.rank]
    finding.sentence = (
        f"The memory of {worst.device} of {facts.who([worst.rank], begins=False)} peaks at"
        f" {size(worst.peak_bytes)} of {size(worst.capacity_bytes or 0)}, {percent(pressure)}."
    )
    locate(finding, peak_bytes=worst.peak_bytes, capacity_bytes=worst.capacity_bytes,
           device=worst.device)  # fmt: skip
    finding.advice = [
        Advice("a smaller batch, activation checkpointing, or sharded optimizer state")
    ]
    yield finding


def _imbalance(
    facts: Facts, devices: Sequence[MemoryUse], pressure: float, limits: Limits
) -> Iterator[Finding]:
    peaks: dict[int | None, int] = {}
    for each in devices:
        peaks[each.rank] = max(peaks.get(each.rank, 0), each.peak_bytes)
    if len(peaks) < 2:
        return
    rank = max(peaks, key=lambda each: peaks[each])
    middle = statistics.median_low([peak for each, peak in peaks.items() if each != rank])
    if middle <= 0:
        return
    skew = peaks[rank] / middle - 1
    severity: Severity | None = None
    for name in ("critical", "warning"):
        is_high = pressure >= limits[f"imbalance.{name}_pressure"]
        if severity is None and skew >= limits[f"imbalance.{name}"] and is_high:
            severity = "critical" if name == "critical" else "warning"
    if severity is None:
        return
    finding = Finding("IMBALANCE", severity, None, None, "", ranks=[rank])
    finding.sentence = (
        f"The memory of {facts.who([rank], begins=False)} peaks at {size(peaks[rank])},"
        f" {percent(skew)} above the median of the others."
    )
    locate(finding, peak_bytes=peaks[rank], median_peak_bytes=round(middle), pressure=pressure)
    finding.advice = [
        Advice("balance the ranks: batches of equal length, or another division of the model")
    ]
    yield finding


def _creep(
    facts: Facts, assessment: Assessment | None, uses: Sequence[MemoryUse], limits: Limits
) -> Iterator[Finding]:
    """Yield the finding on the device that grows most, if the median one grows, too."""
    inside = [_during_units(each, assessment) for each in uses]
    sampled = [each for each in inside if each.times is not None and len(each.times) >= _FEWEST]
    growths = [_growth(each) for each in sampled]
    grown = sorted((each for each in growths if each is not None), key=lambda each: -each.bytes)
    if not grown or 2 * len(grown) < len(sampled):
        return
    worst = grown[0]
    is_confirmed = worst.bytes >= limits["creep.bytes"] and worst.is_steady
    kind = "CREEP_CONFIRMED" if is_confirmed else "CREEP_EARLY"
    finding = Finding(kind, "warning" if is_confirmed else "notice", None, None, "")
    finding.ranks = known_ranks(each.use.rank for each in grown)
    finding.subject = worst.use.device
    capacity, use = worst.use.capacity_bytes, worst.use
    rate, left = worst.per_ns, ""
    unit_ns = assessment.unit_ns if assessment is not None else 0
    if unit_ns:
        rate, each = worst.per_ns * unit_ns, f"each {facts.unit}"
        locate(finding, per_unit_bytes=round(rate))
    else:
        rate, each = worst.per_ns * SECOND_NS, "each second"
    if capacity and worst.per_ns > 0:
        rest_ns = (capacity - worst.last_bytes) / worst.per_ns
        count = max(rest_ns, 0) / unit_ns if unit_ns else None
        if count is not None:
            left = f"; at this rate it is full after {count:,.0f} more {plural(facts.unit)}"
            locate(finding, units_until_full=round(count))
        extent = 0 if use.times is None else int(use.times[-1] - use.times[0])
        if rest_ns <= extent:
            finding.severity = "critical" if is_confirmed else "warning"
    finding.sentence = (
        f"The memory of {use.device} of {facts.who([use.rank], begins=False)} grows by"
        f" {size(rate)} with {each}: {size(worst.bytes)} in the {extent_of(assessment)}{left}."
    )
    locate(finding, growth_bytes=round(worst.bytes), device=use.device, capacity_bytes=capacity)
    finding.advice = [
        Advice("look for tensors that outlive their step: losses without .item(), lists of outputs,"
               " caches")
    ]  # fmt: skip
    yield finding


def _during_units(use: MemoryUse, assessment: Assessment | None) -> MemoryUse:
    """Return the samples during the units: a process also grows while it starts.

    Of several trainings, the one with the most samples counts.
    """
    if assessment is None or use.times is None or use.sizes is None:
        return use
    lanes = [each for each in assessment.ledger.lanes if len(each.start)]
    if not lanes:
        return use
    first = min(int(each.start[0]) for each in lanes)
    last = max(int(each.start[-1] + each.ns[-1]) for each in lanes)
    inside = (use.times >= first) & (use.times <= last)
    times, sizes = use.times[inside], use.sizes[inside]
    longest = max(assessment.trainings_at(use.rank, times), key=lambda each: len(times[each]))
    return replace(use, times=times[longest], sizes=sizes[longest])


def _growth(use: MemoryUse) -> _Growth | None:
    """Return the growth if the mean of each band is above the one ahead of it; else None.

    Of fewer than 20 samples, each must be above the one ahead of it.
    """
    if use.times is None or use.sizes is None:
        return None
    extent = max(int(use.times[-1] - use.times[0]), 1)
    if len(use.times) < _MANY:
        sizes = use.sizes.astype(np.float64)
        if (np.diff(sizes) <= 0).any():
            return None
        middle = float(np.interp(use.times[0] + extent / 2, use.times, sizes))
        return _grown(use, (float(sizes[0]), middle, float(sizes[-1])), (0.0, 0.5, 1.0), extent)
    places = (use.times - use.times[0]) / extent
    means: list[float] = []
    deviation = 0.0
    for low, high in _BANDS:
        sizes = use.sizes[(places > low) & (places <= high)].astype(np.float64)
        if not len(sizes) or (means and float(sizes.mean()) <= means[-1] + 2 * deviation):
            return None
        deviation = 0.0 if means else float(sizes.std())
        means.append(float(sizes.mean()))
    return _grown(use, (means[0], means[1], means[2]), (0.2, 0.5, 0.95), extent)


def _grown(
    use: MemoryUse,
    means: tuple[float, float, float],
    places: tuple[float, float, float],
    extent: int,
) -> _Growth | None:
    """Return the growth over three places of the run; None if it is small."""
    early, middle, late = means
    growth = late - early
    if growth < max(_NOTICEABLE * early, _SMALLEST):
        return None
    first = (middle - early) / (places[1] - places[0])
    second = (late - middle) / (places[2] - places[1])
    per_ns = growth / ((places[2] - places[0]) * extent)
    return _Growth(use, growth, per_ns, late, second >= _STEADY * first)
