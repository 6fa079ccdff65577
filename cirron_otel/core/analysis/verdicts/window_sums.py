"""The window of the verdicts: the sums over the last units that all ranks have.

`WindowKeys` reads all units, and chooses those of the window; `WindowSums` reads the units and
their parts again, and adds up those of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ...run.figures.by_rank import by_rank, sorted_by_rank
from ...run.figures.durations import sums_at
from ...run.relations import ABSENT, SUMMARY, SUMS, Block, Texts, known
from .window import Clock, OutsideSteps, RankSteps, StepMeans, StepNumber
from .window_keys import ChosenUnits
from .window_parts import SCOPE, ComponentTimes

MAX_SCOPES: Final = 100
"""The maximum number of scopes of a rank with a row of their own; the others are summed up."""
_OTHER_SCOPES: Final = "other scopes"
_COLUMNS: Final = ("rank", "start_ns", "ns", "flags")
_PARTS: Final = ("input", "h2d", "forward", "backward", "optimizer", SCOPE)
_CLOCKS: Final[tuple[Clock, ...]] = ("host", "device")
_Totals: TypeAlias = dict[tuple[int, int], np.ndarray]
"""By the rank and whether units are slow: the number of units, and the totals, ns.

Sums are doubles, because times of damaged records may add up to more than 64 bits."""


class WindowSums:
    """The window of the verdicts, once all units and their parts were added, by rank and start."""

    def __init__(
        self, texts: Texts, chosen: ChosenUnits, sessions_of: Callable[[Block], np.ndarray]
    ) -> None:
        """`sessions_of` returns the session number of each unit; -1 for one without a session."""
        self._texts, self._chosen, self._sessions_of = texts, chosen, sessions_of
        self.count, self.slow = chosen.aligned, chosen.slow
        self.clock: Clock = "host"
        self._rank, self._seen = ABSENT - 1, 0
        self._timed = self._on_device = self._summarised = 0
        self._times: tuple[int | None, int | None] = None, None
        self._sums: dict[Clock, _Totals] = {clock: {} for clock in _CLOCKS}
        self._scopes: dict[tuple[int, int, int], np.ndarray] = {}
        """By the rank, whether units are slow, and the name: the host's and the device's total."""
        self._last = np.zeros((len(_COLUMNS) + 2, 0), np.int64)
        """The units of the last rank, to which more may be added, for the time between them."""
        self._gaps: dict[tuple[int, int], float] = {}
        """By the rank and whether units are slow: the time after them, ns."""
        self._outside: list[OutsideSteps] = []
        self._peaks: list[np.ndarray] = []

    def add(self, units: Block, parts: Block) -> None:
        """Add units, and the parts of all of them in the same order."""
        units, parts = sorted_by_rank(units, parts)
        place = self._places(units)
        position = np.append(self._chosen.position, 0)[place]
        chosen = np.flatnonzero(position)
        if not len(chosen):
            return
        if len(chosen) < len(place):
            inside = np.flatnonzero(np.repeat(position > 0, units["parts"]))
            units = {name: column[chosen] for name, column in units.items()}
            parts = {name: column[inside] for name, column in parts.items()}
            place, position = place[chosen], position[chosen]
        is_slow = self._chosen.is_slow[place]
        self._add_extent(units)
        self._add_parts(units, parts, is_slow)
        rows = [*(units[name] for name in _COLUMNS), is_slow, self._sessions_of(units)]
        self._last = np.concatenate([self._last, np.stack(rows)], axis=1)
        self._add_gaps(int(units["rank"][-1]))
        peak = np.where(
            units["reserved_peak"] == ABSENT, units["device_peak"], units["reserved_peak"]
        )
        has_peak = peak != ABSENT
        if has_peak.any():
            columns = units["rank"], position, peak
            self._peaks.append(np.stack([column[has_peak] for column in columns]))

    def _places(self, units: Block) -> np.ndarray:
        """Return the place of each unit among those of the first rank; -1 if it is not there."""
        found = np.full(len(units["no"]), -1)
        for rank, rows in by_rank(units):
            if rank != self._rank:
                self._rank, self._seen = rank, 0
            count = rows.stop - rows.start
            found[rows] = self._chosen.of(rank, self._seen, count)
            self._seen += count
        return found

    def _add_extent(self, units: Block) -> None:
        self._summarised += int(((units["flags"] & SUMMARY) != 0).sum())
        start, end = int(units["start_ns"].min()), int((units["start_ns"] + units["ns"]).max())
        first, last = self._times
        self._times = (
            start if first is None else min(start, first), end if last is None else max(end, last),
        )  # fmt: skip

    def _add_parts(self, units: Block, parts: Block, is_slow: np.ndarray) -> None:
        """Add the times of the components of units, and those of other scopes."""
        times = ComponentTimes(units, parts, self._texts)
        gpu = times.timed()
        self._timed += len(gpu)
        self._on_device += int((gpu != ABSENT).sum())
        ranks, group = _groups(units["rank"], is_slow)
        for clock in _CLOCKS if self._on_device == self._timed else _CLOCKS[:1]:
            totals = {part: times.total(part, clock) for part in _PARTS}
            busy = totals["h2d"] + totals["forward"] + totals["backward"] + totals["optimizer"]
            idle = totals["input"]
            if clock == "device":
                idle = np.minimum(idle, np.maximum(units["ns"] - busy, 0))
            step = np.maximum(units["ns"] - idle, busy + totals[SCOPE])
            columns = (step, idle, *(totals[name] for name in _PARTS[1:5]))
            for key, sums in _sums(ranks, group, columns):
                of_group = self._sums[clock]
                of_group[key] = of_group[key] + sums if key in of_group else sums
        for token, of_unit, host, device in times.scopes():
            for (rank, slow), sums in _sums(ranks, group[of_unit], (host, device)):
                at = rank, slow, token
                self._scopes[at] = self._scopes[at] + sums if at in self._scopes else sums

    def _add_gaps(self, before: int | None = None) -> None:
        """Add the time between the units of complete ranks: those `before` a rank, or all."""
        end = self._last.shape[1]
        if before is not None:
            end = int(np.searchsorted(self._last[0], before))
        (rank, start, ns, flags, is_slow, session), self._last = (
            self._last[:, :end], self._last[:, end:],
        )  # fmt: skip
        if not end:
            return
        ranks, group = _groups(rank, is_slow)
        is_timed = (flags & SUMS) == 0
        every = np.ones(end, np.bool_) if not is_timed.all() else is_timed
        places, gaps = _gaps(rank, session, start, ns, every)
        present, firsts, counts = _runs(rank[places])
        outside, work = sums_at(gaps[places], firsts), sums_at(ns[places], firsts)
        columns = present.tolist(), counts.tolist(), outside, work
        for number, count, outside_ns, work_ns in zip(*columns, strict=True):
            if count > 1:
                total = work_ns + outside_ns
                self._outside.append(OutsideSteps(known(number), total, outside_ns))
        if every is not is_timed:
            places, gaps = _gaps(rank, session, start, ns, is_timed)
        for (number, slow), (_, total) in _sums(ranks, group[places], (gaps[places],)):
            self._gaps[number, slow] = float(total)

    def finish(self) -> None:
        """Compute the sums."""
        self._add_gaps()
        if self._timed and self._on_device == self._timed:
            self.clock = "device"

    def ends(self) -> tuple[StepNumber | None, StepNumber | None]:
        """Return the first and the last unit; None if no units are aligned."""
        return self._chosen.ends

    def times(self) -> tuple[int | None, int | None]:
        """Return the start of the first unit and the end of the last one, Unix ns."""
        return self._times

    def present(self) -> set[int | None]:
        """Return the ranks with units."""
        return {known(rank) for rank in self._chosen.ranks}

    def summarised(self) -> int:
        """Return the number of summaries among the units of the window."""
        return self._summarised

    def peaks(self, bands: Sequence[tuple[float, float]]) -> Iterator[tuple[Any, ...]]:
        """Yield the peaks of each rank with device memory: rank, number, maximum, and the mean of
        each band of the window.
        """
        of_ranks = np.concatenate([np.zeros((3, 0), np.int64), *self._peaks], axis=1)
        ranks, firsts = np.unique(of_ranks[0], return_index=True)
        pieces = np.split(of_ranks, firsts[1:], axis=1) if len(ranks) else []
        for rank, (_, position, peak) in zip(ranks.tolist(), pieces, strict=True):
            at = position / max(self.count, 1)
            means = [
                float(some.astype(np.float64).sum() / len(some)) if len(some) else None
                for low, high in bands
                for some in (peak[(at > low) & (at <= high)],)
            ]
            yield known(rank), len(peak), int(peak.max()), *means

    def outside(self) -> list[OutsideSteps]:
        """Return each rank's time between the units of the window."""
        return self._outside

    def ranks(self) -> list[RankSteps]:
        """Return the mean times of each rank."""
        scopes = self._scope_totals()
        parts: dict[int, dict[int, _Sums]] = {}
        for key, row in sorted(self._sums[self.clock].items(), key=itemgetter(0)):
            outside = self._gaps.get(key, 0.0)
            sums = _Sums(int(row[0]), row[1:].tolist(), scopes.get(key, {}), outside)
            rank, is_slow = key
            parts.setdefault(rank, {})[is_slow] = sums
        return [
            RankSteps(
                known(rank),
                _means(list(of_rank.values())),
                _means([of_rank[0]]) if self.slow and 0 in of_rank else None,
            )
            for rank, of_rank in parts.items()
        ]

    def _scope_totals(self) -> dict[tuple[int, int], dict[str, float]]:
        """Return the total of each scope that is neither compute nor wait, by rank and slowness.

        The longest come first.
        """
        names = {token: self._texts.text(token) or "?" for _, _, token in self._scopes}
        rows = sorted(
            (-float(host), rank, is_slow, names[token], float(device))
            for (rank, is_slow, token), (_, host, device) in self._scopes.items()
        )
        scopes: dict[tuple[int, int], dict[str, float]] = {}
        for host, rank, is_slow, name, on_device in rows:
            times = scopes.setdefault((rank, is_slow), {})
            key = name if len(times) < MAX_SCOPES or name in times else _OTHER_SCOPES
            times[key] = times.get(key, 0.0) + (-host if self.clock == "host" else on_device)
        return scopes


