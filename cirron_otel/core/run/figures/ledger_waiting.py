"""Moves the time in which ranks wait for slower ones into an account of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from .ddp_times import usual_backward
from .ledger import Lane
from .medians import median_of
from .timed_marks import TimedValues

_FEW: Final = 4
"""The minimum number of units for a rule to hold."""
_DIFFERENT: Final = 0.1
_CELLS: Final = 1_000_000
"""The maximum number of cells in a table of the units of all lanes."""
_TOGETHER: Final = 4
_LITTLE: Final = 0.02
"""Forward passes end together if their ends differ so many times less than their beginnings, in
units in which these differ by more than this part of a cycle."""
_Places: TypeAlias = slice | np.ndarray


def move_waiting(lanes: Sequence[Lane], measured: Mapping[int | None, TimedValues]) -> None:
    """Move the time in which ranks wait for slower ones.

    `measured` has DDP's own measurements by rank.
    """
    if len(lanes) < 2:
        return
    units = _Units(lanes)
    synchronised = _synchronised(units)
    if synchronised.sum() < 2:
        return
    if not synchronised.all():
        units = _Units([lanes[place] for place in np.flatnonzero(synchronised).tolist()])
    _set_usual_backward(units.lanes, measured)
    sources = ["communication", "backward"]
    if _waits_only_in_collectives(units):
        sources.remove("backward")
    if _waits_in_forward(units):
        sources.insert(1, "forward")
        for lane in units.lanes:
            _set_waiting(lane, lane.waiting + lane.accounts["forward"])
    for chunk in units.tables():
        _move_waiting(units.lanes, chunk, sources)


def _set_usual_backward(lanes: Sequence[Lane], measured: Mapping[int | None, TimedValues]) -> None:
    """Move the ranks' own work in backward passes to their cycles, if that of all is known."""
    usual = [usual_backward(lane, measured.get(lane.rank)) for lane in lanes]
    known = [each for each in usual if each is not None]
    if len(known) < len(lanes):
        return
    for lane, each in zip(lanes, known, strict=True):
        lane.usual_backward = each
        _set_waiting(lane, np.maximum(lane.waiting - round(each.ns * lane.size), 0))


def _set_waiting(lane: Lane, waiting: np.ndarray) -> None:
    """Set the time in waiting phases; the rest of the cycle is the lane's own work."""
    own = np.maximum(lane.own + lane.waiting - waiting, 0)
    lane.own, lane.waiting = np.where(lane.own < 0, -1, own), waiting


def _waits_only_in_collectives(units: _Units) -> bool:
    """Return whether ranks wait in collectives in scopes of their own, and not in backward passes.

    The phases in which they wait are those that explain more waiting. If these are the collectives,
    the times of the lanes are changed accordingly.
    """
    lanes = units.lanes
    if not all("communication" in lane.accounts for lane in lanes):
        return False
    before = [(lane.own, lane.waiting) for lane in lanes]
    of_both = _total_wait(units)
    for lane in lanes:
        _set_waiting(lane, lane.accounts["communication"])
    if _total_wait(units) > of_both:
        return True
    for lane, (own, waiting) in zip(lanes, before, strict=True):
        lane.own, lane.waiting = own, waiting
    return False


def _total_wait(units: _Units) -> int:
    return sum(int(_waits(each.own, each.waiting).sum()) for each in units.tables())


def _waits(own: np.ndarray, waiting: np.ndarray) -> np.ndarray:
    """Return the time that each lane waits in each unit; `own` is -1 if it is unknown."""
    is_known = own >= 0
    least = np.where(is_known, waiting, np.iinfo(np.int64).max).min(axis=0)
    wait = np.minimum(waiting - least, own.max(axis=0) - own)
    found: np.ndarray = np.where(is_known, np.maximum(wait, 0), 0)
    return found


def _move_waiting(lanes: Sequence[Lane], chunk: _Chunk, sources: Sequence[str]) -> None:
    waits = _waits(chunk.own, chunk.waiting)
    for row, (lane, (chosen, columns)) in enumerate(zip(lanes, chunk.places, strict=True)):
        wait = waits[row, columns]
        for source in sources:
            times = lane.accounts.get(source)
            if times is not None:
                taken = np.minimum(wait, times[chosen])
                times[chosen] -= taken
                lane.account("waiting_for_ranks")[chosen] += taken
                wait = wait - taken


