"""Claims on the time of a ledger: no nanosecond is claimed twice."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from ..figures.durations import to_ns
from ..figures.ledger import Ledger, Places, by_training

_BLOCKS: Final = 5
_T: Final = (1.2816, 0.8467, 0.5709, 0.2586)
"""The 90th percentile of Student's t distribution, as a series in 1 / degrees of freedom."""
_RELATED: Final = 3
"""Units are related to their neighbours if blocks of them vary so many times more, as variances.
Of unrelated units, five blocks do in one run of twenty."""


@functools.lru_cache(maxsize=64)
def _block_starts(count: int) -> np.ndarray:
    """Return the first places of equal blocks of units."""
    starts: np.ndarray = np.linspace(0, count, _BLOCKS + 1).astype(np.int64)[:-1]
    return starts


class Claims:
    """The part of each lane's accounts that no finding has claimed, ns."""

    def __init__(self, ledger: Ledger) -> None:
        """Start without claims."""
        self.lanes = ledger.lanes
        self._left: dict[tuple[int, str], np.ndarray] = {}
        self._outside: dict[tuple[int, str], int] = {}
        self._free: dict[int, np.ndarray] = {}
        self._divisions: list[list[Places]] = []
        self._of_trainings: dict[tuple[int, bytes], int] = {}
        self._of_lanes: dict[int, int] = {}

    def division(self, lane: int) -> int:
        """Return the number of a lane's division; lanes with the same trainings have the same."""
        if lane not in self._of_lanes:
            training = self.lanes[lane].training
            key = len(self.lanes[lane].ns), b"" if training is None else training.tobytes()
            if key not in self._of_trainings:
                self._of_trainings[key] = len(self._divisions)
                self._divisions.append(by_training(training))
            self._of_lanes[lane] = self._of_trainings[key]
        return self._of_lanes[lane]

    def trainings(self, division: int) -> list[Places]:
        """Return the places of the units of each training."""
        return self._divisions[division]

    def left(self, lane: int, account: str) -> np.ndarray:
        """Return the unclaimed time of an account in each unit of a lane. Do not change it."""
        left = self._left.get((lane, account))
        if left is None:
            left = self.lanes[lane].accounts.get(account)
        return np.zeros(len(self.lanes[lane].ns), np.int64) if left is None else left

    def has(self, lane: int, account: str) -> bool:
        """Return whether a lane has the account in some unit."""
        return account in self.lanes[lane].accounts

    def left_outside(self, lane: int, account: str) -> int:
        """Return the unclaimed time of an account outside of the cycles of a lane."""
        left = self._outside.get((lane, account))
        return self.lanes[lane].outside.get(account, 0) if left is None else left

    def left_total(self, account: str) -> int:
        """Return the unclaimed time of an account over all lanes."""
        return sum(
            int(self.left(lane, account).sum()) + self.left_outside(lane, account)
            for lane in range(len(self.lanes))
        )

    def free(self, lane: int) -> np.ndarray | None:
        """Return the time of each unit in which the device does not work; None if it is unknown.

        Time that the host loses while the device works is not lost for the run.
        """
        free, of_lane = self._free.get(lane), self.lanes[lane]
        if free is None and of_lane.device is not None:
            cycle = sum(of_lane.accounts.values(), np.zeros(len(of_lane.ns), np.int64))
            free = self._free[lane] = np.maximum(cycle - np.maximum(of_lane.device, 0), 0)
        return free

    def bid(self) -> Bid:
        """Return a bid on the unclaimed time."""
        return Bid(self)

    def _accept(
        self,
        left: dict[tuple[int, str], np.ndarray],
        outside: dict[tuple[int, str], int],
        free: dict[int, np.ndarray],
    ) -> None:
        self._left.update(left)
        self._outside.update(outside)
        self._free.update(free)


