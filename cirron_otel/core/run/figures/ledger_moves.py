"""Moves time between the accounts of lanes: never more than an account has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from ..accounts import OVERRIDING, PHASES
from .durations import to_ns
from .ledger import Lane, by_training
from .ledger_waiting import move_waiting
from .medians import median_of
from .outside import BETWEEN
from .timed_marks import TimedValues
from .unit_accounts import UNATTRIBUTED, WAITING

NOT_OF_PERIOD: Final = frozenset({"evaluation", "checkpoint", "logging", "other_scopes"})
"""The accounts that do not count in the period of a unit."""
_NOT_WARM_UP: Final = NOT_OF_PERIOD.union(OVERRIDING, ("input", "lost", "stalled", "warm_up"))
"""The accounts of which nothing is warm-up."""
_TRACED: Final = tuple(dict.fromkeys((*PHASES.values(), "other_scopes")))
"""The accounts of phases and own scopes, which hooks surround."""
_STALLED: Final = 10
"""A last unit that takes longer than so many medians has stalled."""
_WARM: Final = 1.25
"""The warm-up ends with the first unit that takes at most so many medians."""
_MOST_WARM_UP: Final = 10
_FEW: Final = 4
"""The minimum number of units for a median of their times to be used."""


def move(lanes: Sequence[Lane], measured: Mapping[int | None, TimedValues]) -> None:
    """Make the moves of all lanes; `measured` has DDP's own measurements by rank."""
    for lane in lanes:
        if len(lane.start) and "busy" not in lane.accounts:
            _lost(lane)
            _stalled(lane)
            _tracing(lane)
            _warm_up(lane)
            _device(lane)
    # The trainings of several threads do not wait for each other.
    alone = [lane for lane in lanes if lane.thread is None and (lane.own >= 0).any()]
    move_waiting(alone, measured)
    for lane in lanes:
        fit_parts(lane)


def period_of(lane: Lane) -> np.ndarray:
    """Return the period of each unit, ns: its cycle without own scopes and evaluations."""
    period = np.zeros(len(lane.start), np.int64)
    for account, times in lane.accounts.items():
        if account not in NOT_OF_PERIOD:
            period += times
    return period


def _lost(lane: Lane) -> None:
    if not lane.is_lost.any():
        return
    lost = np.zeros(len(lane.start), np.int64)
    for times in lane.accounts.values():
        lost += np.where(lane.is_lost, times, 0)
        times[lane.is_lost] = 0
    lane.accounts["lost"] = lost


def _stalled(lane: Lane) -> None:
    """Move the excess of the last unit of each process."""
    if lane.size > 1 or len(lane.start) < _FEW + 1:
        return
    period, done = period_of(lane), ~lane.is_lost
    lasts = [place - 1 for place, _ in lane.restarts if 0 < place <= len(period)]
    for place in {*lasts, len(period) - 1}:
        others = done.copy()
        if lane.training is not None:
            others &= lane.training == lane.training[place]
        others[place] = False
        if not others.any() or (lane.training is not None and others.sum() < _FEW):
            continue
        median = median_of(period[others])
        excess = int(period[place] - median)
        if period[place] > _STALLED * median > 0:
            _take_at(lane, "stalled", place, excess, NOT_OF_PERIOD | {"lost"})


def _take_at(lane: Lane, target: str, place: int, amount: int, spared: Iterable[str]) -> None:
    """Move an amount of one unit, from its largest accounts first."""
    names = sorted(
        (name for name in lane.accounts if name not in spared),
        key=lambda name: (-int(lane.accounts[name][place]), name),
    )
    moved = 0
    for name in names:
        taken = min(amount - moved, int(lane.accounts[name][place]))
        lane.accounts[name][place] -= taken
        moved += taken
    lane.account(target)[place] += moved


