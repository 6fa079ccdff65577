"""The cycles of units: of one lane, or of lanes that wait for each other, by unit number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ..figures.durations import to_ns
from ..figures.ledger import Lane, Ledger, Places, by_training
from ..figures.medians import median_of, percentiles_of
from .claims import Bid, Claims

WORK: Final = (
    "input", "transfer", "forward", "loss", "backward", "optimizer", "communication",
    "unattributed", "between_units", "busy",
)  # fmt: skip
"""The accounts that are a unit's own work, without evaluations, checkpoints, logging and scopes."""
PHASES_OF_WORK: Final = WORK[:7]
WAITING: Final = "waiting_for_ranks"
_SAMPLE: Final = 64
"""The maximum number of lanes that the common cycle is computed from."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """Lanes by unit number: the units that all of them have."""

    lanes: list[int]
    """The places of the lanes in the ledger."""
    rows: list[Places | None]
    """The places of the common units in each lane; None if they are all its units, in order."""
    numbers: np.ndarray
    size: int

    def of(self, place: int, values: np.ndarray) -> np.ndarray:
        """Return the values of the common units from the values of a lane's units."""
        rows = self.rows[place]
        return values if rows is None else values[rows]

    def add(
        self, bid: Bid, place: int, account: str, amounts: np.ndarray, *, is_host: bool = False
    ) -> np.ndarray:
        """Add an amount for each common unit of a lane to a bid; return what was added."""
        lane, rows = self.lanes[place], self.rows[place]
        return bid.add(lane, account, amounts, places=rows, is_host=is_host)


def align(ledger: Ledger, lanes: Sequence[int]) -> Aligned:
    """Align lanes by unit number. If a lane repeats a unit, the last one counts.

    Lanes with less than half of the units of the longest one, by number, are left out.
    """
    longest = max((len(ledger.lanes[lane].ns) for lane in lanes), default=0)
    lanes = [lane for lane in lanes if 2 * len(ledger.lanes[lane].ns) >= max(longest, 1)]
    numbers = [ledger.lanes[lane].number for lane in lanes]
    size = max((ledger.lanes[lane].size for lane in lanes), default=1)
    if not lanes:
        return Aligned([], [], np.zeros(0, np.int64), size)
    most = max(numbers, key=len)
    shares = [
        np.array_equal(each, most) or 2 * np.isin(most, each).sum() >= len(most) for each in numbers
    ]
    lanes = [lane for lane, is_in in zip(lanes, shares, strict=True) if is_in]
    numbers = [each for each, is_in in zip(numbers, shares, strict=True) if is_in]
    first = numbers[0]
    is_same = all(len(each) == len(first) and np.array_equal(each, first) for each in numbers)
    if is_same and (len(lanes) == 1 or bool((np.diff(first) > 0).all())):
        return Aligned(lanes, [None] * len(lanes), first, size)
    common, rows = first, []
    for each in numbers:
        common = np.intersect1d(common, each)
    for each in numbers:
        unique, last = np.unique(each[::-1], return_index=True)
        rows.append(len(each) - 1 - last[np.searchsorted(unique, common)])
    return Aligned(lanes, list(rows), common, size)


def is_synchronised(ledger: Ledger) -> bool:
    """Return whether the ledger has ranks that wait for each other."""
    with_units = [each for each in ledger.lanes if len(each.ns)]
    return len(with_units) > 1 and any(
        WAITING in each.accounts and bool(each.accounts[WAITING].any()) for each in with_units
    )


def aligned_groups(ledger: Ledger) -> list[Aligned]:
    """Return all synchronised lanes together, or else each lane with units."""
    lanes = [place for place, each in enumerate(ledger.lanes) if len(each.ns)]
    if is_synchronised(ledger):
        return [align(ledger, lanes)]
    return [align(ledger, [lane]) for lane in lanes]


def of_trainings(aligned: Aligned, lanes: Sequence[Lane]) -> list[Places]:
    """Return the places of the common units of each training, by the first lane's trainings."""
    training = lanes[aligned.lanes[0]].training if aligned.lanes else None
    return by_training(None if training is None else aligned.of(0, training))


def divided(aligned: Aligned, lanes: Sequence[Lane]) -> list[Aligned]:
    """Divide the common units of lanes by training."""
    trainings = of_trainings(aligned, lanes)
    if len(trainings) == 1:
        return [aligned]
    return [
        Aligned(
            aligned.lanes, [_some_of(rows, some) for rows in aligned.rows],
            aligned.numbers[some], aligned.size,
        )
        for some in trainings
    ]  # fmt: skip


def _some_of(rows: Places | None, some: Places) -> Places:
    if rows is None:
        return some
    if isinstance(rows, slice):
        return np.arange(rows.start, rows.stop)[some]
    return rows[some]


def deviation_of(values: np.ndarray) -> float:
    """Return the robust deviation from the lower half: (median - 10th percentile) / 1.28."""
    if not len(values):
        return 0.0
    low, middle = percentiles_of(values, (10, 50))
    return float(middle - low) / 1.28


