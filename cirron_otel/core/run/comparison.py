"""The difference of two runs: their wall time per unit, by account.

The wall time of a run is the time of its ledger without `UNCOUNTED`. Per unit, runs of different
numbers of units and ranks can be compared. All times are ns.

The noise of an account is measured within each run, from ten blocks of units. If the account has
time in at least half of the units, its noise is the standard deviation of the blocks' medians, or
that of their means if it is larger. The largest mean is left out, so that a single stall is a
difference and not noise. Stalls are separate: the noise of their number is that of independent
events, because few blocks contain one. For other accounts, such as evaluations, the number of
occurrences is a fact, and only their durations have noise.

Two runs of a program also differ because the speed of the machine differs, which no block of a run
shows. It changes most accounts in one direction. A difference of this kind has a minimum noise,
which is larger for shorter runs (`_speed_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from .accounts import ACCOUNTS
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
_SURE: Final = 2
"""Runs are the same if this many times the noise cannot hide a moderate difference."""
_STALL: Final = 2
"""An account's time in a unit is a stall if it exceeds its median by this many medians of units."""
_SURE_STALLS: Final = 2.5
"""The noise of the time of stalls, in standard deviations of a sum of independent events."""
_SPEED_NOISE: Final = 0.12
"""The change that the speed of the machine explains in runs of `_SHORT_NS` or less."""
_SHORT_NS: Final = 2_000_000_000
_LARGEST: Final = 2
_OTHERS: Final = 0.5
"""The speed of the machine may explain a change if the accounts without the `_LARGEST` changes
together change by at least this part of it, relative to their time."""
_LEAST_PART: Final = 0.05
"""The minimum part of the difference that an account explains to be named."""

Kind = Literal["SLOWER", "FASTER", "SAME", "INCONCLUSIVE"]
Severity = Literal["info", "warn", "crit"]


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


