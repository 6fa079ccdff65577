"""Findings on ranks that the other ranks wait for.

The cost is what the run would save, in ns summed over all ranks: in each unit, the slowest work of
any rank, less the slowest work if the stragglers had the typical work of the other ranks. The
stragglers claim their excess up to that, and the other ranks their waiting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ...nouns import plural
from ..figures.durations import to_ns
from ..figures.medians import median_of, medians_of, percentiles_of
from .assessment import Assessment, add_wait, advise, locate
from .claims import Bid
from .cycles import WAITING, Cycles, is_synchronised
from .finding import Finding
from .rank_work import (
    RankWork,
    cause_of,
    errors_of_backward,
    lower_median_of_others,
    noise_of,
    rank_work,
)
from .spikes import describe_spikes, main_part
from .words import intervals, part_of, period_of, ranks_text, time, units_text

_ADVICE: Final = {
    "INPUT_STRAGGLER": "compare the storage, the share of the data and the DataLoader workers"
    " (num_workers) of {ranks} with the other ranks'",
    "COMPUTE_STRAGGLER": "compare the batches, the device's clock and the other load of the host"
    " of {ranks} with the other ranks'",
    "H2D_STRAGGLER": "check the batch size, pin_memory=True and the link of the device of {ranks}",
    "WAIT_STRAGGLER": "name the work of {ranks} outside of phases with ci.scope(...)",
    "STRAGGLER": "compare the phases of {ranks} with the other ranks'",
}
_MOVING: Final = "give all ranks batches of equal work: bucket samples by length, or pad them"
_CONFIDENCE: Final = 3.75
"""3 deviations, times 1.25 for the deviation of a median."""
_LOW: Final = 1.28
"""The 90th percentile of the normal distribution."""
_DEVIATIONS: Final = (4, 5)
"""The deviations of a slow unit in a run of 50 units or more, and in a shorter one."""
_SHORT: Final = 50
_ONE: Final = 0.8
"""The fraction of the excess from which one rank is the straggler, and does not move."""
_SPIKE: Final = 2
_CLIP: Final = 3
_GAP: Final = 3
_FEWEST: Final = 3


def straggler_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the findings on slow ranks: persistent ones, then those of some units."""
    if not is_synchronised(assessment.ledger) or not assessment.is_training:
        return
    cycles = assessment.cycles_of_ranks()
    if len(cycles.aligned.lanes) < 2 or not len(cycles.numbers):
        return
    work = rank_work(cycles)
    for slow in _persistent(assessment, work):
        finding = _price_persistent(assessment, work, slow)
        if finding is not None:
            assessment.has_straggler = True
            yield finding
    finding = _of_units(assessment, work)
    if finding is not None:
        assessment.has_straggler = True
        yield finding


