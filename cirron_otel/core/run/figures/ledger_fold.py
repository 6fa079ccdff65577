"""Computes the ledger of a run: a fold over units and their parts, by rank and start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..accounts import BY_RULE, AccountNames
from ..load.lanes import RankSums
from ..relations import ABSENT, Block, Texts, known
from .by_rank import by_rank, sorted_by_rank
from .ledger import Lane, Ledger
from .ledger_moves import move
from .outside import OutsideScopes, busy_and_idle, fill_gaps
from .timed_marks import TimedValues
from .unit_accounts import AccountsOfUnits, UnitAccounts
from .unit_numbers import UnitNumbers

MOST_CELLS: Final = 9_000_000
"""The maximum number of numbers that are kept for all units; above it, entries are joined."""
_SHORT: Final = 10_000
_OVERLAP: Final = 100
"""Units overlap if they do so for more than this fraction of their time."""


@dataclass(slots=True)
class _Times:
    """The units of a lane, or of a thread, in order of their start."""

    start: np.ndarray
    ns: np.ndarray
    process: np.ndarray
    training: np.ndarray
    key: np.ndarray
    waiting: np.ndarray
    waited: np.ndarray
    forwarded: np.ndarray
    device: np.ndarray
    ahead: np.ndarray
    accounts: dict[str, np.ndarray]
    lacking: dict[str, np.ndarray]
    counts: dict[str, np.ndarray]
    parts: dict[tuple[str, str], int]
    threads: frozenset[int]


_COLUMNS: Final = (
    "start", "ns", "process", "training", "key", "waiting", "waited", "forwarded", "device",
    "ahead",
)  # fmt: skip


@dataclass(slots=True)
class _Pieces:
    """The units of a thread so far, block by block."""

    columns: dict[str, list[np.ndarray]] = field(default_factory=lambda: {n: [] for n in _COLUMNS})
    accounts: list[dict[str, np.ndarray]] = field(default_factory=list)
    lacking: list[dict[str, np.ndarray]] = field(default_factory=list)
    counts: list[dict[str, np.ndarray]] = field(default_factory=list)
    parts: dict[tuple[str, str], int] = field(default_factory=dict)

    def joined(self, thread: int) -> _Times:
        """Return all units; `thread` is the id of their thread. Release the pieces."""
        counts = list(map(len, self.columns["start"]))
        return _Times(
            **{name: _joined(self.columns.pop(name)) for name in _COLUMNS},
            accounts=_by_account(self.accounts, counts),
            lacking=_by_account(self.lacking, counts),
            counts=_by_account(self.counts, counts),
            parts=self.parts,
            threads=frozenset((thread,)),
        )


class LedgerFold:
    """The ledger of the units that are added. Units come by rank and start."""

    def __init__(
        self,
        texts: Texts,
        sums: Mapping[int | None, RankSums],
        outside: OutsideScopes,
        epoch_of: Callable[[int], str | None],
        accounts: AccountNames = BY_RULE,
    ) -> None:
        """`sums` are those over all spans of each rank, and `accounts` those of scopes.

        `epoch_of` returns the number of the epoch of units by the token of their parent.
        """
        self._texts, self._sums, self._outside = texts, sums, outside
        self._accounts = AccountsOfUnits(texts, accounts)
        self._numbers = UnitNumbers(texts, epoch_of)
        self._rank: int | None = None
        self._threads: dict[int, _Pieces] = {}
        self._lanes: list[Lane] = []
        self._extents: dict[int | None, tuple[int, int]] = {}
        """The first and the last time of each rank."""
        self._size, self._cells = 1, 0

    def add(self, units: Block, parts: Block) -> None:
        """Add units, and the parts of all of them in the same order."""
        units, parts = sorted_by_rank(units, parts)
        found = self._accounts.of(units, parts)
        keys = self._numbers.keys(units)
        ranks = list(by_rank(units))
        firsts = [place.start for _, place in ranks]
        names = {
            (account, self._texts.text(token) or "?"): (ns, np.add.reduceat(ns, firsts).tolist())
            for (account, token), ns in found.names.items()
        }
        for number, (rank, place) in enumerate(ranks):
            if rank != self._rank:
                self._close()
                self._rank = rank
            threads = units["thread"][place]
            if (threads == threads[0]).all():
                sums = {key: totals[number] for key, (_, totals) in names.items()}
                self._append(int(threads[0]), place, units, found, keys, sums)
                continue
            for thread in np.unique(threads).tolist():
                places = np.flatnonzero(threads == thread) + place.start
                sums = {key: int(ns[places].sum()) for key, (ns, _) in names.items()}
                self._append(thread, places, units, found, keys, sums)

    def _append(
        self,
        thread: int,
        place: slice | np.ndarray,
        units: Block,
        found: UnitAccounts,
        keys: np.ndarray,
        sums: Mapping[tuple[str, str], int],
    ) -> None:
        """Add some units of a thread of the current rank, and the sums of their parts."""
        pieces = self._threads.setdefault(thread, _Pieces())
        columns = (
            units["start_ns"], units["ns"], units["pid"], units["training"], keys, found.waiting,
            found.waited, found.forwarded, found.device, found.ahead,
        )  # fmt: skip
        for name, column in zip(_COLUMNS, columns, strict=True):
            pieces.columns[name].append(column[place])
        pieces.accounts.append({name: ns[place] for name, ns in found.accounts.items()})
        pieces.lacking.append({name: ns[place] for name, ns in found.lacking.items()})
        pieces.counts.append({name: number[place] for name, number in found.counts.items()})
        for key, ns in sums.items():
            pieces.parts[key] = pieces.parts.get(key, 0) + ns

    def finish(self, measured: Mapping[int | None, TimedValues] | None = None) -> Ledger | None:
        """Return the ledger; None if there are no units.

        `measured` has DDP's own measurements by rank.
        """
        self._close()
        if not self._lanes:
            return None
        trained = {lane.rank for lane in self._lanes}
        for rank, sums in self._sums.items():
            if rank is not None and rank not in trained and None not in trained:
                self._add_empty(rank, sums)
        self._lanes.sort(key=lambda lane: (lane.rank is not None, lane.rank or 0, lane.thread or 0))
        firsts, lasts = zip(*self._extents.values(), strict=True)
        first, last = min(firsts), max(lasts)
        for lane in self._lanes:
            own_first, own_last = self._extents.get(lane.rank, (first, first))
            _add(lane.outside, "start_up", own_first - first)
            _add(lane.outside, "ended", last - own_last)
        move(self._lanes, measured or {})
        return Ledger(first, last, self._lanes, self._numbers.epochs)

    def _add_empty(self, rank: int, sums: RankSums) -> None:
        """Add a lane without units."""
        nothing = np.zeros(0, np.int64)
        lane = Lane(rank, sums.host, nothing, nothing, nothing, nothing, {}, nothing, nothing)
        lane.size = self._size
        times = [time for time in (sums.first_ns, sums.last_ns) if time is not None]
        if times:
            first, last = self._extents[rank] = times[0], max(times)
            _add(lane.outside, "start_up", last - first)
        self._lanes.append(lane)

    def _close(self) -> None:
        """Make the lanes of a rank once all of its units were added."""
        if self._rank is None:
            return
        rank, threads = (
            known(self._rank),
            [each.joined(thread) for thread, each in self._threads.items()],
        )
        self._rank, self._threads = None, {}
        sums = self._sums[rank]
        firsts = [*(int(each.start[0]) for each in threads), sums.first_ns]
        lasts = [*(int((each.start + each.ns).max()) for each in threads), sums.last_ns]
        first = min(time for time in firsts if time is not None)
        last = max(time for time in lasts if time is not None)
        self._extents[rank] = first, last
        lanes = [_merged(threads)]
        if len(threads) > 1 and _overlaps(lanes[0]):
            lanes = list(map(_merged, _apart(threads)))
        del threads  # so that each lane is joined without its columns
        count = len(lanes)
        for number in range(1, count + 1):
            lane = self._lane(rank, lanes.pop(0), first, last)
            lane.thread = number if count > 1 else None
            lane.overhead_ns = sums.overhead_ns if number == 1 else 0
            if self._size > 1:
                join(lane, self._size)
            self._lanes.append(lane)
            self._cells += _cells(lane)
        if self._cells > MOST_CELLS and max(len(each.start) for each in self._lanes) > 1:
            self._join()

    def _lane(self, rank: int | None, times: _Times, first: int, last: int) -> Lane:
        count = len(times.start)
        lane = Lane(
            rank, self._sums[rank].host, times.start, times.ns, times.key, times.key,
            times.accounts, times.waiting, np.full(count, -1), parts=times.parts,
            counts=times.counts, training=times.training if times.training.any() else None,
        )  # fmt: skip
        if _overlaps(times):
            busy_and_idle(lane, first, last)
            nothing = np.full(count, ABSENT)
            self._number(lane, times.key, np.zeros(count, bool), nothing, nothing)
            return lane
        scopes = self._outside.of_rank(rank, times.threads)
        breaks = fill_gaps(lane, scopes, times.process, first, last, self._texts)
        self._number(lane, times.key, breaks, times.waited, times.forwarded)
        is_timed = times.device != ABSENT
        lane.device = np.where(is_timed, times.device, 0) if is_timed.any() else None
        lane.lacking = times.lacking
        lane.ahead = times.ahead if times.lacking else None
        return lane

    def _number(
        self, lane: Lane, key: np.ndarray, breaks: np.ndarray, waited: np.ndarray,
        forwarded: np.ndarray,
    ) -> None:  # fmt: skip
        """Set the numbers and the epochs of units, and the times of their own work."""
        process = np.cumsum(breaks)
        lane.number, lane.is_lost = self._numbers.of_lane(key, process)
        lane.epoch = self._numbers.epoch_places(key)
        has_waited = waited != ABSENT
        is_unknown = ~has_waited | breaks | lane.begins()
        is_unknown[:1] = True
        is_unknown[1:] |= ~has_waited[:-1]
        ahead = np.zeros(len(key), np.int64)
        ahead[1:] = waited[:-1]
        own = waited - ahead
        own -= lane.waiting
        lane.own = _known_times(own, is_unknown)
        is_unknown |= forwarded == ABSENT
        lane.forwarded = _known_times(forwarded - ahead, is_unknown)

    def _join(self) -> None:
        """Join the entries of all lanes, so that those of all ranks are unlikely to be too many."""
        ranks = {lane.rank for lane in self._lanes}
        expected = self._cells * max(len(self._sums), len(ranks)) // len(ranks)
        while expected > MOST_CELLS:
            self._size *= 2
            expected //= 2
        for lane in self._lanes:
            join(lane, self._size)
        self._cells = sum(map(_cells, self._lanes))


def join(lane: Lane, size: int) -> None:
    """Join the entries of a lane so that each is the sum of `size` units."""
    groups = lane.number // size
    is_first = np.ones(len(groups), bool)
    np.not_equal(groups[1:], groups[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    if not len(firsts):
        lane.size = size
        return
    columns = [
        lane.own, lane.forwarded, lane.ns, lane.waiting, lane.is_lost,
        lane.own < 0, lane.forwarded < 0, *lane.accounts.values(), *lane.lacking.values(),
        *lane.counts.values(),
    ]  # fmt: skip
    if lane.device is not None:
        columns.append(lane.device)
    if lane.ahead is not None:
        columns.append(lane.ahead)
    table: Sequence[np.ndarray]
    if len(groups) <= _SHORT:  # one table is added up much faster than its columns one by one
        table = list(np.add.reduceat(np.array(columns), firsts, axis=1))
    else:
        table = [np.add.reduceat(each, firsts, dtype=np.int64) for each in columns]
    lane.own = np.where(table[5] == 0, table[0], -1)
    lane.forwarded = np.where(table[6] == 0, table[1], -1)
    lane.start, lane.number, lane.epoch = (
        each[firsts] for each in (lane.start, lane.number, lane.epoch)
    )
    if lane.training is not None:
        lane.training = lane.training[firsts]
    lane.ns, lane.waiting, lane.is_lost = table[2], table[3], table[4] > 0
    rows = iter(table[7:])
    lane.accounts = {name: next(rows) for name in lane.accounts}
    lane.lacking = {name: next(rows) for name in lane.lacking}
    lane.counts = {name: next(rows) for name in lane.counts}
    lane.device = None if lane.device is None else next(rows)
    lane.ahead = None if lane.ahead is None else next(rows)
    lane.restarts = [
        (int(np.searchsorted(firsts, place, side="right")) - 1, times)
        for place, times in lane.restarts
    ]
    lane.size = size


def _known_times(times: np.ndarray, is_unknown: np.ndarray) -> np.ndarray:
    """Return the times, at least 0; -1 for those that are unknown."""
    np.maximum(times, 0, out=times)
    times[is_unknown] = -1
    return times


def _cells(lane: Lane) -> int:
    return len(lane.start) * (8 + len(lane.accounts) + len(lane.lacking) + len(lane.counts))


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(pieces[0]) if len(pieces) == 1 else np.concatenate(pieces)


def _by_account(
    pieces: Sequence[dict[str, np.ndarray]], counts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return the joined times of each account, which are removed from the pieces."""
    names = sorted({name for piece in pieces for name in piece})
    return {
        name: _joined([
            piece.pop(name) if name in piece else np.zeros(count, np.int64)
            for piece, count in zip(pieces, counts, strict=True)
        ])
        for name in names
    }  # fmt: skip


