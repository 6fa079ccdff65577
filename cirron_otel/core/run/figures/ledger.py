"""The ledger of a run: the time of each lane by account, and unit by unit.

A lane is the time line of one rank. The cycle of a unit is the unit with the gap between it and
the unit ahead of it. All times are ns, as int64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np

_NOT_STEADY: Final = frozenset({"warm_up", "lost", "stalled"})
"""The accounts that are excesses over the time of usual units, or of units that are repeated."""


Places: TypeAlias = slice | np.ndarray
"""The places of some units in arrays of a lane, in order."""


def by_training(training: np.ndarray | None) -> list[Places]:
    """Return the places of the units of each training; `training` is that of a lane.

    The places of adjacent units are a slice, of which arrays are not copied.
    """
    if training is None or not len(training):
        return [slice(None)]
    order = np.argsort(training, kind="stable")
    firsts = np.flatnonzero(np.diff(training[order])) + 1
    return [
        slice(int(each[0]), int(each[-1]) + 1) if each[-1] - each[0] + 1 == len(each) else each
        for each in np.split(order, firsts)
    ]


class UsualBackward(NamedTuple):
    """The usual own work of a rank in the backward pass of a unit, ns."""

    ns: float
    error: float
    """Its standard error, but for the factor of a median."""


@dataclass(slots=True)
class Lane:
    """The units of a rank in order, and its time by account.

    All arrays have one entry for each unit. If there are too many units to keep them all, an entry
    is the sum of `size` units.
    """

    rank: int | None
    host: str | None
    """The host that recorded the last batch of the rank; None if it is unknown."""
    start: np.ndarray
    """The start of each unit, Unix ns."""
    ns: np.ndarray
    """The duration of each unit, from its start to its end."""
    number: np.ndarray
    """The number of each unit over the whole run, from 0; a repeated unit has the same number."""
    epoch: np.ndarray
    """The place of the unit's epoch among the epochs of the lane, from 0; -1 without an epoch."""
    accounts: dict[str, np.ndarray]
    """By account: its part of the cycle of each unit. No entry is negative."""
    waiting: np.ndarray
    """The time of each unit in the phases in which ranks wait for each other."""
    own: np.ndarray
    """The time from the end of the waiting phase of the unit ahead to the start of this unit's.
    -1 if there is none."""
    forwarded: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The time from the end of the waiting phase of the unit ahead to the end of this unit's
    forward pass. -1 if there is none."""
    thread: int | None = None
    """The number of the lane among those of the rank, from 1; None if the rank has one lane."""
    overhead_ns: int = 0
    """The time of tracing itself."""
    device: np.ndarray | None = None
    """The time on the device of each unit; None if none was measured."""
    outside: dict[str, int] = field(default_factory=dict)
    """By account: the time outside of all cycles: `start_up`, `shut_down`, `idle`, `ended`."""
    parts: dict[tuple[str, str], int] = field(default_factory=dict)
    """By account and recorded name: the total time. `unattributed` has the names of long gaps, such
    as `between data_load and forward`. Other accounts without scopes have no parts."""
    restarts: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """For each later process of the rank: the place of its first unit, and the time of
    `shut_down`, `idle`, `paused` and `start_up` ahead of it, which is also in `outside`."""
    is_lost: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """Whether a later process of the rank repeats the unit."""
    lacking: dict[str, np.ndarray] = field(default_factory=dict)
    """By account: the time on the device beyond that on the host, of phases that have both."""
    ahead: np.ndarray | None = None
    """The part of `unattributed` ahead of the first phase of each unit with a time on the device;
    None without such phases, and after the moves."""
    counts: dict[str, np.ndarray] = field(default_factory=dict)
    """By account of evaluations, checkpoints, logging and the like: the number of scopes in the
    cycle of each unit."""
    usual_backward: UsualBackward | None = None
    """The usual own work of the rank in the last backward pass of a unit, which is then not part of
    `waiting`; None if it is unknown."""
    size: int = 1
    """The number of units in each entry."""
    training: np.ndarray | None = None
    """The number of each unit's training within its process; None if it is 0 for all units."""

    def trainings(self) -> Iterator[tuple[int, Places]]:
        """Yield the numbers of the trainings with the places of their units, in order."""
        for places in by_training(self.training) if len(self.start) else ():
            yield 0 if self.training is None else int(self.training[places][0]), places

    def begins(self) -> np.ndarray:
        """Return whether each unit is of another training than the unit ahead of it."""
        return self._compared(np.not_equal)

    def rises(self) -> np.ndarray:
        """Return whether the number of the training rises from the unit ahead to each unit.

        In a process, the time between such units is `idle`. If the number falls, trainings run in
        turn, and the time is `between_units`.
        """
        return self._compared(np.greater)

    def _compared(self, compare: np.ufunc) -> np.ndarray:
        compared = np.zeros(len(self.start), bool)
        if self.training is not None:
            compare(self.training[1:], self.training[:-1], out=compared[1:])
        return compared

    @property
    def units_per_second(self) -> float | None:
        """The number of units that no later process repeats, divided by their time.

        The time includes evaluations, checkpoints and the time between units, but not the excess
        of the warm-up and of a last unit that stalled. None if there is no time.
        """
        if "busy" in self.accounts:  # units that overlap
            ns = int((self.start + self.ns).max()) - int(self.start[0])
        else:
            steady = (times for name, times in self.accounts.items() if name not in _NOT_STEADY)
            ns = sum(int(times.sum()) for times in steady)
        count = (len(self.start) - int(self.is_lost.sum())) * self.size
        return count * 1e9 / ns if ns > 0 else None

    def account(self, name: str) -> np.ndarray:
        """Return the times of an account, which is added if the lane has none."""
        found = self.accounts.get(name)
        if found is None:
            found = self.accounts[name] = np.zeros(len(self.start), np.int64)
        return found

    @property
    def totals(self) -> dict[str, int]:
        """The total time by account."""
        totals = dict(self.outside)
        if self.accounts:
            sums = np.array([*self.accounts.values()]).sum(axis=1).tolist()
            for account, ns in zip(self.accounts, sums, strict=True):
                totals[account] = totals.get(account, 0) + ns
        return {account: ns for account, ns in totals.items() if ns}


@dataclass(slots=True)
class Ledger:
    """The time of all lanes by account."""

    first_ns: int
    last_ns: int
    """The extent of the run: the first start and the last end of any rank, Unix ns."""
    lanes: list[Lane]
    """In order of rank; a lane without a rank comes first."""
    epochs: list[str]
    """The number of each epoch, as recorded, by its place."""

    @property
    def trainings(self) -> list[int]:
        """The numbers of the trainings within their processes, in order."""
        return sorted({number for lane in self.lanes for number, _ in lane.trainings()})

    @property
    def total_ns(self) -> int:
        """The number of lanes times the extent."""
        return len(self.lanes) * (self.last_ns - self.first_ns)

    @property
    def totals(self) -> Mapping[str, int]:
        """The total time by account, over all lanes."""
        totals: dict[str, int] = {}
        for lane in self.lanes:
            for account, ns in lane.totals.items():
                totals[account] = totals.get(account, 0) + ns
        return totals
