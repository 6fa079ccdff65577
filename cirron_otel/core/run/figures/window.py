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
from ...analysis.verdicts.thresholds import Thresholds
from ...analysis.verdicts.window import Clock, OutsideSteps, RankSteps, StepMeans, StepNumber
from ..relations import ABSENT, SUMMARY, SUMS, Block, Texts
from .breakdowns import sum_of

_KEY: Final = ("rank", "parent", "idx", "start_ns", "ns", "no")
UNIT_KEYS: Final = ("no", "parent", "pid", "start_ns")
"""The columns that determine the session of a unit."""
MAX_SCOPES: Final = 100
"""The most scopes of a rank with a row of their own; the others are summed up."""
_OTHER_SCOPES: Final = "other scopes"
_WAIT: Final = "wait"
"""The component of collectives."""
_SCOPE: Final = "scope"
"""The component of scopes that are neither compute nor wait."""
_TIMED: Final = ("h2d", "forward", "loss", "backward", "optimizer_step")
"""The phases that have a device time in a recording with one."""
_PARTS: Final = ("input", "h2d", "forward", "backward", "optimizer", _SCOPE)


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
        """`sessions_of` returns the session number of each unit; -1 for one without a session."""
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
        # A job may have thousands of ranks: no array is searched for each of them.
        self._ranks, self._rank_of = np.unique(self._rank, return_inverse=True)
        self._group = 2 * self._rank_of.reshape(-1) + self._is_slow
        parts = np.concatenate([np.zeros((4, 0), np.int64), *self._parts], axis=1)
        self._of_unit = np.searchsorted(self._no, parts[0])
        self._name, self._part_ns, self._part_gpu = parts[1:]
        names = np.unique(self._name).tolist()
        self._components = {token: _component(self._texts.text(token) or "") for token in names}
        is_timed = np.isin(
            self._name, [token for token in names if self._texts.text(token) in _TIMED]
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
        for rank, places in self._by_rank(self._peak != ABSENT):
            peak, at = self._peak[places], place[places]
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
        found = []
        for rank, places in self._by_rank(self._session >= 0):
            if len(places) > 1:
                outside = sum_of(gaps[places])
                total = sum_of(self._ns[places]) + outside
                found.append(OutsideSteps(_rank(rank), total, outside))
        return found

    def _by_rank(self, counts: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each rank with the places of its units for which `counts` is true."""
        if not len(self._ranks):
            return
        places = np.flatnonzero(counts)
        places = places[np.argsort(self._rank_of[places], kind="stable")]
        ends = np.searchsorted(self._rank_of[places], np.arange(1, len(self._ranks)))
        yield from zip(self._ranks.tolist(), np.split(places, ends), strict=True)

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
        step = np.maximum(self._ns - idle, busy + totals[_SCOPE])
        columns = (step, idle, *(totals[name] for name in _PARTS[1:5]))
        timed = (self._flags & SUMS) == 0
        gap = self._gaps(timed)
        every = np.arange(len(self._no))
        with_gap = np.flatnonzero(timed & (self._session >= 0))
        gaps = {key[:2]: total for key, total in self._sums(with_gap, gap[with_gap])}
        scopes = self._scopes()
        parts: dict[int, dict[int, _Sums]] = {}
        for of_group in zip(*(self._sums(every, column) for column in columns), strict=True):
            rank, is_slow, count = of_group[0][0]
            key = rank, is_slow
            sums = _Sums(
                count, [total for _, total in of_group], scopes.get(key, {}), gaps.get(key, 0.0)
            )
            parts.setdefault(rank, {})[is_slow] = sums
        return [
            RankSteps(
                _rank(rank),
                _means(list(of_rank.values())),
                _means([of_rank[0]]) if self.slow and 0 in of_rank else None,
            )
            for rank, of_rank in parts.items()
        ]

    def _sums(
        self, units: np.ndarray, values: np.ndarray
    ) -> list[tuple[tuple[int, int, int], float]]:
        """Return the sum of the values of some units for each rank, slow units apart.

        A key has the rank, whether the units are slow, and the number of values. Sums are doubles,
        because times of damaged records may add up to more than 64 bits.
        """
        groups = self._group[units]
        counts = np.bincount(groups)
        sums = np.bincount(groups, weights=values)
        return [
            ((int(self._ranks[group // 2]), group % 2, int(counts[group])), float(sums[group]))
            for group in np.flatnonzero(counts).tolist()
        ]

    def _by_component(self) -> dict[str, np.ndarray]:
        """Return the time of each component in each unit, ns."""
        device = np.where(self._part_gpu == ABSENT, 0, self._part_gpu)
        found = {}
        for component in _PARTS:
            tokens = [token for token, each in self._components.items() if each == component]
            is_one = np.isin(self._name, tokens)
            ns = self._part_ns
            if self.clock == "device" and component != "input":
                other = self._part_ns if component == _SCOPE else 0
                ns = np.where(self._part_gpu == ABSENT, other, device)
            found[component] = np.bincount(
                self._of_unit[is_one], weights=ns[is_one], minlength=len(self._no)
            )
        return found

    def _scopes(self) -> dict[tuple[int, int], dict[str, float]]:
        """Return the total of each scope that is neither compute nor wait, by rank and slowness.

        The longest come first.
        """
        device = np.where(self._part_gpu == ABSENT, self._part_ns, self._part_gpu)
        rows = []
        for token, component in self._components.items():
            if component != _SCOPE:
                continue
            is_one, name = self._name == token, self._texts.text(token) or "?"
            units = self._of_unit[is_one]
            hosts, devices = (self._sums(units, ns[is_one]) for ns in (self._part_ns, device))
            for ((rank, slow, _), host), (_, on_device) in zip(hosts, devices, strict=True):
                rows.append((-host, rank, slow, name, on_device))
        scopes: dict[tuple[int, int], dict[str, float]] = {}
        for host, rank, slow, name, on_device in sorted(rows, key=lambda row: row[:4]):
            times = scopes.setdefault((rank, slow), {})
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


def _component(name: str) -> str:
    return COMPONENTS.get(name) or (_WAIT if is_collective(name) else _SCOPE)


def _rank(rank: int) -> int | None:
    return None if rank == ABSENT else rank
