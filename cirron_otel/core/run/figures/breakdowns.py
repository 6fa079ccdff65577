"""The time of the units of each rank by phase: a fold over units and their parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TypeAlias

import numpy as np

from ...analysis.breakdown import STEP, UNATTRIBUTED, Breakdown
from ..relations import Block, Texts, known
from .by_rank import by_rank, sorted_by_rank
from .durations import Durations, figures_of, is_exact, table_figures

_MOST_TIMES = 1 << 18
"""The maximum number of units whose times are kept."""
_MOST_NAMES = 16
"""The number of names whose durations are selected one by one, which is faster for few."""
UnitTimes: TypeAlias = tuple[int | None, np.ndarray, np.ndarray]
"""A rank, and the starts and the durations of its units, ns, in order."""


class _Times:
    """The durations of units by phase."""

    def __init__(self) -> None:
        self.steps, self.unattributed = Durations(), Durations()
        self.phases: dict[int, Durations] = {}
        """By the tokens of the phases' names, in the order of their first occurrence."""

    def add(
        self, steps: np.ndarray, unattributed: np.ndarray, phases: Iterable[tuple[int, np.ndarray]]
    ) -> None:
        """Add units."""
        self.steps.add(steps)
        self.unattributed.add(unattributed)
        self.add_phases(phases)

    def add_phases(self, phases: Iterable[tuple[int, np.ndarray]]) -> None:
        """Add durations of phases."""
        for name, durations in phases:
            found = self.phases.get(name)
            if found is None:
                found = self.phases[name] = Durations()
            found.add(durations)

    def figures(self, texts: Texts) -> Breakdown:
        """Return the breakdown."""
        phases = [(texts.text(name) or "?", each) for name, each in self.phases.items()]
        steps, unattributed, *figures = figures_of(
            [(STEP, self.steps), (UNATTRIBUTED, self.unattributed), *phases]
        )
        return Breakdown(steps, list(figures), unattributed)


class _RankTimes:
    """The durations of the units of a rank: in tables while all of them have the same parts."""

    def __init__(self) -> None:
        self._names: list[int] = []
        self._tables: list[np.ndarray] = []
        """Rows of units, of their unattributed time, and of each part."""
        self._count = 0
        self._times: _Times | None = None

    def add_table(self, names: list[int], table: np.ndarray) -> None:
        """Add units, each with a part of each name. `table` is as in `_tables`."""
        self._count += table.shape[1]
        is_equal = not self._tables or names == self._names
        if self._times is None and is_equal and is_exact(self._count):
            self._names = names
            self._tables.append(table)
            return
        self._divide(names, table, self._divided())

    def add(
        self, steps: np.ndarray, unattributed: np.ndarray, phases: Iterable[tuple[int, np.ndarray]]
    ) -> None:
        """Add units with any parts."""
        self._divided().add(steps, unattributed, phases)

    def _divided(self) -> _Times:
        if self._times is None:
            self._times = _Times()
            for table in self._tables:
                self._divide(self._names, table, self._times)
        return self._times

    @staticmethod
    def _divide(names: list[int], table: np.ndarray, times: _Times) -> None:
        times.add(table[0], table[1], zip(names, table[2:], strict=True))

    def figures(self, texts: Texts) -> Breakdown:
        """Return the breakdown."""
        if self._times is not None or not self._tables:
            return self._divided().figures(texts)
        table = self._tables[0] if len(self._tables) == 1 else np.concatenate(self._tables, axis=1)
        names = [STEP, UNATTRIBUTED, *(texts.text(name) or "?" for name in self._names)]
        steps, unattributed, *figures = table_figures(names, table)
        return Breakdown(steps, list(figures), unattributed)


