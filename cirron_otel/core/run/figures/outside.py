"""The time of a lane outside of its units: between them, ahead of the first, after the last."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ....semconv import JOB, MICRO_STEP, SESSION
from ...analysis.breakdown import STEP
from ...records.rows import IndexedSpan
from ..accounts import BY_RULE, OF_SCOPES, OVERRIDING, AccountNames
from ..load.tree import ScopeTree
from ..relations import ABSENT, Texts
from .ledger import Lane
from .sweep import Interval, outermost, sweep

BETWEEN: Final = "between_units"
SHUT_DOWN_NS: Final = 60 * 10**9
"""After the last unit of a process, the time up to this is `shut_down`, then `idle`."""
_TRANSPARENT: Final = frozenset({SESSION, JOB, STEP, MICRO_STEP, "epoch"})
_BETWEEN: Final = frozenset({*OVERRIDING, "input", "transfer", "communication", "other_scopes"})
"""The accounts of scopes between units; other scopes there count as time between units."""
_OTHERS: Final = frozenset({*OF_SCOPES} - _BETWEEN)


@dataclass(slots=True)
class RankScopes:
    """The scopes of a rank outside of its units, and its sessions."""

    intervals: list[Interval] = field(default_factory=list)
    threads: list[int | None] = field(default_factory=list)
    """The thread of each interval."""
    sessions: list[tuple[int, int]] = field(default_factory=list)


class OutsideScopes:
    """The scopes of each rank outside of units, without those around units."""

    def __init__(
        self,
        tree: ScopeTree,
        parents: Iterable[str | None],
        texts: Texts,
        accounts: AccountNames = BY_RULE,
    ) -> None:
        """`parents` are the ids of the scopes around units. `accounts` has those of scopes."""
        around: set[int] = set()
        for id_ in parents:
            found = tree.numbered(id_)
            while found is not None and found[0] not in around:
                around.add(found[0])
                found = tree.numbered(found[1].parent_id)
        self._ranks: dict[int | None, RankScopes] = {}
        for number, span in tree.scopes:
            if span.start_ns is None or span.end_ns is None:
                continue
            scopes = self._ranks.setdefault(span.rank, RankScopes())
            if span.name == SESSION:
                scopes.sessions.append((span.start_ns, span.end_ns))
            elif number not in around and span.name not in _TRANSPARENT:
                scopes.threads.append(span.thread_id)
                scopes.intervals.append(_clipped(span, tree, texts, accounts))

    def of_rank(self, rank: int | None, threads: Collection[int] = (ABSENT,)) -> RankScopes:
        """Return the scopes of a rank in some threads; `ABSENT` for an unknown thread."""
        found = self._ranks.get(rank, RankScopes())
        if ABSENT in threads:
            return found
        intervals = [
            each
            for each, thread in zip(found.intervals, found.threads, strict=True)
            if thread is None or thread in threads
        ]
        return RankScopes(intervals, sessions=found.sessions)


def _clipped(span: IndexedSpan, tree: ScopeTree, texts: Texts, accounts: AccountNames) -> Interval:
    start, end, depth = span.start_ns or 0, span.end_ns or 0, 0
    account, parent = accounts.account_of(span.name), tree.numbered(span.parent_id)
    if parent is not None:
        depth = 1
        around = parent[1]
        if around.start_ns is not None and around.end_ns is not None:
            start, end = max(start, around.start_ns), min(end, around.end_ns)
    token = texts.token_of(span.name or None)
    return Interval(start, end, depth, account, token, account in OVERRIDING, span.name or "")


class _Pieces:
    """The pieces of time that scopes outside of units cover, in order."""

    def __init__(self, scopes: RankScopes) -> None:
        self.pieces = list(sweep(scopes.intervals))
        self._ends = [end for _, end, _ in self.pieces]

    def within(
        self, first: int, last: int, accounts: frozenset[str]
    ) -> Iterator[tuple[int, Interval]]:
        """Yield the time of each piece of some accounts between two times."""
        for place in range(bisect.bisect_right(self._ends, first), len(self.pieces)):
            start, end, each = self.pieces[place]
            if start >= last:
                return
            if each.account in accounts:
                yield min(end, last) - max(start, first), each


def fill_gaps(
    lane: Lane, scopes: RankScopes, process: np.ndarray, first: int, last: int, texts: Texts
) -> np.ndarray:
    """Add the time outside of units to a lane; return the units with which processes begin.

    `process` has the process id of each unit. `first` and `last` are the first and the last time
    of the lane.
    """
    start, end = lane.start, lane.start + lane.ns
    gaps = np.zeros(len(start), np.int64)
    np.subtract(start[1:], end[:-1], out=gaps[1:])
    if int(gaps.min()) < 0:
        cut_overlaps(lane)
        end = start + sum(lane.accounts.values(), np.zeros(len(start), np.int64))
        np.subtract(start[1:], end[:-1], out=gaps[1:])
    sessions = sorted(scopes.sessions)
    breaks = np.zeros(len(start), bool)
    np.not_equal(process[1:], process[:-1], out=breaks[1:])
    if len(sessions) > 1 or (sessions and sessions[0][0] > start[0]):
        starts = np.array([begin for begin, _ in sessions], np.int64)
        begun = np.searchsorted(starts, start, side="right")
        breaks[1:] |= begun[1:] != begun[:-1]
    if breaks.any():
        gaps[breaks] = 0
    pieces = _Pieces(scopes)
    filler = _Filler(lane, pieces, texts)
    for place, account, ns in filler.between(start, end, breaks):
        lane.accounts.setdefault(account, np.zeros(len(start), np.int64))[place] += ns
        gaps[place] -= ns
    for place in np.flatnonzero(lane.rises() & ~breaks).tolist():
        others = pieces.within(int(end[place - 1]), int(start[place]), _OTHERS)
        idle = int(gaps[place]) - sum(ns for ns, _ in others)
        gaps[place] -= idle
        lane.outside["idle"] = lane.outside.get("idle", 0) + idle
    lane.accounts[BETWEEN] = gaps
    for each in outermost(scopes.intervals):
        place = int(np.searchsorted(start, each.start, side="right"))
        if 0 < place < len(start) and not breaks[place]:
            lane.counts.setdefault(each.account, np.zeros(len(start), np.int64))[place] += 1
    filler.add([(first, int(start[0]), "start_up")])
    tail = int(end[-1])
    filler.add(_shut_down(tail, last))
    for place in np.flatnonzero(breaks).tolist():
        lane.restarts.append(
            (place, filler.add(_at_break(int(end[place - 1]), int(start[place]), sessions)))
        )
    return breaks


class _Filler:
    """Distributes the time of a lane outside of units."""

    def __init__(self, lane: Lane, pieces: _Pieces, texts: Texts) -> None:
        self._lane, self._pieces, self._texts = lane, pieces, texts

    def between(
        self, start: np.ndarray, end: np.ndarray, breaks: np.ndarray
    ) -> Iterator[tuple[int, str, int]]:
        """Yield the time that scopes take in the gaps ahead of units, by unit and account."""
        for begin, stop, each in self._pieces.pieces:
            if each.account not in _BETWEEN:
                continue
            place = max(int(np.searchsorted(start, begin, side="right")), 1)
            while place < len(start) and end[place - 1] < stop:
                ns = min(stop, int(start[place])) - max(begin, int(end[place - 1]))
                if ns > 0 and not breaks[place]:
                    self._list(each, ns)
                    yield place, each.account, ns
                place += 1

    def add(self, segments: Iterable[tuple[int, int, str]]) -> dict[str, int]:
        """Add segments of time with their accounts, except for the scopes that override these."""
        added: dict[str, int] = {}
        outside = self._lane.outside
        for first, last, account in segments:
            rest = last - first
            if rest <= 0:
                continue
            for ns, each in self._pieces.within(first, last, frozenset(OVERRIDING)):
                outside[each.account] = outside.get(each.account, 0) + ns
                self._list(each, ns)
                rest -= ns
            if rest:
                outside[account] = outside.get(account, 0) + rest
                added[account] = added.get(account, 0) + rest
        return added

    def _list(self, each: Interval, ns: int) -> None:
        key = each.account, self._texts.text(each.name) or "?"
        self._lane.parts[key] = self._lane.parts.get(key, 0) + ns


def _shut_down(first: int, last: int) -> list[tuple[int, int, str]]:
    until = min(first + SHUT_DOWN_NS, last)
    return [(first, until, "shut_down"), (until, last, "idle")]


def _at_break(end: int, start: int, sessions: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Return the segments between the last unit of a process and the first one of the next."""
    closed = min((last for _, last in sessions if end <= last <= start), default=end)
    begun = max((first for first, _ in sessions if closed <= first <= start), default=start)
    return [*_shut_down(end, closed), (closed, begun, "paused"), (begun, start, "start_up")]


def cut_overlaps(lane: Lane) -> None:
    """Cut each unit of a lane at the start of the next one, if they overlap."""
    allowed = np.r_[lane.start[1:] - lane.start[:-1], lane.ns[-1:]]
    excess = np.maximum(lane.ns - allowed, 0)
    for place in np.flatnonzero(excess).tolist():
        left = int(excess[place])
        order = sorted(lane.accounts, key=lambda name: (name != "unattributed", name))
        for name in order:
            times = lane.accounts[name]
            taken = min(left, int(times[place]))
            times[place] -= taken
            left -= taken


def busy_and_idle(lane: Lane, first: int, last: int) -> None:
    """Divide the time of a lane whose units overlap into `busy` and `idle`."""
    end = lane.start + lane.ns
    covered = np.r_[lane.start[:1], np.maximum.accumulate(end)[:-1]]
    busy = np.maximum(end - np.maximum(lane.start, covered), 0)
    lane.accounts, lane.parts, lane.counts = {"busy": busy}, {}, {}
    idle = last - first - int(busy.sum())
    if idle > 0:
        lane.outside["idle"] = idle