def _waits_in_forward(units: _Units) -> bool:
    """Return whether ranks wait for each other in the forward pass, as with sharded weights.

    Their forward passes end together then, though they begin at different times: at least in the
    units in which one rank is slow.
    """
    if not all("forward" in lane.accounts for lane in units.lanes):
        return False
    begins, ends, cycles = [], [], []
    for chunk in units.tables(has_forward=True):
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
    return bool(median_of(end[differs] / begin[differs]) * _TOGETHER < 1)


def _synchronised(units: _Units) -> np.ndarray:
    """Return whether the units of each lane take as long as those of the others, in most units."""
    different, total = np.zeros((2, len(units.lanes)))
    for chunk in units.tables():
        is_known = chunk.own >= 0
        cycle = np.where(is_known, chunk.own + chunk.waiting, np.nan).astype(float)
        seen = is_known.sum(axis=0) > 1
        if not seen.any():
            continue
        cycle, is_known = cycle[:, seen], is_known[:, seen]
        middle = _middle(cycle, is_known.sum(axis=0))
        differs = np.abs(cycle - middle) > _DIFFERENT * middle
        different += (differs & is_known).sum(axis=1)
        total += is_known.sum(axis=1)
    synchronised: np.ndarray = (total > 0) & (different * 2 <= total)
    return synchronised


def _middle(cycle: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the median of each column without its NaNs; `counts` is the number of the others."""
    ordered, columns = np.sort(cycle, axis=0), np.arange(len(counts))  # NaNs come last
    low, high = ((counts - 1 + offset) // 2 for offset in (0, 1))
    middle: np.ndarray = (ordered[low, columns] + ordered[high, columns]) / 2
    return middle


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


class _Units:
    """The units of some lanes in chunks, by their numbers."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self._count = max(int(lane.number.max()) // lane.size for lane in lanes) + 1
        self._at_once = min(max(_CELLS // len(lanes), 1), self._count)
        self._rows = [_row(lane) for lane in lanes]

    def tables(self, *, has_forward: bool = False) -> Iterator[_Chunk]:
        """Yield all units."""
        for first in range(0, self._count, self._at_once):
            shape = len(self.lanes), self._at_once
            chunk = _Chunk(
                np.full(shape, -1, np.int64), np.zeros(shape, np.int64),
                np.full(shape if has_forward else 0, -1, np.int64),
                np.zeros(shape if has_forward else 0, np.int64), [],
            )  # fmt: skip
            for number, (lane, row) in enumerate(zip(self.lanes, self._rows, strict=True)):
                chosen, columns = places = _places(row, first, self._at_once)
                chunk.places.append(places)
                chunk.own[number, columns] = lane.own[chosen]
                chunk.waiting[number, columns] = lane.waiting[chosen]
                if has_forward:
                    chunk.forwarded[number, columns] = lane.forwarded[chosen]
                    chunk.forward[number, columns] = lane.accounts["forward"][chosen]
            yield chunk


def _row(lane: Lane) -> range | np.ndarray:
    """Return the number of each entry of a lane, joined like its entries; -1 for a lost one.

    It is a range if the lane has all numbers in order.
    """
    group = lane.number if lane.size == 1 else lane.number // lane.size
    if lane.is_lost.any():
        return np.where(lane.is_lost, -1, group)
    if len(group) and (group[1:] - group[:-1] == 1).all():
        return range(int(group[0]), int(group[-1]) + 1)
    return group


def _places(row: range | np.ndarray, first: int, count: int) -> tuple[_Places, _Places]:
    """Return the places of a lane's units in a chunk, and their columns."""
    if isinstance(row, range):  # slices are faster
        low, high = max(row.start, first), min(row.stop, first + count)
        high = max(high, low)
        return slice(low - row.start, high - row.start), slice(low - first, high - first)
    chosen = np.flatnonzero((row >= first) & (row < first + count))
    return chosen, row[chosen] - first