def _tracing(lane: Lane) -> None:
    """Move the time of tracing, of which only the sum is known.

    It is taken from the rest of all units, then from the time between them, and then from phases,
    in which flushes stop the training thread and hooks slow it down.
    """
    for names in ((UNATTRIBUTED,), (BETWEEN,), _TRACED):
        sources = [lane.accounts[name] for name in names if name in lane.accounts]
        total = sum(int(times.sum()) for times in sources)
        moved = min(lane.overhead_ns, total)
        if moved <= 0:
            continue
        for times in sources:
            # In floating point, whole parts are less than 1 ns off, and never more than is there.
            parts = np.minimum(to_ns(times * (moved / total)), times)
            np.subtract(times, parts, out=times)
            lane.account("tracing")[:] += parts
            lane.overhead_ns -= int(parts.sum())


def _warm_up(lane: Lane) -> None:
    """Move the excess of the first units of each training in a process, except for their input."""
    every = period_of(lane)
    for account in _NOT_WARM_UP & set(lane.accounts) - NOT_OF_PERIOD:
        every = every - lane.accounts[account]
    restarts = [place for place, _ in lane.restarts]
    places = np.arange(len(every))
    for of_training in by_training(lane.training):
        at = places[of_training]
        work, done = every[at], at[~lane.is_lost[at]]
        if len(done) < _FEW:
            continue
        median = median_of(every[done])
        medians: dict[str, float] | None = None
        for first in sorted({0, *np.searchsorted(at, restarts).tolist()}):
            some = work[first : first + max(_MOST_WARM_UP // lane.size, 1)]
            steady = np.flatnonzero(some <= _WARM * median)
            warm = int(steady[0]) if len(steady) else len(some)
            if not warm or first + warm >= len(work):
                continue
            if medians is None:
                medians = {name: median_of(times[done]) for name, times in lane.accounts.items()}
            for place in range(first, first + warm):
                _move_excess(lane, int(at[place]), int(work[place] - median), medians)


def _move_excess(lane: Lane, place: int, limit: int, medians: dict[str, float]) -> None:
    excesses = {
        name: max(int(times[place] - medians[name]), 0)
        for name, times in lane.accounts.items()
        if name not in _NOT_WARM_UP and name in medians
    }
    total, moved = sum(excesses.values()), 0
    if total <= 0 or limit <= 0:
        return
    for name, excess in excesses.items():
        taken = min(excess, excess * min(limit, total) // total)
        lane.accounts[name][place] -= taken
        moved += taken
    lane.account("warm_up")[place] += moved


def _device(lane: Lane) -> None:
    """Move the time in which the host waits for the device into the phases that lack it."""
    if not lane.lacking:
        return
    left = sum(lane.lacking.values(), np.zeros(len(lane.start), np.int64))
    moved = np.zeros(len(left), np.int64)
    ahead = np.zeros(len(left), np.int64) if lane.ahead is None else lane.ahead
    # Ahead of its first launch, the host seldom waits for the device.
    for source, spared in (
        (UNATTRIBUTED, ahead),
        (BETWEEN, 0),
        ("optimizer", 0),
        (UNATTRIBUTED, 0),
    ):
        times = lane.accounts.get(source)
        if times is not None:
            taken = np.minimum(left - moved, np.maximum(times - spared, 0))
            times -= taken
            moved += taken
    for account, lacking in sorted(lane.lacking.items()):
        given = np.minimum(moved, lacking)
        lane.account(account)[:] += given
        moved -= given
        if account in WAITING:  # then ranks wait for each other on the device
            lane.waiting = lane.waiting + given
            lane.own = np.where(lane.own < 0, -1, np.maximum(lane.own - given, 0))
    # `moved` is at most the sum of what is lacking, so nothing is left.
    lane.ahead = None


def fit_parts(lane: Lane) -> None:
    """Reduce the parts of accounts from which time was moved, so that none exceeds its account."""
    if not lane.parts:
        return
    totals = lane.totals
    sums: dict[str, int] = {}
    for (account, _), ns in lane.parts.items():
        sums[account] = sums.get(account, 0) + ns
    for (account, name), ns in list(lane.parts.items()):
        if sums[account] > totals.get(account, 0):
            fitted = ns * totals.get(account, 0) // sums[account]
            lane.parts[account, name] = fitted
            if not fitted:
                del lane.parts[account, name]