def jitter_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the notice on the waiting that no straggler explains."""
    cost = assessment.claims.left_total(WAITING)
    if (
        assessment.has_straggler
        or cost <= 0
        or cost < assessment.limits["rank_jitter.notice"] * assessment.running_ns
    ):
        return
    each = cost / max(assessment.units, 1)
    share = assessment.share(cost)
    finding = Finding("RANK_JITTER", "notice", cost, share, "")
    finding.running_share = assessment.running_share(cost)
    finding.sentence = (
        f"A rank waits {time(each)} of each {time(assessment.unit_ns)} {assessment.unit} for"
        f" whichever rank is slowest, {part_of(finding)}; no rank is always the slowest."
    )
    locate(finding, per_unit_ns=round(each), unit_ns=round(assessment.unit_ns))
    advise(finding, _MOVING, part=None)
    yield finding


class _Slow(NamedTuple):
    """Some slow lanes that have one cause."""

    places: list[int]
    excess: np.ndarray
    """The mean excess of each lane, ns; 0 for the other lanes."""
    error: np.ndarray
    """The standard error of the excess of each lane."""


def _persistent(assessment: Assessment, work: RankWork) -> Iterator[_Slow]:
    """Yield groups of lanes that are slow in all units."""
    steady = work.cycles.is_steady
    matrix = work.matrix[:, steady]
    differences = matrix - medians_of(matrix, axis=0)
    low, medians = percentiles_of(differences, (10, 50))
    deviations = (medians - low) / 1.28
    middle = (len(deviations) - 1) // 2
    error = np.hypot(deviations, np.partition(deviations, middle)[middle])
    error /= max(matrix.shape[1], 1) ** 0.5
    of_backward = errors_of_backward(work.cycles)
    error = np.hypot(error, np.hypot(of_backward, median_of(of_backward)))
    excess = medians - lower_median_of_others(medians)
    limit = np.maximum(assessment.limits["straggler.excess"] * work.median_ns, _CONFIDENCE * error)
    slow = np.flatnonzero(excess > limit)
    if not len(slow) or 2 * len(slow) > len(matrix):
        return
    # Units that are slow for another reason do not count.
    width = _CLIP * deviations[:, None]
    center = medians[:, None]
    means = np.clip(differences, center - width, center + width).mean(axis=1)
    mean_excess = np.maximum(means - lower_median_of_others(means), 0)
    kinds: dict[str, list[int]] = {}
    for place in slow[np.argsort(-excess[slow])].tolist():
        kind, _ = cause_of(work.excess_of(place, float(mean_excess[place])))
        kinds.setdefault(kind, []).append(place)
    for places in kinds.values():
        of_group = np.zeros(len(matrix))
        of_group[places] = mean_excess[places]
        yield _Slow(places, of_group, error)


def _price_persistent(assessment: Assessment, work: RankWork, slow: _Slow) -> Finding | None:
    cycles, places, excess = work.cycles, slow.places, slow.excess
    typical = work.matrix - excess[:, None]
    low = np.where(excess > 0, np.maximum(excess - _LOW * slow.error, 0), 0)
    saved, low_saved = work.saved(typical, work.matrix - low[:, None])
    bid = assessment.claims.bid()
    by_account: dict[str, float] = {}
    for place in range(len(cycles.aligned.lanes)):
        rest = saved
        if excess[place] > 0:
            own = work.excess_of(place, float(excess[place]))
            for account, ns in own.items():
                by_account[account] = by_account.get(account, 0) + ns
            rest = saved - _add_own(bid, cycles, place, own, np.minimum(saved, excess[place]))
        add_wait(assessment, bid, cycles, place, rest)
    kind, main = cause_of(by_account)
    mean = float(saved.mean()) / cycles.aligned.size

    def describe(finding: Finding) -> None:
        lanes = [cycles.aligned.lanes[place] for place in places]
        finding.ranks = assessment.ranks_of(lanes)
        _place(assessment, finding, main)
        verb, whom = ("is", "it") if len(places) == 1 else ("are", "them")
        finding.sentence = (
            f"{assessment.facts.who(finding.ranks)} {verb} slow in {assessment.place_of(main)}:"
            f" each {time(assessment.unit_ns)} {assessment.unit} takes {time(mean)} longer because"
            f" of {whom}, {part_of(finding)}."
        )
        locate(
            finding,
            wait_ns=round(mean),
            excess_ns={str(assessment.ledger.lanes[lane].rank):
                       round(float(excess[place]) / cycles.aligned.size)
                       for lane, place in zip(lanes, places, strict=True)},
            accounts_ns={name: round(ns) for name, ns in by_account.items()},
            unit_ns=round(assessment.unit_ns),
        )  # fmt: skip
        _advise(finding, kind)

    low_ns = bid.total_ns * _low_part(work, typical, float(saved.sum()), float(low_saved.sum()))
    finding = assessment.price(kind, bid, describe, low_ns=low_ns)
    if finding is not None:
        work.matrix = typical
    return finding


def _low_part(work: RankWork, typical: np.ndarray, saved_ns: float, low_ns: float) -> float:
    """Return the 90 % lower bound of the saved time, as a part of it.

    The time is uncertain because the excess of the slow lanes is, and the spread of the work of the
    waiting phase. `low_ns` is the time that is saved if their excess is at its lower bound.
    """
    if saved_ns <= 0:
        return 0.0
    wider = 1 + _LOW / (2 * max(len(work.cycles.numbers), 1)) ** 0.5
    by_spread = float(work.saved(typical, wider=wider)[0].sum())
    errors = [max(1 - each / saved_ns, 0.0) for each in (low_ns, by_spread)]
    return max(1 - math.hypot(*errors), 0.0)


def _add_own(
    bid: Bid, cycles: Cycles, place: int, excess: dict[str, float], amounts: np.ndarray
) -> np.ndarray:
    """Add the excess of a slow lane, divided by account; return what was added in each unit."""
    added, total = np.zeros(len(amounts)), sum(excess.values())
    for account, ns in excess.items():
        added += cycles.aligned.add(bid, place, account, to_ns(amounts * (ns / total)))
    return added


def _of_units(assessment: Assessment, work: RankWork) -> Finding | None:
    """Return the finding on the units in which a rank is slower than the others."""
    cycles, matrix = work.cycles, work.matrix
    noise = noise_of(assessment.ledger, work)
    factor = _DEVIATIONS[len(cycles.numbers) < _SHORT]
    limit = max(factor * noise, assessment.limits["straggler.step_excess"] * work.median_ns)
    usual = lower_median_of_others(matrix)
    over = matrix - usual
    slow = (over > limit) & cycles.is_steady
    slow &= over >= main_part(over[slow])
    units = slow.any(axis=0)
    if not units.any():
        return None
    typical = np.where(slow, usual, matrix)
    [saved] = work.saved(typical)
    bid = assessment.claims.bid()
    by_account: dict[str, float] = {}
    by_place = {}
    excess = work.excess_in(slow)
    for place in range(len(matrix)):
        rest = saved
        if slow[place].any():
            own = excess[place]
            held = np.where(slow[place], np.minimum(over[place], saved), 0)
            by_place[place] = float(held.sum())
            for account, ns in own.items():
                total = sum(own.values())
                by_account[account] = by_account.get(account, 0) + by_place[place] * ns / total
            rest = saved - _add_own(bid, cycles, place, own, held)
        add_wait(assessment, bid, cycles, place, rest)
    return _price_units(assessment, work, bid, units, saved, by_place, by_account)


def _main_interval(numbers: np.ndarray, saved: np.ndarray, size: int) -> np.ndarray:
    """Return the numbers of the interval with most of the saved time; all if there is none.

    An interval may lack up to two units in a row.
    """
    parts = np.cumsum(np.r_[0, np.diff(numbers) > _GAP * size])
    sums = np.bincount(parts, weights=saved)
    first = int(np.argmax(sums))
    inside = numbers[parts == first]
    if sums[first] < _ONE * sums.sum() or len(inside) < _FEWEST:
        return numbers
    return np.arange(inside[0], inside[-1] + 1, size)


def _price_units(
    assessment: Assessment,
    work: RankWork,
    bid: Bid,
    units: np.ndarray,
    saved: np.ndarray,
    by_place: dict[int, float],
    by_account: dict[str, float],
) -> Finding | None:
    cycles = work.cycles
    first = max(by_place, key=lambda place: by_place[place])
    is_moving = by_place[first] < _ONE * sum(by_place.values())
    slow = [first] if not is_moving else sorted(by_place)
    numbers = cycles.numbers[units]
    kind, main = cause_of(by_account)
    mean = float(saved[units].mean())
    is_regular = not is_moving and period_of(numbers) is not None
    if is_regular and mean > _SPIKE * work.median_ns:
        kind = "INPUT_SPIKES" if main == "input" else "SPIKES"

    def describe(finding: Finding) -> None:
        lanes = [cycles.aligned.lanes[place] for place in slow]
        finding.ranks = assessment.ranks_of(lanes)
        locate(finding, units=int(units.sum()), wait_ns=round(mean),
               accounts_ns={name: round(ns) for name, ns in by_account.items()})  # fmt: skip
        if kind in ("INPUT_SPIKES", "SPIKES"):
            describe_spikes(assessment, finding, main, numbers, mean, work.median_ns,
                            cycles.aligned.size)  # fmt: skip
            return
        finding.moving = is_moving
        is_all = units.sum() >= _ONE * len(units)
        named = _main_interval(numbers, saved[units], cycles.aligned.size)
        finding.steps = [] if is_all else intervals(named, cycles.aligned.size)
        finding.every = None if is_all else period_of(numbers)
        _place(assessment, finding, main)
        _state(assessment, finding, main, numbers, mean)
        has_others = len(slow) < len(cycles.aligned.lanes)
        _advise(finding, kind, has_others=has_others)

    return assessment.price(kind, bid, describe)


def _state(
    assessment: Assessment,
    finding: Finding,
    account: str | None,
    numbers: np.ndarray,
    mean: float,
) -> None:
    where, unit = assessment.place_of(account), assessment.unit
    place = f"in {units_text(finding.steps, unit)}" if len(finding.steps) == 1 else (
        f"in {len(numbers):,} {plural(unit)}"
    )  # fmt: skip
    who = (
        f"In {len(numbers):,} {plural(unit)} one rank is slow in {where}, and the slow rank changes"
        if finding.moving else f"{assessment.facts.who(finding.ranks)} is slow in {where} {place}"
    )  # fmt: skip
    finding.sentence = f"{who}: such a {unit} takes {time(mean)} longer, {part_of(finding)}."


def _place(assessment: Assessment, finding: Finding, account: str | None) -> None:
    name = assessment.name_of(account)
    if account == "other_scopes":
        finding.scope = name
    else:
        finding.phase = name


def _advise(finding: Finding, kind: str, *, has_others: bool = True) -> None:
    texts = [_MOVING] if finding.moving else []
    if has_others:
        texts.append(_ADVICE[kind].format(ranks=ranks_text(finding.ranks, begins=False)))
    advise(finding, *texts)
