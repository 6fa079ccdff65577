"""Moves time between the accounts of lanes: never more than an account has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ..accounts import OVERRIDING
from .ledger import Lane
from .outside import BETWEEN
from .unit_accounts import UNATTRIBUTED, WAITING

NOT_OF_PERIOD: Final = frozenset({"evaluation", "checkpoint", "logging", "other_scopes"})
"""The accounts that do not count in the period of a unit."""
_NOT_WARM_UP: Final = NOT_OF_PERIOD.union(OVERRIDING, ("input", "lost", "stalled", "warm_up"))
"""The accounts of which nothing is warm-up."""
_STALLED: Final = 10
"""A last unit that takes longer than so many medians has stalled."""
_WARM: Final = 1.25
"""The warm-up ends with the first unit that takes at most so many medians."""
_MOST_WARM_UP: Final = 10
_FEW: Final = 4
"""The minimum number of units for a median of their times to be used."""
_DIFFERENT: Final = 0.1
_CELLS: Final = 1_000_000
"""The maximum number of cells in a table of the units of all lanes."""
_TOGETHER: Final = 4
_Places: TypeAlias = slice | np.ndarray
_LITTLE: Final = 0.02
"""Forward passes end together if their ends differ so many times less than their beginnings, in
units in which these differ by more than this part of a cycle."""


def move(lanes: Sequence[Lane]) -> None:
    """Make the moves of all lanes."""
    for lane in lanes:
        if len(lane.start) and "busy" not in lane.accounts:
            _lost(lane)
            _stalled(lane)
            _tracing(lane)
            _warm_up(lane)
            _device(lane)
    _waiting([lane for lane in lanes if (lane.own >= 0).any()])
    for lane in lanes:
        fit_parts(lane)


def period_of(lane: Lane) -> np.ndarray:
    """Return the period of each unit, ns: its cycle without own scopes and evaluations."""
    period = np.zeros(len(lane.start), np.int64)
    for account, times in lane.accounts.items():
        if account not in NOT_OF_PERIOD:
            period += times
    return period


def _median(values: np.ndarray) -> float:
    """Return the median of integers; for few of them, much faster than NumPy's function."""
    high = len(values) // 2
    low = (len(values) - 1) // 2
    ordered = np.partition(values, (low, high))
    return (float(ordered[low]) + float(ordered[high])) / 2


def _account(lane: Lane, name: str) -> np.ndarray:
    found = lane.accounts.get(name)
    if found is None:
        found = lane.accounts[name] = np.zeros(len(lane.start), np.int64)
    return found


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
    period = period_of(lane)
    lasts = [place - 1 for place, _ in lane.restarts if 0 < place <= len(period)]
    for place in {*lasts, len(period) - 1}:
        median = _median(np.concatenate([period[:place], period[place + 1 :]]))
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
    _account(lane, target)[place] += moved


def _tracing(lane: Lane) -> None:
    """Move the time of tracing, of which only the sum is known, from the rest of all units."""
    if lane.overhead_ns <= 0:
        return
    rests = [lane.accounts[name] for name in (UNATTRIBUTED, BETWEEN) if name in lane.accounts]
    for times in rests:
        total = int(times.sum())
        moved = min(lane.overhead_ns, total)
        if moved > 0:
            # In floating point, whole parts are less than 1 ns off, and never more than is there.
            parts = np.minimum((times * (moved / total)).astype(np.int64), times)
            np.subtract(times, parts, out=times)
            _account(lane, "tracing")[:] += parts
            lane.overhead_ns -= int(parts.sum())


