"""The costs of a run's units: the wall time per unit by account, and its noise.

The wall time of a run is the time of its ledger without `UNCOUNTED`. Per unit, runs of different
numbers of units and ranks can be compared. All times are ns.

The noise of an account is measured within each run, from ten blocks of units. If the account has
time in at least half of the units, its noise is the standard deviation of the blocks' medians, or
that of their means if it is larger. The largest mean is left out, so that a single stall is a
difference and not noise. Stalls are separate: the noise of their number is that of independent
events, because few blocks contain one. For other accounts, such as evaluations, the number of
occurrences is a fact, and only their durations have noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .figures.ledger import Lane, Ledger, by_training
from .figures.medians import median_of

BLOCKS: Final = 10
"""The number of blocks of units from which the noise of a run is computed."""
MIN_UNITS: Final = 2 * BLOCKS
"""The minimum number of units after the warm-up, in each rank."""
UNCOUNTED: Final = frozenset({"start_up", "paused", "idle", "shut_down", "ended"})
"""The accounts that are not part of the wall time of the units."""
_WARM_UP: Final = "warm_up"
_TRIMMED: Final = 0.87
"""The standard deviation of ten normal values without the largest, relative to that of all."""
_STALL: Final = 2
"""An account's time in a unit is a stall if it exceeds its median by this many medians of units."""
_SURE_STALLS: Final = 2.5
"""The noise of the time of stalls, in standard deviations of a sum of independent events."""


@dataclass(frozen=True, slots=True)
class LedgerCosts:
    """The costs of a run's units."""

    lanes: int
    units: int
    """The sum over all lanes, without units that a later process repeats."""
    fewest: int
    """The number of units after the warm-up in the lane with the fewest."""
    totals: Mapping[str, int]
    """By account: the time of all lanes."""
    account_noise: Mapping[str, float]
    """By account with time in units: its noise, per unit. Empty if `noise` is None."""
    noise: float | None
    """The noise of the wall time per unit, at least `median_noise`; None if `fewest` is below
    `MIN_UNITS`."""
    median: float | None
    """The median of the medians of ten blocks of units after the warm-up; None if `noise` is."""
    median_noise: float | None
    """The standard deviation of these medians; None if `noise` is."""

    @property
    def wall_ns(self) -> int:
        """The wall time of all lanes."""
        return sum(ns for account, ns in self.totals.items() if account not in UNCOUNTED)

    @property
    def per_unit(self) -> float:
        """The wall time per unit."""
        return self.wall_ns / self.units

    @property
    def units_of_lane(self) -> float:
        """The mean number of units of a lane."""
        return self.units / self.lanes


def costs_of(ledger: Ledger | None) -> LedgerCosts | None:
    """Return the costs of a run's units; None without units."""
    lanes = [] if ledger is None else [lane for lane in ledger.lanes if len(lane.ns)]
    units = sum(map(_units, lanes))
    if ledger is None or not units:
        return None
    steady = [_is_steady(lane) for lane in lanes]
    fewest = min(
        int(np.count_nonzero(each)) * lane.size for lane, each in zip(lanes, steady, strict=True)
    )
    nothing = LedgerCosts(
        len(ledger.lanes), units, fewest, dict(ledger.totals), {}, None, None, None
    )
    if fewest < MIN_UNITS or any(np.count_nonzero(each) < BLOCKS for each in steady):
        return nothing
    noise, wall_noise = _noise(lanes, steady, units)
    times = [lane.ns[each] / lane.size for lane, each in zip(lanes, steady, strict=True)]
    median = median_of([median_of(each) for each in _blocks(times)])
    blocks = _blocks(_of_one_training(lanes, steady, times))
    median_noise = float(np.std([median_of(each) for each in blocks], ddof=1))
    return LedgerCosts(
        len(ledger.lanes), units, fewest, dict(ledger.totals), noise, max(wall_noise, median_noise),
        median, median_noise,
    )  # fmt: skip


def _units(lane: Lane) -> int:
    if lane.size > 1:
        return len(lane.ns) * lane.size
    return len(lane.ns) - int(np.count_nonzero(lane.is_lost))


