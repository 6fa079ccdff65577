"""The window of the verdicts: the last units that all ranks have, by epoch and number.

`WindowKeys` reads all units, and chooses the units of the window; `WindowSums` reads the units and
their parts again, and adds up those of the window.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...analysis.breakdown import COMPONENTS, is_collective
from ...analysis.verdicts.aligned_steps import (
    SCOPE,
    TIMED,
    WAIT,
    StepGaps,
    rank_steps,
)
from ...analysis.verdicts.thresholds import Thresholds
from ...analysis.verdicts.window import Clock, OutsideSteps, RankSteps, StepNumber
from ..relations import ABSENT, SUMMARY, SUMS, Block, Texts
from .breakdowns import sum_of

_KEY: Final = ("rank", "parent", "idx", "start_ns", "ns", "no")
UNIT_KEYS: Final = ("no", "parent", "pid", "start_ns")
"""The columns that determine the session of a unit."""
_PARTS: Final = ("input", "h2d", "forward", "backward", "optimizer", SCOPE)


class ChosenUnits(NamedTuple):
    """The units of the window, in the order of `no`."""

    no: np.ndarray
    position: np.ndarray
    """The place of the unit's number in the window, from 1."""
    is_slow: np.ndarray
    aligned: int
    """The number of aligned units, each of which all ranks have."""
    slow: int
    ends: tuple[StepNumber | None, StepNumber | None]
    ranks: list[int]


class WindowKeys:
    """Chooses the units of the window."""

    def __init__(self, texts: Texts, epoch_of: Callable[[int], int], limits: Thresholds) -> None:
        """`epoch_of` returns the token of the epoch around the scope whose id has a token."""
        self._texts, self._epoch_of, self._limits = texts, epoch_of, limits
        self._kept: list[np.ndarray] = []

    def add(self, units: Block) -> None:
        """Add units, in any order."""
        self._kept.append(np.stack([units[name] for name in _KEY]))

    def choose(self) -> ChosenUnits:
        """Return the units of the window."""
        table = np.concatenate([np.zeros((len(_KEY), 0), np.int64), *self._kept], axis=1)
        rank, parent, idx, start, ns, no = table
        ranks = np.unique(rank)
        parents, which = np.unique(parent, return_inverse=True)
        epochs = np.array([self._epoch_of(token) for token in parents.tolist()], np.int64)
        epoch = epochs[which] if len(parents) else parent
        turn = _turns(rank, epoch, idx, start, no)
        order = np.lexsort((turn, idx, epoch))
        keys = np.stack([epoch, idx, turn])[:, order]
        firsts = _starts(keys)
        sizes = np.diff(np.r_[firsts, len(order)])
        if not len(order):
            return ChosenUnits(no, no, no, 0, 0, (None, None), [])
        latest = np.maximum.reduceat(start[order], firsts)
        earliest = np.minimum.reduceat(no[order], firsts)
        longest = np.maximum.reduceat(ns[order], firsts)
        groups = np.flatnonzero(sizes == len(ranks))
        groups = groups[np.lexsort((earliest[groups], latest[groups]))]
        groups = groups[-round(self._limits["window.steps"]) :]
        is_slow = self._slow(longest[groups])
        position = np.zeros(len(firsts), np.int64)
        position[groups] = np.arange(1, len(groups) + 1)
        slow_of = np.zeros(len(firsts), np.int64)
        slow_of[groups] = is_slow
        group_of = np.repeat(np.arange(len(firsts)), sizes)
        is_chosen = position[group_of] > 0
        chosen = np.stack([no[order], position[group_of], slow_of[group_of]])[:, is_chosen]
        chosen = chosen[:, np.argsort(chosen[0])]
        ends = [self._number(keys[:, firsts[group]]) for group in (*groups[:1], *groups[-1:])]
        return ChosenUnits(
            chosen[0], chosen[1], chosen[2], len(groups), int(is_slow.sum()),
            (ends[0], ends[-1]) if ends else (None, None), np.unique(table[0]).tolist(),
        )  # fmt: skip

    def _number(self, key: np.ndarray) -> StepNumber:
        return StepNumber(*(self._texts.text(int(token)) for token in key[:2]))

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


def _starts(keys: np.ndarray) -> Any:
    """Return the places at which the columns of `keys` change."""
    if not keys.shape[1]:
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)])


