"""Moves the time in which ranks wait for slower ones into an account of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from .ledger import Lane

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


def move_waiting(lanes: Sequence[Lane]) -> None:
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
    if _waits_only_in_collectives(some, chunks, at_once):
        sources.remove("backward")
    if _waits_in_forward(some, chunks, at_once):
        sources.insert(1, "forward")
        for lane in some:
            _set_waiting(lane, lane.waiting + lane.accounts["forward"])
    for chunk in _tables(some, chunks, at_once):
        _move_waiting(some, chunk, sources)


def _set_waiting(lane: Lane, waiting: np.ndarray) -> None:
    """Set the time in waiting phases; the rest of the cycle is the lane's own work."""
    own = np.maximum(lane.own + lane.waiting - waiting, 0)
    lane.own, lane.waiting = np.where(lane.own < 0, -1, own), waiting


def _waits_only_in_collectives(lanes: Sequence[Lane], chunks: list[int], at_once: int) -> bool:
    """Return whether ranks wait in collectives in scopes of their own, and not in backward passes.

    The phases in which they wait are those that explain more waiting. If these are the collectives,
    the times of the lanes are changed accordingly.
    """
    if not all("communication" in lane.accounts for lane in lanes):
        return False
    before = [(lane.own, lane.waiting) for lane in lanes]
    of_both = _total_wait(lanes, chunks, at_once)
    for lane in lanes:
        _set_waiting(lane, lane.accounts["communication"])
    if _total_wait(lanes, chunks, at_once) > of_both:
        return True
    for lane, (own, waiting) in zip(lanes, before, strict=True):
        lane.own, lane.waiting = own, waiting
    return False


def _total_wait(lanes: Sequence[Lane], chunks: list[int], at_once: int) -> int:
    tables = _tables(lanes, chunks, at_once)
    return sum(int(_waits(each.own, each.waiting).sum()) for each in tables)


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