def _is_steady(lane: Lane) -> np.ndarray:
    """Return which entries are neither warming up nor repeated by a later process."""
    steady = np.ones(len(lane.ns), bool)
    if len(lane.is_lost):
        steady &= ~lane.is_lost
    if _WARM_UP in lane.accounts:
        steady &= lane.accounts[_WARM_UP] == 0
    return steady


def _noise(
    lanes: Sequence[Lane], steady: Sequence[np.ndarray], units: int
) -> tuple[dict[str, float], float]:
    """Return the noise of each account, and of all accounts together, per unit."""
    names = dict.fromkeys(name for lane in lanes for name in lane.accounts)
    noise: dict[str, float] = {}
    everywhere: list[np.ndarray] = [np.zeros(len(lane.ns), np.int64) for lane in lanes]
    squares = 0.0
    for name in names:
        if name in UNCOUNTED:
            continue
        times = [lane.accounts.get(name, np.zeros(len(lane.ns), np.int64)) for lane in lanes]
        occurring = sum(int(np.count_nonzero(each)) for each in times)
        if 2 * occurring < sum(map(len, times)):
            durations = np.concatenate([each[each > 0] for each in times])
            noise[name] = _spread(durations) * math.sqrt(BLOCKS * occurring) / units
            squares += noise[name] ** 2
        else:
            stalls = [_stalls(*each) for each in zip(lanes, steady, times, strict=True)]
            times = [all_of - each for all_of, each in zip(times, stalls, strict=True)]
            of_stalls = sum(map(_stall_noise, stalls)) / units  # ranks may stall together
            squares += of_stalls**2
            noise[name] = math.hypot(_block_noise(lanes, steady, times), of_stalls)
            everywhere = [total + each for total, each in zip(everywhere, times, strict=True)]
    return noise, math.sqrt(squares + _block_noise(lanes, steady, everywhere) ** 2)


def _stalls(lane: Lane, steady: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the time above the account's median of the units that stall in it; 0 for others."""
    stalls = np.zeros_like(times)
    for some in by_training(lane.training) if lane.size == 1 else ():
        usual = steady[some]
        if usual.any():
            more = times[some] - np.int64(median_of(times[some][usual]))
            least = _STALL * median_of(lane.ns[some][usual])
            stalls[some] = np.where(more > least, more, 0)
    return stalls


def _stall_noise(stalls: np.ndarray) -> float:
    """Return the noise of the sum of stalls without the longest; adjacent units are one stall."""
    is_stall = stalls > 0
    starts = np.flatnonzero(is_stall & ~np.append(False, is_stall[:-1]))
    sums = np.sort(np.add.reduceat(stalls, starts)) if len(starts) else stalls[:0]
    return _SURE_STALLS * math.sqrt(np.square(sums[:-1].astype(float)).sum())


def _block_noise(
    lanes: Sequence[Lane], steady: Sequence[np.ndarray], times: Sequence[np.ndarray]
) -> float:
    """Return the noise of the means of the blocks, or that of their medians if it is larger."""
    rows = zip(lanes, steady, times, strict=True)
    values = [each[where] / lane.size for lane, where, each in rows]
    blocks = _blocks(_of_one_training(lanes, steady, values))
    means, medians = (np.array([f(block) for block in blocks]) for f in (np.mean, np.median))
    return max(_spread(means), float(np.std(medians, ddof=1)))


def _of_one_training(
    lanes: Sequence[Lane], steady: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the values of steady units without the differences of the trainings' medians."""
    centred = list(values)
    for place, lane in enumerate(lanes):
        if lane.training is not None:
            centred[place] = centred[place].copy()
            for some in by_training(lane.training[steady[place]]):
                centred[place][some] -= median_of(centred[place][some])
    return centred


def _spread(values: np.ndarray) -> float:
    """Return the standard deviation without the largest of three values or more."""
    if len(values) < 2:
        return 0.0
    if len(values) == 2:
        return float(np.std(values, ddof=1))
    return float(np.std(np.sort(values)[:-1], ddof=1)) / _TRIMMED


def _blocks(lanes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Divide the values of each lane into `BLOCKS` equal parts; return the parts of all lanes."""
    return [
        np.concatenate([
            each[len(each) * block // BLOCKS : len(each) * (block + 1) // BLOCKS]
            for each in lanes
        ])
        for block in range(BLOCKS)
    ]  # fmt: skip