class RankFold:
    """The breakdown of each rank. Units come by rank and start."""

    def __init__(self, texts: Texts) -> None:
        """`texts` has the names of phases."""
        self._texts = texts
        self._rank: int | None = None
        self._of_rank, self._of_all = _RankTimes(), _Times()
        self._pieces: list[tuple[np.ndarray, np.ndarray]] = []
        self._count = 0
        self.breakdowns: dict[int | None, Breakdown] = {}
        self.times: list[UnitTimes] | None = []
        """The times of each rank's units; None if there are too many units."""

    def add(self, units: Block, parts: Block) -> None:
        """Add units, and the parts of all of them in the same order."""
        units, parts = sorted_by_rank(units, parts)
        start, duration = (np.ascontiguousarray(units[name]) for name in ("start_ns", "ns"))
        ns, names = np.ascontiguousarray(parts["ns"]), np.ascontiguousarray(parts["name"])
        counts, ends = units["parts"], np.append(0, np.cumsum(units["parts"]))
        rest = _uncovered(duration, ns, counts, ends)
        of_units = _if_equal(names, ns, counts)
        table = None
        if of_units is not None:
            table = np.stack([duration, rest, *(durations for _, durations in of_units)])
        for rank, place in by_rank(units):
            if rank != self._rank:
                self._close()
                self._rank = rank
            self._pieces.append((start[place], duration[place]))
            if of_units is None or table is None:
                inside = slice(ends[place.start], ends[place.stop])
                phases = list(_by_name(names[inside], ns[inside]))
                self._of_all.add_phases(phases)
                self._of_rank.add(duration[place], rest[place], phases)
            else:
                self._of_rank.add_table([name for name, _ in of_units], table[:, place])
        self._of_all.add(duration, rest, of_units or ())

    def finish(self) -> Breakdown:
        """Return the breakdown of the units of all ranks, once all were added."""
        self._close()
        return self._of_all.figures(self._texts)

    def _close(self) -> None:
        """Compute the figures of a rank once all of its units were added."""
        if self._rank is None:
            return
        rank = known(self._rank)
        self.breakdowns[rank] = self._of_rank.figures(self._texts)
        self._count += sum(len(start) for start, _ in self._pieces)
        if self._count > _MOST_TIMES:
            self.times = None
        elif self.times is not None:
            start, ns = (np.concatenate(column) for column in zip(*self._pieces, strict=True))
            self.times.append((rank, start, ns))
        self._of_rank, self._pieces = _RankTimes(), []


def unit_times(blocks: Iterable[tuple[Block, Block]]) -> Iterator[UnitTimes]:
    """Yield each rank with the starts and the durations of its units, ns, in order."""
    pieces = (
        (rank, (units["start_ns"][place], units["ns"][place]))
        for units, _ in (sorted_by_rank(*each) for each in blocks)
        for rank, place in by_rank(units)
    )
    for rank, of_rank in groupby(pieces, key=lambda each: each[0]):
        start, ns = zip(*(columns for _, columns in of_rank), strict=True)
        yield known(rank), np.concatenate(start), np.concatenate(ns)


def _uncovered(
    unit_ns: np.ndarray, ns: np.ndarray, counts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Return the time of each unit that its parts do not cover, ns."""
    # Times of damaged records may add up to more than 64 bits: then they are Python's integers.
    is_small = int(ns.max(initial=0)) < 2**61 // max(int(counts.max(initial=0)), 1)
    inside = np.zeros(len(ns) + 1, np.int64 if is_small else object)
    inside[1:] = np.cumsum(ns if is_small else ns.astype(object))
    covered = inside[ends[1:]] - inside[ends[:-1]]  # also right if the sums have wrapped
    rest: np.ndarray = unit_ns - covered
    return rest


def _if_equal(
    names: np.ndarray, ns: np.ndarray, counts: np.ndarray
) -> list[tuple[int, np.ndarray]] | None:
    """Return each name with a duration for each unit; None if units have different names."""
    count = int(counts[0]) if len(counts) else 0
    first = names[:count].tolist()
    if not count or len(set(first)) < count or not (counts == count).all():
        return None
    if not (names.reshape(-1, count) == names[:count]).all():
        return None
    return list(zip(first, np.ascontiguousarray(ns.reshape(-1, count).T), strict=True))


def _by_name(names: np.ndarray, ns: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each name, in the order of their first occurrence, with its durations."""
    for _ in range(_MOST_NAMES):
        if not len(names):
            return
        is_first = names == names[0]
        yield int(names[0]), ns[is_first]
        names, ns = names[~is_first], ns[~is_first]
    found, at, which = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(which, kind="stable")
    durations = np.split(ns[order], np.cumsum(np.bincount(which))[:-1]) if len(found) else []
    for place in np.argsort(at).tolist():
        yield int(found[place]), durations[place]