class Cycles:
    """The unclaimed work in the cycles of some lanes; of several lanes, the lower median.

    It has the state of the claims at the time at which each property is first used.
    """

    def __init__(self, aligned: Aligned, claims: Claims) -> None:
        """`claims` are those of the ledger with the lanes."""
        self.aligned, self._claims = aligned, claims
        step = -(-len(aligned.lanes) // _SAMPLE) or 1
        self._sample = list(range(0, len(aligned.lanes), step))

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of the units."""
        return self.aligned.numbers

    def has(self, account: str) -> bool:
        """Return whether one of the lanes has an account in some unit."""
        return any(self._claims.has(lane, account) for lane in self.aligned.lanes)

    def lane(self, place: int) -> Lane:
        """Return one of the lanes."""
        return self._claims.lanes[self.aligned.lanes[place]]

    def left_in_lane(self, place: int, account: str) -> np.ndarray:
        """Return the unclaimed time of an account in one of the lanes, by unit, as int64."""
        return self.aligned.of(place, self._claims.left(self.aligned.lanes[place], account))

    def of_lane(self, place: int, account: str) -> np.ndarray:
        """Return the unclaimed time of an account in one of the lanes, by unit, as float64."""
        return self.left_in_lane(place, account).astype(np.float64)

    def waiting_of(self, place: int) -> np.ndarray:
        """Return the time of one of the lanes in waiting phases, by unit, as float64."""
        return self.aligned.of(place, self.lane(place).waiting).astype(np.float64)

    @cached_property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that are a unit's own work.

        If no unit has a phase, as in requests, the user's own scopes are work.
        """
        lanes = self.aligned.lanes
        if any(self._claims.has(lane, name) for lane in lanes for name in PHASES_OF_WORK):
            return WORK
        return *WORK, "other_scopes"

    def work_of(self, place: int, accounts: Sequence[str] | None = None) -> np.ndarray:
        """Return the unclaimed time of some accounts in one of the lanes, by unit, as float64.

        They are the accounts of work if none are given.
        """
        accounts = self.accounts if accounts is None else accounts
        lane = self.aligned.lanes[place]
        total = np.zeros(len(self.aligned.numbers))
        for account in accounts:
            if self._claims.has(lane, account):
                total += self.aligned.of(place, self._claims.left(lane, account))
        return total

    @cached_property
    def work(self) -> np.ndarray:
        """The time of a cycle without what is not a unit's own work, ns."""
        return lower_median([self.work_of(place) for place in self._sample])

    def account(self, name: str) -> np.ndarray:
        """Return the common time of an account by unit, ns."""
        return lower_median([self.of_lane(place, name) for place in self._sample])

    @cached_property
    def is_steady(self) -> np.ndarray:
        """Whether each unit is after the warm-up, and neither lost nor stalled."""
        steady = np.ones(len(self.numbers), bool)
        for place in self._sample:
            lane = self.aligned.lanes[place]
            for account in ("lost", "stalled", "warm_up", "compilation"):
                if not self._claims.has(lane, account):
                    continue
                times = self._claims.lanes[lane].accounts[account]
                units = self.aligned.of(place, times) > 0
                steady[units] = False
                if account != "warm_up" or not units.any():
                    continue
                for some in self.trainings:
                    last = np.flatnonzero(units[some])[-1:]
                    of_training = steady[some]
                    of_training[: int(last.sum()) + len(last)] = False
                    steady[some] = of_training
        return steady if steady.any() else np.ones(len(steady), bool)

    @cached_property
    def trainings(self) -> list[Places]:
        """The places of the units of each training."""
        return of_trainings(self.aligned, self._claims.lanes)

    @cached_property
    def median_ns(self) -> float:
        """The median of the work of the steady units."""
        work = self.work[self.is_steady]
        return median_of(work) if len(work) else 0.0

    @cached_property
    def deviation_ns(self) -> float:
        """The robust deviation of the work of the steady units."""
        return deviation_of(self.work[self.is_steady])

    def baselines(self, units: np.ndarray) -> dict[str, float]:
        """Return the median time of each account over some units, given as a mask."""
        return {name: median_of(self.account(name)[units]) for name in self.accounts}

    def add_excess(
        self, bid: Bid, excess: np.ndarray, baselines: dict[str, float], *, is_host: bool = False
    ) -> None:
        """Add to a bid the excess of each unit over the baselines, in all lanes.

        `excess` is the maximum for each unit. A lane that has less excess than the others waits
        for them, so its waiting is added up to the same maximum.
        """
        units = excess > 0
        if not units.any():
            return
        for place, lane in enumerate(self.aligned.lanes):
            rest = excess.copy()
            present = [each for each in self.accounts if self._claims.has(lane, each)]
            over = {
                each: np.where(units, np.maximum(self.of_lane(place, each) - baselines[each], 0), 0)
                for each in present
            }
            for account in sorted(over, key=lambda each: -float(over[each].sum())):
                amounts = to_ns(np.minimum(over[account], rest))
                rest -= self.aligned.add(bid, place, account, amounts, is_host=is_host)
            if len(self.aligned.lanes) > 1 and self._claims.has(lane, WAITING):
                amounts = to_ns(np.where(units, rest, 0))
                self.aligned.add(bid, place, WAITING, amounts)


def lower_median(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return the lower median of several arrays, place by place."""
    if len(rows) == 1:
        return rows[0]
    middle = (len(rows) - 1) // 2
    median: np.ndarray = np.partition(np.stack(rows), middle, axis=0)[middle]
    return median
