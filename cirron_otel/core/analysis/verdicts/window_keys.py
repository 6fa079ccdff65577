"""The choice of the window of the verdicts: the last units that all ranks have."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cached_property
from itertools import starmap
from typing import Any, Final, NamedTuple

import numpy as np

from ...run.figures.by_rank import by_rank, sorted_by_rank
from ...run.relations import Block, Texts
from .thresholds import Thresholds
from .window import StepNumber

_COLUMNS: Final = ("parent", "idx", "start_ns", "no", "ns")


class ChosenUnits(NamedTuple):
    """The units of the window.

    The units of a rank are those of the first rank, in their order, or `places` has the place of
    each in that order; -1 for a unit that the first rank does not have.
    """

    position: np.ndarray
    """For each unit of the first rank, its place in the window, from 1; 0 if it is outside."""
    is_slow: np.ndarray
    aligned: int
    """The number of aligned units, each of which all ranks have."""
    slow: int
    ends: tuple[StepNumber | None, StepNumber | None]
    ranks: list[int]
    places: dict[int, np.ndarray]

    def of(self, rank: int, first: int, count: int) -> np.ndarray:
        """Return where `position` has the units of a rank from the `first` one on; else -1."""
        places = self.places.get(rank)
        if places is not None:
            return places[first : first + count]
        found = np.arange(first, first + count)
        found[found >= len(self.position)] = -1
        return found


class _FirstRank:
    """The keys of the first rank's units, and the extremes of these units over all ranks."""

    def __init__(self, epoch: np.ndarray, idx: np.ndarray) -> None:
        self.epoch, self.idx = epoch, idx
        count = len(epoch)
        self.ranks = np.zeros(count, np.int64)
        """The number of ranks with each unit."""
        self.latest = np.full(count, -(2**63))
        self.longest = np.full(count, -(2**63))
        self.earliest = np.full(count, 2**63 - 1)
        """The latest start, the longest duration, and the lowest number of each unit."""

    @cached_property
    def _turn(self) -> np.ndarray:
        return _turns(self.epoch, self.idx)

    def places(self, epoch: np.ndarray, idx: np.ndarray) -> np.ndarray | None:
        """Return the place of each unit of a rank; None if they are in the same order."""
        same = min(len(epoch), len(self.epoch))
        if (epoch[:same] == self.epoch[:same]).all() and (idx[:same] == self.idx[:same]).all():
            return None
        own = np.stack([epoch, idx, _turns(epoch, idx)])
        keys = np.concatenate([np.stack([self.epoch, self.idx, self._turn]), own], axis=1)
        order = np.lexsort((keys[2], keys[1], keys[0]))
        keys, first = keys[:, order], len(self.epoch)
        pairs = np.flatnonzero((keys[:, 1:] == keys[:, :-1]).all(axis=0))
        found = np.full(len(epoch), -1, np.int32)
        found[order[pairs + 1] - first] = order[pairs]
        return found

    def add(self, at: Any, places: Any, start: np.ndarray, no: np.ndarray, ns: np.ndarray) -> None:
        """Add the units of a rank `places`, which are `at` these places of the first rank."""
        self.ranks[at] += 1
        self.latest[at] = np.maximum(self.latest[at], start[places])
        self.earliest[at] = np.minimum(self.earliest[at], no[places])
        self.longest[at] = np.maximum(self.longest[at], ns[places])


class WindowKeys:
    """Chooses the units of the window. Units come by rank and start."""

    def __init__(self, texts: Texts, epoch_of: Callable[[int], int], limits: Thresholds) -> None:
        """`epoch_of` returns the token of the epoch around the scope whose id has a token."""
        self._texts, self._epoch_of, self._limits = texts, epoch_of, limits
        self._first: _FirstRank | None = None
        self._ranks: list[int] = []
        self._pieces: list[list[np.ndarray]] = []
        self._places: dict[int, np.ndarray] = {}

    def add(self, units: Block) -> None:
        """Add units."""
        units, _ = sorted_by_rank(units, {})
        block = [np.ascontiguousarray(units[name]) for name in _COLUMNS]
        block[0] = self._epochs(block[0])
        for rank, place in by_rank(units):
            if not self._ranks or rank != self._ranks[-1]:
                self._close()
                self._ranks.append(rank)
            self._pieces.append([column[place] for column in block])

    def _epochs(self, parents: np.ndarray) -> np.ndarray:
        firsts = np.append(0, np.flatnonzero(parents[1:] != parents[:-1]) + 1)
        of_runs = parents[firsts].tolist()
        epochs = {token: self._epoch_of(token) for token in dict.fromkeys(of_runs)}
        return np.repeat([epochs[token] for token in of_runs], np.diff(firsts, append=len(parents)))

    def _close(self) -> None:
        """Count the units of a rank once all of them were added."""
        if not self._pieces:
            return
        columns = zip(*self._pieces, strict=True)
        epoch, idx, start, no, ns = (
            each[0] if len(each) == 1 else np.concatenate(each) for each in columns
        )
        self._pieces = []
        if self._first is None:
            self._first = _FirstRank(epoch, idx)
        places = self._first.places(epoch, idx)
        if places is None:
            same = slice(min(len(epoch), len(self._first.epoch)))
            self._first.add(same, same, start, no, ns)
        else:
            self._places[self._ranks[-1]] = places
            is_known = places >= 0
            self._first.add(places[is_known], is_known, start, no, ns)

    def choose(self) -> ChosenUnits:
        """Return the units of the window."""
        self._close()
        first = self._first
        if first is None:
            nothing = np.zeros(0, np.int64)
            return ChosenUnits(nothing, nothing, 0, 0, (None, None), [], {})
        groups = np.flatnonzero(first.ranks == len(self._ranks))
        groups = groups[np.lexsort((first.earliest[groups], first.latest[groups]))]
        groups = groups[-round(self._limits["window.steps"]) :]
        position, is_slow = np.zeros((2, len(first.epoch)), np.int64)
        position[groups] = np.arange(1, len(groups) + 1)
        is_slow[groups] = self._slow(first.longest[groups])
        numbers = ((first.epoch[group], first.idx[group]) for group in (*groups[:1], *groups[-1:]))
        ends = list(starmap(self._number, numbers))
        return ChosenUnits(
            position, is_slow, len(groups), int(is_slow.sum()),
            (ends[0], ends[-1]) if ends else (None, None), self._ranks, self._places,
        )  # fmt: skip

    def _number(self, epoch: int, idx: int) -> StepNumber:
        return StepNumber(self._texts.text(int(epoch)), self._texts.text(int(idx)))

    def _slow(self, durations: np.ndarray) -> np.ndarray:
        """Return whether each duration is slow; none is if many are."""
        if not len(durations):
            return np.zeros(0, np.int64)
        limit = self._limits["few_steps.factor"] * statistics.median(durations.tolist())
        is_slow = durations > limit
        if is_slow.sum() > self._limits["few_steps.share"] * len(durations):
            return np.zeros(len(durations), np.int64)
        found: np.ndarray = is_slow.astype(np.int64)
        return found


def _turns(epoch: np.ndarray, idx: np.ndarray) -> np.ndarray:
    """Return how many units of a rank with the same epoch and number are earlier."""
    order = np.lexsort((idx, epoch))
    keys = np.stack([epoch, idx])[:, order]
    firsts = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    turn: np.ndarray = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - np.repeat(firsts, np.diff([*firsts, len(order)]))
    return turn
