"""Findings on single slow units: spikes, and slow first batches of epochs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ...nouns import plural
from ..figures.medians import median_of
from .assessment import Assessment, advise, locate
from .courses import slow_interval
from .cycles import Cycles
from .finding import Finding
from .words import intervals, part_of, period_of, time, units_text

_FIRST_FACTOR: Final = 3
_FEW: Final = 3
_MAIN: Final = 0.25
_QUARTER: Final = 0.25
_NO_ACCOUNT: Final = -1


@dataclass(frozen=True, slots=True)
class _Spikes:
    """The slow units of some lanes, and the account that holds half of their excess."""

    cycles: Cycles
    units: np.ndarray
    """A mask."""
    excess: np.ndarray
    account: str | None
    baselines: dict[str, float]


def first_batch_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the finding on slow first batches of epochs."""
    if not assessment.is_training:
        return
    bid, firsts, epochs, count_of_all = assessment.claims.bid(), [], 0, 0
    lanes: list[int] = []
    for cycles in assessment.cycles():
        aligned = cycles.aligned
        lane = assessment.ledger.lanes[aligned.lanes[0]]
        epoch = aligned.of(0, lane.epoch)
        begins = np.r_[True, epoch[1:] != epoch[:-1]] & (epoch >= 0)
        if begins.sum() < 2 or lane.size > 1:
            continue
        times, median = cycles.account("input"), cycles.median_ns
        later = cycles.is_steady & ~begins
        usual = median_of(times[later]) if later.any() else 0.0
        over = times - usual
        slow = begins & (times > _FIRST_FACTOR * median) & (2 * over > cycles.work - median)
        if slow.sum() < 2:
            continue
        lanes += aligned.lanes
        firsts += cycles.numbers[slow].tolist()
        epochs = max(epochs, int(slow.sum()))
        count_of_all += int(slow.sum()) * len(aligned.lanes)
        # Between the units, the iterator of the last epoch stops its workers.
        gap = median_of(cycles.account("between_units")[later]) if later.any() else 0.0
        for place in range(len(aligned.lanes)):
            for account, base in (("input", usual), ("between_units", gap)):
                own = np.where(slow, cycles.of_lane(place, account) - base, 0)
                aligned.add(bid, place, account, own, is_host=True)
    if not bid.total_ns:
        return
    each_ns = bid.total_ns / count_of_all

    def describe(finding: Finding) -> None:
        finding.phase = assessment.name_of("input")
        finding.ranks = assessment.ranks_if_some(lanes)
        finding.steps = intervals(firsts)
        finding.epochs = assessment.ledger.epochs[:100]
        finding.sentence = (
            f"The first batch of each epoch takes {time(each_ns)} longer than a later one"
            f" ({epochs} epochs), {part_of(finding)}: workers start again."
        )
        locate(finding, excess_ns=round(each_ns), epochs=epochs)
        advise(finding, "keep the workers between epochs: DataLoader(persistent_workers=True)",
               "open files and databases once, and not in each epoch")  # fmt: skip

    finding = assessment.price("SLOW_FIRST_BATCH", bid, describe)
    if finding is not None:
        yield finding


