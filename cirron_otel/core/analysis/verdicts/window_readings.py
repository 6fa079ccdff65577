"""Values that are not finite, and the memory of the ranks, in the window of the verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from ...records.memory_devices import CPU
from ...records.memory_marks import SAMPLE
from ...run.figures.memory import MemorySample
from ...run.relations import ABSENT, NO_TEXT, STRING, TEXT, Block, Texts, known
from .window import NonFinite, RankMemory
from .window_sums import WindowSums

_MOST_ROWS: Final = 1000
_NON_FINITE: Final = ("nan", "inf", "-inf")
_BANDS: Final = ((0.15, 0.25), (0.45, 0.55), (0.90, 1.0))


class NonFiniteFold:
    """The marks whose values are not finite."""

    def __init__(self, texts: Texts, times: tuple[int, int] | None = None) -> None:
        """Only marks from the first to the last of `times` count, in Unix ns; None: all of them."""
        self._texts, self._times = texts, times
        self._marks: dict[tuple[int, int], list[int]] = {}
        """The earliest time and the number of marks, by name and rank."""

    def add(self, block: Block) -> None:
        """Add marks, in any order."""
        is_odd = (block["ts_ns"] != ABSENT) & (block["name"] != NO_TEXT)
        if self._times is not None:
            is_odd &= (block["ts_ns"] >= self._times[0]) & (block["ts_ns"] <= self._times[1])
        tokens = [self._texts.token(each) for each in _NON_FINITE]
        is_odd &= np.isin(block["type"], (TEXT, STRING)) & np.isin(block["value"], tokens)
        for place in np.flatnonzero(is_odd).tolist():
            key = int(block["name"][place]), int(block["rank"][place])
            found = self._marks.setdefault(key, [int(block["ts_ns"][place]), 0])
            found[0] = min(found[0], int(block["ts_ns"][place]))
            found[1] += 1

    def result(self) -> list[NonFinite]:
        """Return the marks by name and rank, in order of their first one."""
        rows = sorted(
            (first, self._texts.text(name) or "", rank, times)
            for (name, rank), (first, times) in self._marks.items()
        )
        return [NonFinite(name, known(rank), times) for _, name, rank, times in rows[:_MOST_ROWS]]


def rank_memory(samples: Sequence[MemorySample], steps: WindowSums, need: int) -> list[RankMemory]:
    """Return the device memory of each rank over the window; empty if none is recorded.

    The peaks of the units are used if at least `need` units have one, else the samples.
    """
    on_device = [each for each in samples if each.scope is not None and each.memory.device != CPU]
    capacity: dict[int | None, int] = {}
    for each in on_device:
        total = each.memory.device_total
        if total is not None:
            capacity[each.rank] = max(capacity.get(each.rank, total), total)
    exact = [
        RankMemory(rank, count, peak, capacity.get(rank), _course(means))
        for rank, count, peak, *means in steps.peaks(_BANDS)
    ]
    if exact and min(each.steps for each in exact) >= need:
        return exact
    return list(_sampled(on_device, steps, capacity)) or exact


def _sampled(
    samples: Iterable[MemorySample], steps: WindowSums, capacity: dict[int | None, int]
) -> Iterator[RankMemory]:
    first_ns, last_ns = steps.times()
    if first_ns is None or last_ns is None:
        return
    extent = max(last_ns - first_ns, 1)
    sizes: dict[tuple[int | None, str], list[tuple[float, int]]] = {}
    for each in samples:
        at, memory = each.mark.ts_ns, each.memory
        size = memory.reserved if memory.reserved is not None else memory.allocated
        if memory.kind == SAMPLE and at is not None and first_ns <= at <= last_ns:
            of_device = sizes.setdefault((each.rank, memory.device), [])
            if size is not None:
                of_device.append(((at - first_ns) / extent, size))
    fullest: dict[int | None, tuple[int, list[float | None]]] = {}
    for (rank, _), found in sorted(
        sizes.items(), key=lambda each: max((size for _, size in each[1]), default=-1)
    ):
        if found:
            means = [
                math.fsum(some) / len(some) if some else None
                for low, high in _BANDS
                for some in ([size for place, size in found if low < place <= high],)
            ]
            fullest[rank] = max(size for _, size in found), means
    for rank in sorted(fullest, key=lambda rank: (rank is not None, rank or 0)):
        peak, means = fullest[rank]
        yield RankMemory(rank, steps.count, peak, capacity.get(rank), _course(means))


def _course(means: list[float | None]) -> tuple[float, float, float] | None:
    early, middle, late = means
    if early is None or middle is None or late is None:
        return None
    return early, middle, late