def _turns(*columns: np.ndarray) -> np.ndarray:
    """Return how many units of the same rank, epoch and number are earlier."""
    rank, epoch, idx, start, no = columns
    order = np.lexsort((no, start, idx, epoch, rank))
    firsts = _starts(np.stack([rank, epoch, idx])[:, order])
    sizes = np.diff(np.r_[firsts, len(order)])
    turn: np.ndarray = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - np.repeat(firsts, sizes)
    return turn


class WindowSums:
    """The window of the verdicts, once all units and their parts were added."""

    def __init__(
        self, texts: Texts, chosen: ChosenUnits, sessions_of: Callable[[Block], np.ndarray]
    ) -> None:
        """`sessions_of` returns the number of the session of each unit, -1 if there is none."""
        self._texts, self._chosen, self._sessions_of = texts, chosen, sessions_of
        self.count, self.slow = chosen.aligned, chosen.slow
        self._units: list[np.ndarray] = []
        self._parts: list[np.ndarray] = []
        self._columns = ("rank", "start_ns", "ns", "no", "reserved_peak", "device_peak",
                         "flags")  # fmt: skip

    def add(self, units: Block, parts: Block) -> None:
        """Add units, and the parts of all of them in the same order."""
        places = np.searchsorted(self._chosen.no, units["no"])
        places[places == len(self._chosen.no)] = 0
        is_chosen = (
            self._chosen.no[places] == units["no"] if len(self._chosen.no) else places < 0
        )  # fmt: skip
        at = places[is_chosen]
        rows = [units[name][is_chosen] for name in self._columns]
        sessions = self._sessions_of({name: units[name][is_chosen] for name in UNIT_KEYS})
        self._units.append(
            np.stack([*rows, self._chosen.position[at], self._chosen.is_slow[at], sessions])
        )
        inside = np.repeat(is_chosen, units["parts"])
        self._parts.append(np.stack([parts[name][inside] for name in ("unit", "name", "ns",
                                                                      "gpu_ns")]))  # fmt: skip

    def finish(self) -> None:
        """Compute the sums."""
        units = np.concatenate([np.zeros((10, 0), np.int64), *self._units], axis=1)
        (self._rank, self._start, self._ns, self._no, reserved, device, self._flags,
         self._position, self._is_slow, self._session) = units[:, np.argsort(units[3])]  # fmt: skip
        self._peak = np.where(reserved == ABSENT, device, reserved)
        parts = np.concatenate([np.zeros((4, 0), np.int64), *self._parts], axis=1)
        self._of_unit = np.searchsorted(self._no, parts[0])
        self._name, self._part_ns, self._part_gpu = parts[1:]
        names = np.unique(self._name).tolist()
        self._components = {token: _component(self._texts.text(token) or "") for token in names}
        is_timed = np.isin(
            self._name, [token for token in names if self._texts.text(token) in TIMED]
        )
        has_gpu = self._part_gpu[is_timed] != ABSENT
        self.clock: Clock = "device" if has_gpu.any() and has_gpu.all() else "host"

    def ends(self) -> tuple[StepNumber | None, StepNumber | None]:
        """Return the first and the last unit; None if no units are aligned."""
        return self._chosen.ends

    def times(self) -> tuple[int | None, int | None]:
        """Return the start of the first unit and the end of the last one, Unix ns."""
        if not len(self._start):
            return None, None
        return int(self._start.min()), int((self._start + self._ns).max())

    def present(self) -> set[int | None]:
        """Return the ranks with units."""
        return {_rank(rank) for rank in self._chosen.ranks}

    def summarised(self) -> int:
        """Return the number of summaries among the units of the window."""
        return int(((self._flags & SUMMARY) != 0).sum())

    def peaks(self, bands: Sequence[tuple[float, float]]) -> Iterator[tuple[Any, ...]]:
        """Yield the peaks of each rank with device memory: rank, number, maximum, and the mean of
        each band of the window.
        """
        place = self._position / max(self.count, 1)
        for rank in np.unique(self._rank).tolist():
            is_own = (self._rank == rank) & (self._peak != ABSENT)
            peak, at = self._peak[is_own], place[is_own]
            if not len(peak):
                continue
            means = [
                float(some.astype(np.float64).sum() / len(some)) if len(some) else None
                for low, high in bands
                for some in (peak[(at > low) & (at <= high)],)
            ]
            yield _rank(rank), len(peak), int(peak.max()), *means

    def outside(self) -> list[OutsideSteps]:
        """Return each rank's time between the units of the window."""
        gaps = self._gaps(np.ones(len(self._no), np.bool_))
        is_member = self._session >= 0
        found = []
        for rank in np.unique(self._rank[is_member]).tolist():
            is_own = is_member & (self._rank == rank)
            if is_own.sum() > 1:
                outside = sum_of(gaps[is_own])
                total = sum_of(self._ns[is_own]) + outside
                found.append(OutsideSteps(_rank(rank), total, outside))
        return found

    def _gaps(self, counts: np.ndarray) -> np.ndarray:
        """Return the time from each unit to the next one of its rank and session, ns.

        Only the units for which `counts` is true are considered.
        """
        gaps = np.zeros(len(self._no), np.int64)
        places = np.flatnonzero(counts & (self._session >= 0))
        keys = self._no[places], self._start[places], self._session[places], self._rank[places]
        places = places[np.lexsort(keys)]
        first, after = places[:-1], places[1:]
        is_same = (self._session[first] == self._session[after]) & (
            self._rank[first] == self._rank[after]
        )
        found = np.maximum(self._start[after] - self._start[first] - self._ns[first], 0)
        gaps[first] = np.where(is_same, found, 0)
        return gaps

    def ranks(self) -> list[RankSteps]:
        """Return the mean times of each rank."""
        totals = self._by_component()
        busy = totals["h2d"] + totals["forward"] + totals["backward"] + totals["optimizer"]
        idle = totals["input"]
        if self.clock == "device":
            idle = np.minimum(idle, np.maximum(self._ns - busy, 0))
        step = np.maximum(self._ns - idle, busy + totals[SCOPE])
        columns = (step, idle, *(totals[name] for name in _PARTS[1:5]))
        sums, gaps = [], StepGaps()
        timed = (self._flags & SUMS) == 0
        gap = self._gaps(timed)
        for rank, is_slow in self._groups():
            is_own = (self._rank == rank) & (self._is_slow == is_slow)
            totals_of = tuple(float(column[is_own].sum(dtype=np.float64)) for column in columns)
            sums.append((_rank(rank), is_slow, (int(is_own.sum()), *totals_of)))
            if (is_own & timed & (self._session >= 0)).any():
                gaps.setdefault(_rank(rank), {})[is_slow] = float(sum_of(gap[is_own]))
        return rank_steps(sums, self._scopes(), gaps, self.clock, has_slow=self.slow > 0)

    def _groups(self) -> list[tuple[int, int]]:
        pairs = np.unique(np.stack([self._rank, self._is_slow]), axis=1)
        return [(rank, slow) for rank, slow in pairs.T.tolist()]

    def _by_component(self) -> dict[str, np.ndarray]:
        """Return the time of each component in each unit, ns."""
        device = np.where(self._part_gpu == ABSENT, 0, self._part_gpu)
        found = {}
        for component in _PARTS:
            tokens = [token for token, each in self._components.items() if each == component]
            is_one = np.isin(self._name, tokens)
            ns = self._part_ns
            if self.clock == "device" and component != "input":
                other = self._part_ns if component == SCOPE else 0
                ns = np.where(self._part_gpu == ABSENT, other, device)
            # Times of damaged records may add up to more than 64 bits.
            total = np.zeros(len(self._no), np.float64)
            np.add.at(total, self._of_unit[is_one], ns[is_one])
            found[component] = total
        return found

    def _scopes(self) -> list[tuple[int | None, int, str, float, float]]:
        """Return the totals of scopes that are neither compute nor wait, the longest first."""
        device = np.where(self._part_gpu == ABSENT, self._part_ns, self._part_gpu)
        rank, is_slow = self._rank[self._of_unit], self._is_slow[self._of_unit]
        rows = []
        for token, component in self._components.items():
            if component != SCOPE:
                continue
            is_one = self._name == token
            for of_rank, slow in self._groups():
                is_own = is_one & (rank == of_rank) & (is_slow == slow)
                if is_own.any():
                    host = self._part_ns[is_own].sum(dtype=np.float64)
                    on_device = device[is_own].sum(dtype=np.float64)
                    name = self._texts.text(token) or "?"
                    rows.append((of_rank, slow, name, float(host), float(on_device)))
        rows.sort(key=lambda row: (-row[3], row[0], row[1], row[2]))
        return [(_rank(of_rank), *rest) for of_rank, *rest in rows]  # type: ignore[misc]


def _component(name: str) -> str:
    return COMPONENTS.get(name) or (WAIT if is_collective(name) else SCOPE)


def _rank(rank: int) -> int | None:
    return None if rank == ABSENT else rank
