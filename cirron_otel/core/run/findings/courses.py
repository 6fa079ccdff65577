"""Findings on the course of the cycles over a run: slow intervals, and runs that slow down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from ..figures.medians import median_of
from .assessment import Assessment, advise, extent_of, locate
from .claims import Bid
from .cycles import Cycles
from .finding import Finding
from .thresholds import Limits
from .words import part_of, time, units_text

_CLIP: Final = 2
_MOSTLY: Final = 0.8
_FEWEST: Final = 25
_SLACK: Final = 0.98
_FIFTHS: Final = 5
_SEGMENTS: Final = 20
_HIGH: Final = 3
_TENTHS: Final = 10
_FEWEST_AFTER: Final = 8
_CLEAR: Final = 6
"""The distance of the means on both sides of a change, in standard errors, at least."""


@dataclass(frozen=True, slots=True)
class _Course:
    """The slow units of some lanes, and the excess of each account over them."""

    cycles: Cycles
    units: slice
    excess: dict[str, np.ndarray]
    """The excess in each unit, by account."""
    usual_ns: float
    slow_ns: float
    is_step: bool = False
    """Whether the cycles change at one unit, and not gradually."""

    @property
    def total_ns(self) -> float:
        """The excess of all accounts, in each of the lanes."""
        return sum(float(each.sum()) for each in self.excess.values())

    @property
    def account(self) -> str | None:
        """The account with half of the excess."""
        totals = {name: float(each.sum()) for name, each in self.excess.items()}
        largest = max(totals, key=lambda name: totals[name], default=None)
        if largest is None or 2 * totals[largest] < sum(totals.values()):
            return None
        return largest


def slow_interval(cycles: Cycles, limits: Limits) -> slice | None:
    """Return the consecutive units with the largest excess; None if they are few or not slow."""
    work, median = cycles.work, cycles.median_ns
    if not len(work) or median <= 0:
        return None
    factor = limits["interval.factor"]
    over = np.where(cycles.is_steady, np.minimum(work, _CLIP * median) - factor * median, 0)
    sums = np.r_[0.0, np.cumsum(over)]
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    start = int(np.argmin(sums[: end + 1]))
    is_long = (end - start) * cycles.aligned.size >= limits["interval.units"]
    if not is_long or np.mean(work[start:end] > factor * median) < _MOSTLY:
        return None
    return slice(start, end)


def slowing_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the findings on runs that become slower; only those that claim time."""
    yield from (each for each in _all_slowing(assessment) if each.severity != "notice")


def late_slowing_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the same findings, if there was none: a slow interval may hide the course of a run."""
    if "SLOWING_DOWN" not in assessment.found:
        yield from _all_slowing(assessment)


def _all_slowing(assessment: Assessment) -> Iterator[Finding]:
    courses = [found for cycles in assessment.cycles()
               if (found := _slowing(cycles, assessment.limits)) is not None]  # fmt: skip
    yield from _found(assessment, "SLOWING_DOWN", courses)


def interval_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the findings on intervals that are slower than the rest of the run."""
    courses = []
    for cycles in assessment.cycles():
        units = slow_interval(cycles, assessment.limits)
        if units is not None:
            course = _interval(cycles, units)
            courses += [] if course is None else [course]
    yield from _found(assessment, "SLOW_INTERVAL", courses)


def _interval(cycles: Cycles, units: slice) -> _Course | None:
    """Return the course of a slow interval; None if there are no other steady units."""
    rest = cycles.is_steady.copy()
    rest[units] = False
    if not rest.any():
        return None
    base = median_of(cycles.work[rest])
    slow = median_of(cycles.work[units])
    excess = _by_account(cycles, units, rest, max(float((cycles.work[units] - base).sum()), 0))
    return _Course(cycles, units, excess, base, slow, is_step=True)


def _by_account(
    cycles: Cycles, units: slice, rest: np.ndarray, total_ns: float
) -> dict[str, np.ndarray]:
    """Divide an excess by account, in proportion to the excess of each over its median."""
    count = units.stop - units.start
    over = {}
    for name in cycles.accounts:
        times = cycles.account(name)
        each = float(times[units].mean() - times[rest].mean())
        if each > 0:
            over[name] = each
    scale = total_ns / max(sum(over.values()) * count, 1)
    excess = {name: np.full(count, each * scale) for name, each in over.items()}
    return {name: _placed(each, units, len(cycles.numbers)) for name, each in excess.items()}


def _placed(values: np.ndarray, units: slice, count: int) -> np.ndarray:
    placed = np.zeros(count)
    placed[units] = values
    return placed


def _slowing(cycles: Cycles, limits: Limits) -> _Course | None:
    steady = np.flatnonzero(cycles.is_steady)
    if len(steady) * cycles.aligned.size < _FEWEST or len(steady) < _FIFTHS:
        return None
    work = cycles.work[steady]
    medians = [median_of(each) for each in np.array_split(work, _FIFTHS)]
    factor = limits["slowing_down.factor"]
    clipped = np.minimum(work, _HIGH * median_of(work))
    at, is_step = _change(clipped)
    rises = (
        all(b >= _SLACK * a for a, b in pairwise(medians)) and medians[-1] >= factor * medians[0]
    )
    stays = is_step and _stays(clipped, at, factor)
    if medians[0] <= 0 or not (rises or stays):
        return None
    interval = slow_interval(cycles, limits)
    if is_step and interval is not None and 2 * (len(work) - at) < len(work):
        return None  # a slow interval at the end
    base = float(clipped[:at].mean()) if is_step else _start_of(clipped)
    slow = median_of(work[at:]) if is_step else medians[-1]
    begin = int(steady[at]) if is_step else int(steady[0])
    units = slice(begin, int(steady[-1]) + 1)
    excess = _rising(cycles, steady, at if is_step else 0, clipped - base)
    return _Course(cycles, units, excess, base, slow, is_step)