@dataclass(frozen=True, slots=True)
class AccountChange:
    """The difference of an account between two runs."""

    account: str
    a_ns: int
    b_ns: int
    """The time of a rank in the account, the mean of all ranks."""
    a_per_unit_ns: float
    b_per_unit_ns: float
    noise_ns: float | None
    """The difference per unit that the noise of both runs explains; None if it is not measured."""
    part: float | None
    """The part of the difference of the wall time per unit, 1 for all of it.

    It is negative for an account that changes in the other direction. None if the account is not
    part of the wall time, or if there is no difference.
    """
    is_named: bool
    """Whether the account explains the difference: it exceeds the noise and is large enough."""

    @property
    def per_unit_ns(self) -> float:
        """The difference per unit."""
        return self.b_per_unit_ns - self.a_per_unit_ns

    @property
    def is_counted(self) -> bool:
        """Whether the account is part of the wall time."""
        return self.account not in UNCOUNTED

    def to_json(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        values = asdict(self)
        return {**values, "share": values.pop("part"), "change_per_unit_ns": self.per_unit_ns}


@dataclass(frozen=True, slots=True)
class CostChange:
    """The difference of the wall time of two runs."""

    kind: Kind
    severity: Severity
    """`warn` for a moderately slower run, `crit` for a materially slower one, else `info`."""
    change: float | None
    """(B - A) / A of the wall time per unit; None if a run has no units."""
    noise: float | None
    """The change that the noise of both runs explains; None if a run has too few units."""
    accounts: list[AccountChange]
    """In the order of reports; empty if a run has no units."""
    measured_noise: float = 0.0
    """The noise without that of the machine's speed."""
    shorter_ns: float = 0.0
    """The wall time of a rank in the shorter run."""

    @property
    def is_failure(self) -> bool:
        """Whether the second run is slower."""
        return self.severity != "info"

    @property
    def cause(self) -> AccountChange | None:
        """The account that explains most of the difference; None without a difference."""
        named = self.named if self.kind in ("SLOWER", "FASTER") else []
        difference = sum(each.per_unit_ns for each in self.accounts if each.is_counted)
        return next((each for each in named if each.per_unit_ns * difference > 0), None)

    def is_slower_by(self, share: float, factor: float = 1.0) -> bool:
        """Return whether the wall time, or an account of it, is longer in B by a share of A's.

        The differences also exceed the noise of both runs. `factor` is multiplied with the times of
        B: the ratio of A's units to B's, if a unit of B is larger.
        """
        counted = [each for each in self.accounts if each.is_counted]
        before = sum(each.a_per_unit_ns for each in counted)
        if self.noise is None or not before:
            return False
        times = [(each.a_per_unit_ns, factor * each.b_per_unit_ns) for each in counted]
        speed = _speed_noise(times, self.shorter_ns)
        more = sum(b for _, b in times) - before
        scale = max(factor, 1.0)  # the noise of the times of B is scaled with them
        if more >= share * before and more > max(scale * self.measured_noise, speed) * before:
            return True
        return any(
            b - a >= share * before and b - a > max(scale * (each.noise_ns or 0.0), speed * a)
            for each, (a, b) in zip(counted, times, strict=True)
        )

    @property
    def named(self) -> list[AccountChange]:
        """The accounts that explain the difference, the largest first."""
        named = [each for each in self.accounts if each.is_named]
        return sorted(named, key=lambda each: -abs(each.per_unit_ns))


def compare_costs(
    a: LedgerCosts | None, b: LedgerCosts | None, moderate: float, material: float
) -> CostChange:
    """Compare the wall time per unit of two runs; `moderate` and `material` are changes of it."""
    if a is None or b is None or not a.wall_ns:
        return CostChange("INCONCLUSIVE", "info", None, None, [])
    change = (b.per_unit - a.per_unit) / a.per_unit
    if a.noise is None or b.noise is None:
        accounts = _accounts(a, b, math.inf)
        return CostChange("INCONCLUSIVE", "info", change, None, accounts)
    measured = noise = math.hypot(a.noise, b.noise) / a.per_unit
    shorter_ns = min(each.wall_ns / each.lanes for each in (a, b))
    speed = 0.0
    if abs(change) >= moderate:
        speed = _speed_noise(_times(a, b), shorter_ns)
        noise = max(measured, speed)
    kind: Kind = "SLOWER" if change > 0 else "FASTER"
    least_ns = _LEAST_PART * abs(change) * a.per_unit
    if abs(change) < moderate or abs(change) <= noise:
        kind, least_ns = "INCONCLUSIVE", max(moderate, noise) * a.per_unit
    accounts = _accounts(a, b, least_ns, speed)
    severity: Severity = "info"
    if kind == "SLOWER":
        severity = "crit" if change >= material else "warn"
    elif abs(change) + _SURE * noise < moderate and not any(e.is_named for e in accounts):
        kind = "SAME"
    return CostChange(kind, severity, change, noise, accounts, measured, shorter_ns)


def _times(a: LedgerCosts, b: LedgerCosts) -> list[tuple[float, float]]:
    """Return the times per unit of each account of the wall time, in A and in B."""
    return [
        (a.totals.get(name, 0) / a.units, b.totals.get(name, 0) / b.units)
        for name in {*a.totals, *b.totals} - UNCOUNTED
    ]


def _speed_noise(times: Sequence[tuple[float, float]], shorter_ns: float) -> float:
    """Return the change that a different speed of the machine explains.

    It is 0 if only two accounts change, or if the others do not change accordingly. The speed
    changes within seconds. So its noise is inversely proportional to the root of the duration of
    the shorter run, in ns.
    """
    before, after = (sum(values) for values in zip(*times, strict=True))
    sign = math.copysign(1, after - before)
    others = sorted(times, key=lambda pair: sign * (pair[1] - pair[0]))[:-_LARGEST]
    rest = sum(a for a, _ in others)
    least = _OTHERS * abs(after - before) * rest / before
    if not rest or sign * (sum(b for _, b in others) - rest) < least:
        return 0.0
    return _SPEED_NOISE * math.sqrt(_SHORT_NS / max(shorter_ns, _SHORT_NS))


def _accounts(
    a: LedgerCosts, b: LedgerCosts, least_ns: float, speed: float = 0.0
) -> list[AccountChange]:
    """Return the differences of all accounts.

    Those of `least_ns` per unit or more are named, unless the speed of the machine explains them:
    a change of an account's time by up to `speed`.
    """
    known = {*a.totals, *b.totals}
    names = [name for name in ACCOUNTS if name in known]
    difference = b.per_unit - a.per_unit
    found = []
    for name in names:
        times = [each.totals.get(name, 0) for each in (a, b)]
        before, after = times[0] / a.units, times[1] / b.units
        noise = None
        if a.noise is not None and b.noise is not None:
            noise = math.hypot(a.account_noise.get(name, 0), b.account_noise.get(name, 0))
        is_counted = name not in UNCOUNTED
        change = abs(after - before)
        found.append(
            AccountChange(
                name, round(times[0] / a.lanes), round(times[1] / b.lanes), before, after,
                noise if is_counted else None,
                (after - before) / difference if is_counted and difference else None,
                is_counted
                and noise is not None
                and change > max(noise, speed * before)
                and change >= least_ns,
            )
        )  # fmt: skip
    return found