def spike_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the findings on single units that are much slower than the others, by account."""
    groups: dict[str | None, list[_Spikes]] = {}
    for cycles in assessment.cycles():
        for spikes in _spikes(assessment, cycles):
            groups.setdefault(spikes.account, []).append(spikes)
    for account, of_account in groups.items():
        bid = assessment.claims.bid()
        for each in of_account:
            each.cycles.add_excess(bid, np.where(each.units, each.excess, 0), each.baselines)
        finding = assessment.price(
            "INPUT_SPIKES" if account == "input" else "SPIKES",
            bid,
            partial(_describe, assessment, account, of_account),
            at_most="warning" if account is None else None,
        )
        if finding is not None:
            yield finding


def _spikes(assessment: Assessment, cycles: Cycles) -> Iterator[_Spikes]:
    """Yield the slow units by the account that holds half of their excess.

    Units whose account has less than a quarter of all excess are yielded together.
    """
    limits, median = assessment.limits, cycles.median_ns
    work = cycles.work
    limit = max(
        limits["spikes.factor"] * median,
        median + limits["spikes.deviations"] * cycles.deviation_ns,
    )
    units = cycles.is_steady & (work > limit)
    units[:1] = False  # the first unit has the start of the input
    interval = slow_interval(cycles, limits)
    if interval is not None:
        units[interval] = False
    if not units.any() or median <= 0:
        return
    baselines = cycles.baselines(cycles.is_steady & ~units)
    excess, names = np.where(units, work - median, 0), cycles.accounts
    over = np.stack([np.maximum(cycles.account(name) - baselines[name], 0) for name in names])
    largest = np.where(2 * over.max(axis=0) >= excess, over.argmax(axis=0), _NO_ACCOUNT)
    totals = {
        each: float(excess[units & (largest == each)].sum()) for each in np.unique(largest[units])
    }
    large = {each for each, total in totals.items()
             if each != _NO_ACCOUNT and total >= _QUARTER * float(excess.sum())}  # fmt: skip
    for each in large:
        of_account = units & (largest == each)
        yield _Spikes(
            cycles,
            of_account,
            np.where(of_account, excess, 0),
            names[int(each)],
            baselines,
        )
    rest = units & ~np.isin(largest, list(large))
    if rest.any():
        yield _Spikes(cycles, rest, np.where(rest, excess, 0), None, baselines)


def _describe(
    assessment: Assessment, account: str | None, spikes: list[_Spikes], finding: Finding
) -> None:
    most = max(spikes, key=lambda each: float(each.excess.sum()))
    units = most.units & (most.excess >= main_part(most.excess[most.units]))
    numbers = most.cycles.numbers[units]
    finding.ranks = assessment.ranks_if_some(e for s in spikes for e in s.cycles.aligned.lanes)
    describe_spikes(
        assessment, finding, account, numbers, float(most.excess[units].mean()),
        most.cycles.median_ns, most.cycles.aligned.size,
    )  # fmt: skip


def main_part(excess: np.ndarray) -> float:
    """Return the least excess that counts if some are much larger than most.

    It is a quarter of the mean excess, weighted by itself.
    """
    total = float(excess.sum())
    return _MAIN * float((excess.astype(np.float64) ** 2).sum()) / total if total > 0 else 0.0


def describe_spikes(
    assessment: Assessment,
    finding: Finding,
    account: str | None,
    numbers: np.ndarray,
    mean_ns: float,
    usual_ns: float,
    size: int,
) -> None:
    """Set the place, the sentence and the advice of a finding on spikes."""
    unit = assessment.unit
    finding.steps = intervals(numbers, size)
    finding.every = period_of(numbers)
    finding.phase, finding.subject = assessment.name_of(account), account
    period = f"every {finding.every} {plural(unit)}" if finding.every else (
        f"in {units_text(finding.steps, unit)}" if len(numbers) <= _FEW
        else f"in {len(numbers):,} {plural(unit)}"
    )  # fmt: skip
    who = f"{assessment.facts.who(finding.ranks)}: " if finding.ranks else ""
    begin = "a" if who else "A"
    finding.sentence = (
        f"{who}{begin} {unit} takes {time(mean_ns)} longer than the usual {time(usual_ns)},"
        f" {period}, in {assessment.place_of(account)}: {part_of(finding)}."
    )
    locate(finding, units=len(numbers), excess_ns=round(mean_ns), usual_ns=round(usual_ns))
    if account == "input":
        advise(finding, "more prefetching hides slow fetches: DataLoader(num_workers=...,"
               " prefetch_factor=...)", "look for shuffle buffers, new files or shards at these"
               f" {plural(unit)}")  # fmt: skip
    else:
        advise(
            finding,
            f"look at what runs at these {plural(unit)}, and name it with ci.scope(...)",
            "batches of new shapes compile or allocate again: pad them to few shapes",
        )
