"""Computes the ledger of a run: a fold over units and their parts, by rank and start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..load.lanes import RankSums
from ..relations import ABSENT, Block, Texts, known
from .by_rank import by_rank, sorted_by_rank
from .ledger import Lane, Ledger
from .ledger_moves import move
from .outside import OutsideScopes, busy_and_idle, fill_gaps
from .unit_accounts import UNATTRIBUTED, AccountsOfUnits
from .unit_numbers import UnitNumbers

MOST_CELLS: Final = 12_000_000
"""The maximum number of numbers that are kept for all units; above it, entries are joined."""
_OVERLAP: Final = 1000
"""A lane is of overlapping units if more than one in so many overlaps the next one."""


@dataclass(slots=True)
class _Pieces:
    """The units of a lane so far, block by block."""

    start: list[np.ndarray] = field(default_factory=list)
    ns: list[np.ndarray] = field(default_factory=list)
    key: list[np.ndarray] = field(default_factory=list)
    process: list[np.ndarray] = field(default_factory=list)
    waiting: list[np.ndarray] = field(default_factory=list)
    waited: list[np.ndarray] = field(default_factory=list)
    device: list[np.ndarray] = field(default_factory=list)
    accounts: list[dict[str, np.ndarray]] = field(default_factory=list)
    lacking: list[dict[str, np.ndarray]] = field(default_factory=list)
    parts: dict[tuple[str, str], int] = field(default_factory=dict)


class LedgerFold:
    """The ledger of the units that are added. Units come by rank and start."""

    def __init__(
        self,
        texts: Texts,
        sums: Mapping[int | None, RankSums],
        outside: OutsideScopes,
        epoch_of: Callable[[int], str | None],
        chosen: Mapping[str, str] | None = None,
    ) -> None:
        """`sums` are those over all spans of each rank.

        `epoch_of` returns the number of the epoch of units by the token of their parent. `chosen`
        has the accounts of names that a user has chosen.
        """
        self._texts, self._sums, self._outside = texts, sums, outside
        self._accounts = AccountsOfUnits(texts, chosen)
        self._numbers = UnitNumbers(texts, epoch_of)
        self._rank: int | None = None
        self._pieces = _Pieces()
        self._lanes: list[Lane] = []
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._size, self._cells = 1, 0

    def add(self, units: Block, parts: Block) -> None:
        """Add units, and the parts of all of them in the same order."""
        units, parts = sorted_by_rank(units, parts)
        found = self._accounts.of(units, parts)
        keys = self._numbers.keys(units)
        for rank, place in by_rank(units):
            if rank != self._rank:
                self._close()
                self._rank = rank
            pieces = self._pieces
            pieces.start.append(units["start_ns"][place])
            pieces.ns.append(units["ns"][place])
            pieces.process.append(units["pid"][place])
            pieces.key.append(keys[place])
            pieces.waiting.append(found.waiting[place])
            pieces.waited.append(found.waited[place])
            pieces.device.append(found.device[place])
            pieces.accounts.append({name: ns[place] for name, ns in found.accounts.items()})
            pieces.lacking.append({name: ns[place] for name, ns in found.lacking.items()})
            for (account, token), ns in found.names.items():
                key = account, self._texts.text(token) or "?"
                pieces.parts[key] = pieces.parts.get(key, 0) + int(ns[place].sum())

    def finish(self) -> Ledger | None:
        """Return the ledger; None if there are no units."""
        self._close()
        if not self._lanes:
            return None
        trained = {lane.rank for lane in self._lanes}
        for rank, sums in self._sums.items():
            if rank is not None and rank not in trained and None not in trained:
                self._add_empty(rank, sums)
        self._lanes.sort(key=lambda lane: (lane.rank is not None, lane.rank or 0))
        first, last = self._first_ns or 0, self._last_ns or 0
        for lane in self._lanes:
            sums = self._sums[lane.rank]
            own_first = first if sums.first_ns is None else sums.first_ns
            own_last = last if sums.last_ns is None else max(sums.last_ns, own_first)
            _add(lane.outside, "start_up", own_first - first)
            _add(lane.outside, "ended", last - own_last)
        move(self._lanes)
        return Ledger(first, last, self._lanes, self._numbers.epochs)

    def _add_empty(self, rank: int, sums: RankSums) -> None:
        """Add a lane without units."""
        nothing = np.zeros(0, np.int64)
        lane = Lane(rank, None, nothing, nothing, nothing, nothing, {}, nothing, nothing)
        lane.size = self._size
        self._extend(sums)
        if sums.first_ns is not None and sums.last_ns is not None:
            _add(lane.outside, "start_up", sums.last_ns - sums.first_ns)
        self._lanes.append(lane)

    def _extend(self, sums: RankSums) -> None:
        times = [t for t in (self._first_ns, sums.first_ns) if t is not None]
        self._first_ns = min(times, default=None)
        times = [t for t in (self._last_ns, sums.last_ns) if t is not None]
        self._last_ns = max(times, default=None)

    def _close(self) -> None:
        """Make the lane of a rank once all of its units were added."""
        if self._rank is None:
            return
        rank, pieces, self._pieces = known(self._rank), self._pieces, _Pieces()
        self._rank = None
        start, ns, process, key, waiting, waited, device = (
            _joined(column)
            for column in (
                pieces.start, pieces.ns, pieces.process, pieces.key, pieces.waiting, pieces.waited,
                pieces.device,
            )
        )  # fmt: skip
        sums = self._sums[rank]
        self._extend(sums)
        accounts = _by_account(pieces.accounts, pieces.start)
        first = int(start[0]) if sums.first_ns is None else min(sums.first_ns, int(start[0]))
        last = max(sums.last_ns or 0, int((start + ns).max()))
        lane = Lane(
            rank, None, start, ns, key, key, accounts, waiting, np.full(len(start), -1)
        )  # fmt: skip
        lane.parts = pieces.parts
        gaps = start[1:] - start[:-1] - ns[:-1]
        if np.count_nonzero(gaps < 0) * _OVERLAP > len(gaps):
            busy_and_idle(lane, first, last)
            self._number(lane, key, np.zeros(len(key), bool), waiting, np.full(len(key), ABSENT))
        else:
            breaks = fill_gaps(lane, self._outside.of_rank(rank), process, first, last, self._texts)
            self._number(lane, key, breaks, waiting, waited)
            lane.device = None if (device == ABSENT).all() else np.where(device < 0, 0, device)
            lane.lacking = _by_account(pieces.lacking, pieces.start)
        if self._size > 1:
            join(lane, self._size)
        self._lanes.append(lane)
        self._cells += _cells(lane)
        while self._cells > MOST_CELLS and max(len(each.start) for each in self._lanes) > 1:
            self._join()

    def _number(
        self, lane: Lane, key: np.ndarray, breaks: np.ndarray, waiting: np.ndarray,
        waited: np.ndarray,
    ) -> None:  # fmt: skip
        """Set the numbers and the epochs of units, and the times of their own work."""
        process = np.cumsum(breaks)
        lane.number, lane.is_lost = self._numbers.of_lane(key, process)
        lane.epoch = self._numbers.epoch_places(key)
        is_known = (waited != ABSENT) & np.r_[False, waited[:-1] != ABSENT] & ~breaks
        ahead = np.r_[0, waited[:-1]]
        lane.own = np.where(is_known, np.maximum(waited - ahead - waiting, 0), -1)

    def _join(self) -> None:
        """Halve the number of entries of all lanes."""
        self._size *= 2
        for lane in self._lanes:
            join(lane, self._size)
        self._cells = sum(map(_cells, self._lanes))


def join(lane: Lane, size: int) -> None:
    """Join the entries of a lane so that each is the sum of `size` units."""
    groups = lane.number // size
    firsts = np.flatnonzero(np.r_[len(groups) > 0, groups[1:] != groups[:-1]])
    if not len(firsts):
        lane.size = size
        return

    def added(times: np.ndarray) -> np.ndarray:
        return np.add.reduceat(times, firsts)

    has_own = added((lane.own < 0).astype(np.int64)) == 0
    lane.own = np.where(has_own, added(lane.own), -1)
    lane.start, lane.number, lane.epoch = (
        each[firsts] for each in (lane.start, lane.number, lane.epoch)
    )
    lane.is_lost = added(lane.is_lost.astype(np.int64)) > 0
    lane.ns, lane.waiting = added(lane.ns), added(lane.waiting)
    lane.accounts = {name: added(times) for name, times in lane.accounts.items()}
    lane.lacking = {name: added(times) for name, times in lane.lacking.items()}
    lane.device = None if lane.device is None else added(lane.device)
    lane.restarts = [
        (int(np.searchsorted(firsts, place, side="right")) - 1, times)
        for place, times in lane.restarts
    ]
    lane.size = size


def _cells(lane: Lane) -> int:
    return len(lane.start) * (8 + len(lane.accounts) + len(lane.lacking))


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(pieces[0]) if len(pieces) == 1 else np.concatenate(pieces)


def _by_account(
    pieces: Sequence[Mapping[str, np.ndarray]], starts: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {
        name: _joined([
            piece.get(name, np.zeros(len(start), np.int64))
            for piece, start in zip(pieces, starts, strict=True)
        ])
        for name in names
    }  # fmt: skip


def _add(times: dict[str, int], account: str, ns: int) -> None:
    if ns > 0:
        times[account] = times.get(account, 0) + ns


__all__ = ["MOST_CELLS", "UNATTRIBUTED", "LedgerFold", "join"]