def _warm_up(lane: Lane) -> None:
    """Move the excess of the first units of each process, except for their input."""
    work = period_of(lane)
    for account in _NOT_WARM_UP & set(lane.accounts) - NOT_OF_PERIOD:
        work = work - lane.accounts[account]
    first_units = [0, *(place for place, _ in lane.restarts)]
    count = len(work)
    if count < _FEW:
        return
    median = _median(work)
    medians: dict[str, float] | None = None
    for first in first_units:
        some = work[first : first + max(_MOST_WARM_UP // lane.size, 1)]
        steady = np.flatnonzero(some <= _WARM * median)
        warm = int(steady[0]) if len(steady) else len(some)
        if not warm or first + warm >= count:
            continue
        if medians is None:
            medians = {name: _median(times) for name, times in lane.accounts.items()}
        for place in range(first, first + warm):
            _move_excess(lane, place, int(work[place] - median), medians)


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
    _account(lane, "warm_up")[place] += moved


def _device(lane: Lane) -> None:
    """Move the time in which the host waits for the device into the phases that lack it."""
    if not lane.lacking:
        return
    left = sum(lane.lacking.values(), np.zeros(len(lane.start), np.int64))
    moved = np.zeros(len(left), np.int64)
    for source in (UNATTRIBUTED, BETWEEN, "optimizer"):
        times = lane.accounts.get(source)
        if times is not None:
            taken = np.minimum(left - moved, times)
            times -= taken
            moved += taken
    for account, lacking in lane.lacking.items():
        given = np.minimum(moved, lacking)
        _account(lane, account)[:] += given
        moved -= given
        if account in WAITING:  # then ranks wait for each other on the device
            lane.waiting = lane.waiting + given
            lane.own = np.where(lane.own < 0, -1, np.maximum(lane.own - given, 0))
    # `moved` is at most the sum of what is lacking, so nothing is left.


def _waiting(lanes: Sequence[Lane]) -> None:
    """Move the time in which ranks wait for slower ones."""
    if len(lanes) < 2:
        return
    last = max(int(lane.number.max()) // lane.size for lane in lanes)
    at_once = max(_CELLS // len(lanes), 1)
    at_once = min(at_once, last + 1)
    chunks = list(range(0, last + 1, at_once))
    synchronised = _synchronised(lanes, chunks, at_once)
    some = [lane for lane, is_in in zip(lanes, synchronised, strict=True) if is_in]
    if len(some) < 2:
        return
    sources = ["communication", "backward"]
    if _waits_in_forward(some, chunks, at_once):
        sources.insert(1, "forward")
        for lane in some:
            lane.waiting = lane.waiting + lane.accounts["forward"]
            lane.own = np.where(
                lane.own < 0, -1, np.maximum(lane.own - lane.accounts["forward"], 0)
            )
    for chunk in _tables(some, chunks, at_once):
        _move_waiting(some, chunk, sources)


def _move_waiting(lanes: Sequence[Lane], chunk: _Chunk, sources: Sequence[str]) -> None:
    own, waiting = chunk.own, chunk.waiting
    is_known = own >= 0
    least = np.where(is_known, waiting, np.iinfo(np.int64).max).min(axis=0)
    most = own.max(axis=0)
    for row, (lane, (chosen, columns)) in enumerate(zip(lanes, chunk.places, strict=True)):
        wait = np.minimum(waiting[row, columns] - least[columns], most[columns] - own[row, columns])
        wait = np.where(is_known[row, columns], np.maximum(wait, 0), 0)
        for source in sources:
            times = lane.accounts.get(source)
            if times is not None:
                taken = np.minimum(wait, times[chosen])
                times[chosen] -= taken
                _account(lane, "waiting_for_ranks")[chosen] += taken
                wait = wait - taken


def _waits_in_forward(lanes: Sequence[Lane], chunks: list[int], at_once: int) -> bool:
    """Return whether ranks wait for each other in the forward pass, as with sharded weights.

    Their forward passes end together then, though they begin at different times: at least in the
    units in which one rank is slow.
    """
    if not all("forward" in lane.accounts for lane in lanes):
        return False
    begins, ends, cycles = [], [], []
    for chunk in _tables(lanes, chunks, at_once, has_forward=True):
        is_known = (chunk.forwarded >= 0).all(axis=0)
        if is_known.any():
            ends.append(np.ptp(chunk.forwarded[:, is_known], axis=0))
            begins.append(np.ptp((chunk.forwarded - chunk.forward)[:, is_known], axis=0))
            cycles.append((chunk.own + chunk.waiting)[:, is_known].mean(axis=0))
    if not ends:
        return False
    begin, end, cycle = (np.concatenate(each) for each in (begins, ends, cycles))
    differs = begin > _LITTLE * cycle
    if np.count_nonzero(differs) < max(_FEW, _LITTLE * len(begin)):
        return False
    return bool(np.median(end[differs] / begin[differs]) * _TOGETHER < 1)


def _synchronised(lanes: Sequence[Lane], chunks: list[int], at_once: int) -> np.ndarray:
    """Return whether the units of each lane take as long as those of the others, in most units."""
    different, total = np.zeros(len(lanes)), np.zeros(len(lanes))
    for chunk in _tables(lanes, chunks, at_once):
        is_known = chunk.own >= 0
        cycle = np.where(is_known, chunk.own + chunk.waiting, np.nan).astype(float)
        seen = is_known.sum(axis=0) > 1
        if not seen.any():
            continue
        middle = np.nanmedian(cycle[:, seen], axis=0)
        differs = np.abs(cycle[:, seen] - middle) > _DIFFERENT * middle
        different += (differs & is_known[:, seen]).sum(axis=1)
        total += is_known[:, seen].sum(axis=1)
    synchronised: np.ndarray = (total > 0) & (different * 2 <= total)
    return synchronised


class _Chunk(NamedTuple):
    """Some units of all lanes: tables with a row for each lane and a column for each unit."""

    own: np.ndarray
    """-1 if the time is unknown."""
    waiting: np.ndarray
    forwarded: np.ndarray
    """-1 if the time is unknown. Empty if it was not requested; so is `forward`."""
    forward: np.ndarray
    places: list[tuple[_Places, _Places]]
    """For each lane, the places of its units and their columns."""


def _tables(
    lanes: Sequence[Lane], chunks: list[int], at_once: int, *, has_forward: bool = False
) -> Iterator[_Chunk]:
    """Yield all units in chunks, by their numbers."""
    for first in chunks:
        shape = len(lanes), at_once
        chunk = _Chunk(
            np.full(shape, -1, np.int64), np.zeros(shape, np.int64),
            np.full(shape if has_forward else 0, -1, np.int64),
            np.zeros(shape if has_forward else 0, np.int64), [],
        )  # fmt: skip
        for row, lane in enumerate(lanes):
            chosen, columns = places = _places(lane, first, at_once)
            chunk.places.append(places)
            chunk.own[row, columns] = lane.own[chosen]
            chunk.waiting[row, columns] = lane.waiting[chosen]
            if has_forward:
                chunk.forwarded[row, columns] = lane.forwarded[chosen]
                chunk.forward[row, columns] = lane.accounts["forward"][chosen]
        yield chunk


def _places(lane: Lane, first: int, count: int) -> tuple[_Places, _Places]:
    """Return the places of a lane's units in a chunk, and their columns."""
    group = lane.number if lane.size == 1 else lane.number // lane.size
    if len(group) and group[-1] - group[0] == len(group) - 1 and not lane.is_lost.any():
        begin = int(group[0])
        if (group[1:] > group[:-1]).all():  # slices are faster
            low, high = max(begin, first), min(begin + len(group), first + count)
            high = max(high, low)
            return slice(low - begin, high - begin), slice(low - first, high - first)
    is_due = (group >= first) & (group < first + count) & ~lane.is_lost
    chosen = np.flatnonzero(is_due)
    return chosen, group[chosen] - first


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