class Bid:
    """Amounts that a finding will claim if it is a warning or more.

    A bid takes nothing from the claims until `commit`. It never exceeds the unclaimed time.
    """

    def __init__(self, claims: Claims) -> None:
        """Start without amounts."""
        self._claims = claims
        self._left: dict[tuple[int, str], np.ndarray] = {}
        self._outside: dict[tuple[int, str], int] = {}
        self._free: dict[int, np.ndarray] = {}
        self._units: dict[int, np.ndarray] = {}
        """The amounts by unit, over all lanes with the same division into trainings."""
        self._outside_ns = 0
        self.total_ns = 0
        self.by_account: dict[str, int] = {}
        """The amounts by account, over all lanes."""
        self.by_lane: dict[int, int] = {}
        """The amounts by lane, over all accounts."""

    def left(self, lane: int, account: str) -> np.ndarray:
        """Return the time that neither a finding nor this bid has claimed, unit by unit."""
        left = self._left.get((lane, account))
        return self._claims.left(lane, account) if left is None else left

    def add(
        self, lane: int, account: str, amounts: np.ndarray | int | None, *,
        places: Places | None = None, is_host: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Add an amount for each unit, at most the unclaimed time; return what was added.

        `amounts` None is all that is left. `places` are the units of the amounts, by default all.
        With `is_host`, at most the time in which the device does not work is added.
        """
        some = slice(None) if places is None else places
        if (lane, account) not in self._left:
            self._left[lane, account] = self._claims.left(lane, account).copy()
        left = self._left[lane, account]
        if amounts is None:
            taken = left[some].copy()
        else:
            taken = np.minimum(to_ns(np.asarray(amounts)), left[some])
            taken = np.maximum(taken, 0, out=taken)
        if is_host:
            if lane not in self._free and (free := self._claims.free(lane)) is not None:
                self._free[lane] = free.copy()
            if lane in self._free:
                taken = np.minimum(taken, self._free[lane][some])
                self._free[lane][some] -= taken
        left[some] -= taken
        self._count(lane, account, int(taken.sum()))
        division = self._claims.division(lane)
        if division not in self._units:
            self._units[division] = np.zeros(len(left))
        self._units[division][some] += taken
        return taken

    def add_outside(self, lane: int, account: str, amount: int | None = None) -> int:
        """Add time outside of the cycles, at most the unclaimed time; None is all that is left."""
        left = self._outside.get((lane, account), self._claims.left_outside(lane, account))
        taken = left if amount is None else min(max(amount, 0), left)
        self._outside[lane, account] = left - taken
        self._outside_ns += taken
        self._count(lane, account, taken)
        return taken

    def add_all(self, account: str, *, is_host: bool = False) -> None:
        """Add all unclaimed time of an account in all lanes."""
        for lane in range(len(self._claims.lanes)):
            if self._claims.has(lane, account):
                self.add(lane, account, None, is_host=is_host)
            if self._claims.left_outside(lane, account):
                self.add_outside(lane, account)

    def _count(self, lane: int, account: str, total: int) -> None:
        self.total_ns += total
        if total:
            self.by_account[account] = self.by_account.get(account, 0) + total
            self.by_lane[lane] = self.by_lane.get(lane, 0) + total

    @property
    def low_ns(self) -> float:
        """A lower bound of the total if the units are a sample of many such units, ns.

        It is the mean less the 90th percentile of its error: by the variance of units, or, if units
        are related to their neighbours, by that of five equal blocks of them. The first unit is
        left out: it has neither a gap nor a known wait ahead of it, and often the start of the
        input. Each training is a sample of its own.
        """
        low, free, by_unit, blocks = 0.0, 0, 0.0, np.zeros(_BLOCKS)
        samples, exact = self._samples()
        for times in samples:
            sample = times[1:] * (len(times) / (len(times) - 1))
            low += float(sample.sum())
            by_unit += len(sample) * float(sample.var(ddof=1))
            blocks += np.add.reduceat(sample, _block_starts(len(sample)))
            free += len(sample) - 1
        variance = _BLOCKS * float(blocks.var(ddof=1))
        if variance <= _RELATED * by_unit:
            variance = by_unit
        else:
            free = _BLOCKS - 1
        percentile = sum(part / max(free, 1) ** power for power, part in enumerate(_T))
        low = max(low - percentile * variance**0.5, 0.0) + exact
        return min(float(low), float(self.total_ns))

    def _samples(self) -> tuple[list[np.ndarray], float]:
        """Return the amounts by unit of each training, and those of no sample, ns.

        The amounts are those of all lanes with as many units of the training. A few units are no
        sample.
        """
        samples: dict[tuple[int, ...], np.ndarray] = {}
        exact = float(self._outside_ns)
        for division, amounts in self._units.items():
            for number, places in enumerate(self._claims.trainings(division)):
                some = amounts[places]
                key = number, len(some), len(amounts)
                if len(some) <= _BLOCKS:
                    exact += float(some.sum())
                else:
                    samples[key] = samples[key] + some if key in samples else some
        return list(samples.values()), exact

    def commit(self) -> None:
        """Claim the amounts."""
        self._claims._accept(self._left, self._outside, self._free)
        self._left, self._outside, self._free = {}, {}, {}