def _overlaps(times: _Times) -> bool:
    """Return whether several units overlap the next one, for a part of the time that counts."""
    gaps = times.start[1:] - times.start[:-1] - times.ns[:-1]
    overlaps = -gaps[gaps < 0]
    return len(overlaps) > 1 and bool(overlaps.sum() * _OVERLAP > times.ns.sum())


def _merged(threads: Sequence[_Times]) -> _Times:
    """Return the units of some threads in order of their start."""
    if len(threads) == 1:
        return threads[0]
    counts = [len(each.start) for each in threads]
    columns = {name: np.concatenate([getattr(each, name) for each in threads]) for name in _COLUMNS}
    order = np.argsort(columns["start"], kind="stable")
    accounts, lacking, numbers = (
        {name: times[order] for name, times in _by_account(pieces, counts).items()}
        for pieces in (
            [dict(each.accounts) for each in threads],
            [dict(each.lacking) for each in threads],
            [dict(each.counts) for each in threads],
        )
    )
    parts: dict[tuple[str, str], int] = {}
    for each in threads:
        for key, ns in each.parts.items():
            parts[key] = parts.get(key, 0) + ns
    return _Times(
        **{name: column[order] for name, column in columns.items()},
        accounts=accounts, lacking=lacking, counts=numbers, parts=parts,
        threads=frozenset().union(*(each.threads for each in threads)),
    )  # fmt: skip


def _apart(threads: Sequence[_Times]) -> list[list[_Times]]:
    """Divide threads into the fewest groups in which none begins before another one's end."""
    groups: list[list[_Times]] = []
    ends: list[int] = []
    for each in sorted(threads, key=lambda each: int(each.start[0])):
        free = (number for number, end in enumerate(ends) if end <= each.start[0])
        number = next(free, len(groups))
        if number == len(groups):
            groups.append([])
            ends.append(0)
        groups[number].append(each)
        ends[number] = int((each.start + each.ns).max())
    return groups


def _add(times: dict[str, int], account: str, ns: int) -> None:
    if ns > 0:
        times[account] = times.get(account, 0) + ns
