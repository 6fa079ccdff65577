"""The finding on waits for a CPU: other threads ran while the training was ready to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from ....semconv import CPU_ALLOWED
from ..figures.durations import to_ns
from ..figures.ledger import Lane, Places, by_training
from ..figures.medians import median_of
from ..figures.timed_marks import TimedValues
from .assessment import Assessment, add_wait, advise, locate
from .claims import Bid
from .cycles import WORK
from .finding import Finding
from .spikes import main_part
from .words import intervals, part_of, time

_FEW_UNITS: Final = 0.5
"""Units are named if they are less than this part of all."""
_MUCH: Final = 0.5
"""Ranks are named whose waits are more than this part of the longest ones."""


def contention_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the finding on waits for a CPU.

    It is at most a warning, because the program itself may be fine. Its claims come ahead of those
    of slow units, ranks and intervals, whose prices do not include what other work on the host
    causes.
    """
    waits = assessment.facts.cpu_waits
    has_several = sum(not each.ranks for each in assessment.facts.sessions) > 1
    bid = assessment.claims.bid()
    amounts: dict[int, np.ndarray] = {}
    for place, lane in enumerate(assessment.ledger.lanes):
        readings = waits.get(lane.rank)
        if readings is None or not len(lane.ns) or lane.thread not in (None, 1):
            continue
        if lane.rank is None and has_several:
            continue  # which process a reading is of is unknown
        accounts = {name: bid.left(place, name).astype(np.float64) for name in WORK
                    if assessment.claims.has(place, name)}  # fmt: skip
        work = sum(accounts.values(), np.zeros(len(lane.ns)))
        trainings = by_training(lane.training)
        wanted = _amounts(lane, readings, work, _excess(work, trainings))
        over = {name: _excess(each, trainings) for name, each in accounts.items()}
        taken = np.zeros(len(lane.ns))
        for name, amount in _divided(accounts, over, work, wanted).items():
            taken += bid.add(place, name, to_ns(amount), is_host=True)
        amounts[place] = taken
    if not bid.total_ns:
        return
    _add_waiting(assessment, bid, amounts)

    def describe(finding: Finding) -> None:
        _describe(assessment, amounts, finding)

    finding = assessment.price("CPU_CONTENTION", bid, describe)
    # Claim the waits even for a notice, so that no other finding has them.
    bid.commit()
    assessment.contended_ns = bid.total_ns
    if finding is not None:
        yield finding


def _excess(times: np.ndarray, trainings: Sequence[Places]) -> np.ndarray:
    """Return the times above the median of their training."""
    excess = np.zeros(len(times))
    for some in trainings:
        excess[some] = np.maximum(times[some] - median_of(times[some]), 0)
    return excess


def _amounts(lane: Lane, readings: TimedValues, work: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Return the part of each unit's work that is a wait for a CPU, ns.

    A reading is a sum over an interval. It belongs first to the work above the median (`above`) in
    this interval, and the rest to all work, as far as the interval is work.
    """
    order = np.argsort(readings.at, kind="stable")
    times, waits = readings.at[order], readings.values[order]
    ends = np.maximum.accumulate(lane.start + lane.ns)
    edges = np.r_[lane.start[0], ends]
    grid = np.unique(np.r_[edges, times])
    grid = grid[(grid >= edges[0]) & (grid <= edges[-1])]
    length, middle = np.diff(grid), grid[:-1]
    unit = (np.searchsorted(edges, middle, side="right") - 1).clip(0, len(work) - 1)
    # The first reading has no beginning, and after the last one nothing is known.
    interval = np.searchsorted(times, middle, side="right")
    is_read = (interval > 0) & (interval < len(times))
    length, unit, interval = length[is_read], unit[is_read], interval[is_read]
    if not len(length):
        return np.zeros(len(work))
    density = np.maximum(np.diff(edges), 1)[unit]
    excess = above[unit] / density * length
    of_work = work[unit] / density * length
    extent = np.maximum(np.diff(times, prepend=times[0]), 1)
    wait = np.minimum(waits, extent).astype(np.float64)

    def by_interval(values: np.ndarray) -> np.ndarray:
        sums: np.ndarray = np.bincount(interval, values, len(times))
        return sums

    over = by_interval(excess)
    of_excess = np.minimum(1, wait / np.maximum(over, 1))
    rest = np.maximum(wait - over, 0) / np.maximum(extent - over, 1)
    claimed = excess * of_excess[interval]
    claimed += np.maximum(of_work - claimed, 0) * np.minimum(rest, 1)[interval]
    found: np.ndarray = np.bincount(unit, claimed, len(work))
    return found


def _divided(
    accounts: Mapping[str, np.ndarray], over: Mapping[str, np.ndarray], work: np.ndarray,
    wanted: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Divide the amount of each unit: first by the excess of its accounts, then by their times."""
    total = sum(over.values(), np.zeros(len(work)))
    first = np.minimum(wanted, total)
    rest = np.minimum(wanted, work) - first
    scale = first / np.maximum(total, 1)
    of_rest = rest / np.maximum(work - first, 1)
    return {
        name: over[name] * scale + (each - over[name] * scale) * of_rest
        for name, each in accounts.items()
    }


def _add_waiting(assessment: Assessment, bid: Bid, amounts: Mapping[int, np.ndarray]) -> None:
    """Add the time for which other ranks wait for the rank that waits longest for a CPU."""
    for cycles in assessment.cycles():
        aligned = cycles.aligned
        if len(aligned.lanes) < 2:
            continue
        none = np.zeros(len(aligned.numbers))
        rows = [aligned.of(place, amounts[lane]) if lane in amounts else none
                for place, lane in enumerate(aligned.lanes)]  # fmt: skip
        most = np.max(rows, axis=0)
        for place, row in enumerate(rows):
            add_wait(assessment, bid, cycles, place, most - row)


def _describe(
    assessment: Assessment, amounts: Mapping[int, np.ndarray], finding: Finding
) -> None:  # fmt: skip
    lanes = assessment.ledger.lanes
    totals = {lane: float(each.sum()) for lane, each in amounts.items()}
    most = max(totals, key=lambda lane: totals[lane])
    used = [lane for lane, total in totals.items() if total > _MUCH * totals[most]]
    if len(used) < len(lanes):
        finding.ranks = assessment.ranks_of(used)
    of_most = amounts[most]
    units = of_most >= main_part(of_most)
    if units.mean() < _FEW_UNITS:
        finding.steps = intervals(lanes[most].number[units], lanes[most].size)
    who = f"{assessment.facts.who(finding.ranks)}: w" if finding.ranks else "W"
    cpus = assessment.facts.setting(CPU_ALLOWED)
    on = "" if not isinstance(cpus, int) else f" ({cpus} for this process)"
    finding.sentence = (
        f"{who}aiting for a CPU takes {time(sum(totals[lane] for lane in used) / len(used))},"
        f" {part_of(finding)}: more threads are ready to run than there are CPUs{on}."
    )
    locate(finding, waited_ns=round(sum(totals.values())), cpus=cpus)
    advise(
        finding,
        "stop other programs on this host, or give the training CPUs of its own",
        "fewer loader workers and threads (OMP_NUM_THREADS) in all processes together than CPUs",
    )