def _stays(work: np.ndarray, at: int, factor: float) -> bool:
    """Return whether the values from a place to the end are clearly above those ahead of it."""
    before, after = work[:at], work[at:]
    last = work[-max(len(work) // _TENTHS, 1) :]
    if min(len(before), len(after)) < _FEWEST_AFTER:
        return False
    base = factor * median_of(before)
    error = (float(before.var()) / len(before) + float(after.var()) / len(after)) ** 0.5
    is_clear = float(after.mean() - before.mean()) > _CLEAR * error
    return is_clear and min(median_of(after), median_of(last)) >= base


def _start_of(work: np.ndarray) -> float:
    """Return the first value of a line through the values, at most the mean of the first fifth."""
    places = np.arange(len(work))
    slope = float(np.polyfit(places, work, 1)[0])
    start = float(work.mean()) - slope * float(places.mean())
    first = float(work[: max(len(work) // _FIFTHS, 1)].mean())
    return min(max(start, 0.5 * first), first)


def _change(work: np.ndarray) -> tuple[int, bool]:
    """Return the place at which the values change most, and whether a step fits better."""
    count = len(work)
    places = np.arange(1, count)
    sums = np.cumsum(work)[:-1]
    total = float(work.sum())
    means = sums / places, (total - sums) / (count - places)
    between = places * (count - places) / count * (means[1] - means[0]) ** 2
    at = int(np.argmax(between)) + 1
    spread = float(((work - work.mean()) ** 2).sum())
    axis = np.arange(count) - (count - 1) / 2
    by_line = float((axis * work).sum()) ** 2 / float((axis**2).sum())
    return at, spread - float(between[at - 1]) < spread - by_line


def _rising(
    cycles: Cycles, steady: np.ndarray, at: int, excess: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the excess of each account, smoothed over segments of units.

    Accounts share the excess in proportion to their growth, from the first fifth (or the units up
    to a change) to the last fifth (or the units from the change).
    """
    smooth = np.zeros(len(excess))
    for places in np.array_split(np.arange(at, len(excess)), _SEGMENTS):
        if len(places):
            smooth[places] = max(float(excess[places].mean()), 0)
    fifth = max(len(excess) // _FIFTHS, 1)
    first = slice(0, at) if at else slice(0, fifth)
    last = slice(at, None) if at else slice(len(excess) - fifth, None)
    growth = {}
    for name in cycles.accounts:
        times = cycles.account(name)[steady]
        grown = median_of(times[last]) - median_of(times[first])
        if grown > 0:
            growth[name] = grown
    total = sum(growth.values())
    placed = {}
    for name, grown in growth.items():
        placed[name] = np.zeros(len(cycles.numbers))
        placed[name][steady] = smooth * grown / total
    return placed


def _found(assessment: Assessment, kind: str, courses: list[_Course]) -> Iterator[Finding]:
    groups: dict[str | None, list[_Course]] = {}
    for each in courses:
        groups.setdefault(each.account, []).append(each)
    for account, some in groups.items():
        bid = assessment.claims.bid()
        for each in some:
            _add(bid, each)
        finding = assessment.price(kind, bid, partial(_describe, assessment, account, some))
        if finding is not None:
            yield finding


def _add(bid: Bid, course: _Course) -> None:
    aligned = course.cycles.aligned
    for place in range(len(aligned.lanes)):
        for account, excess in course.excess.items():
            aligned.add(bid, place, account, excess)


def _describe(
    assessment: Assessment, account: str | None, courses: list[_Course], finding: Finding
) -> None:
    course = max(courses, key=lambda each: each.total_ns)
    finding.ranks = assessment.ranks_if_some(e for c in courses for e in c.cycles.aligned.lanes)
    numbers = course.cycles.numbers[course.units]
    finding.phase, finding.subject = assessment.name_of(account), account
    where, unit = assessment.place_of(account), assessment.unit
    usual, slow = time(course.usual_ns), time(course.slow_ns)
    who = f"{assessment.facts.who(finding.ranks)}: " if finding.ranks else ""
    locate(finding, usual_ns=round(course.usual_ns), slow_ns=round(course.slow_ns),
           units=len(numbers), excess_ns=round(course.total_ns))  # fmt: skip
    if finding.kind == "SLOW_INTERVAL" or course.is_step:
        # A later process of the rank may repeat units.
        last = int(numbers.max()) + course.cycles.aligned.size - 1
        finding.steps = [(int(numbers.min()), last)]
        place = units_text(finding.steps, unit)
        place = (f"{place[0].upper()}{place[1:]} take" if finding.kind == "SLOW_INTERVAL"
                 else f"From {unit} {numbers[0]} on, a {unit} takes")  # fmt: skip
        finding.sentence = (
            f"{who}{place} {slow} instead of {usual}; the difference is in {where}:"
            f" {part_of(finding)}."
        )
        advise(finding, f"look for another load on the host or the device from {unit}"
               f" {numbers[0]} on, and for a change in the program at that {unit}")  # fmt: skip
        return
    finding.sentence = (
        f"{who}A {unit} takes {usual} at the start and {slow} at the end of the"
        f" {extent_of(assessment)}; it grows in"
        f" {where}: {part_of(finding)}."
    )
    advise(finding, f"look for lists, caches or graphs that grow with each {unit} in {where}",
           "a device that becomes hot lowers its clock: compare temperatures")  # fmt: skip