class _Sums(NamedTuple):
    """The totals of a rank's units, slow ones apart from the others, ns."""

    units: int
    times: list[float]
    scopes: dict[str, float]
    outside: float


def _means(parts: list[_Sums]) -> StepMeans:
    count = sum(each.units for each in parts)
    scopes: dict[str, float] = {}
    for each in parts:
        for name, ns in each.scopes.items():
            scopes[name] = scopes.get(name, 0.0) + ns / count
    times = [sum(column) / count for column in zip(*(each.times for each in parts), strict=True)]
    outside = sum(each.outside for each in parts) / count
    step, idle, h2d, forward, backward, optimizer = times
    return StepMeans(step, idle, h2d, forward, backward, optimizer, scopes, outside)


def _groups(rank: np.ndarray, is_slow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks of rows in order, and for each row twice its rank's place; + 1 if slow."""
    ranks, _, counts = _runs(rank)
    return ranks, 2 * np.repeat(np.arange(len(ranks)), counts) + is_slow


def _runs(rank: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ranks of rows in order, the first row of each, and the number of its rows."""
    firsts = np.flatnonzero(np.r_[len(rank) > 0, rank[1:] != rank[:-1]])
    return rank[firsts], firsts, np.diff(firsts, append=len(rank))


def _sums(
    ranks: np.ndarray, group: np.ndarray, columns: Sequence[np.ndarray]
) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """Yield the rank of each group, whether its units are slow, their number, and the sums."""
    counts = np.bincount(group)
    sums = np.stack([counts, *(np.bincount(group, weights=column) for column in columns)], axis=1)
    found = np.flatnonzero(counts)
    keys = zip(ranks[found // 2].tolist(), (found % 2).tolist(), strict=True)
    yield from zip(keys, sums[found], strict=True)


def _gaps(
    rank: np.ndarray, session: np.ndarray, start: np.ndarray, ns: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the units with a session, by rank, and the time after each unit, ns.

    It is the time up to the next unit of the rank and session. Only the units for which `counts`
    is true are considered.
    """
    gaps = np.zeros(len(ns), np.int64)
    found = np.flatnonzero(counts & (session >= 0))
    places = found
    if (session[1:] < session[:-1]).any():
        places = found[np.lexsort((session[found], rank[found]))]
    first, after = places[:-1], places[1:]
    is_same = (session[first] == session[after]) & (rank[first] == rank[after])
    between = np.maximum(start[after] - start[first] - ns[first], 0)
    gaps[first] = np.where(is_same, between, 0)
    return found, gaps
