"""The time of the units of each rank, by phase: a fold over blocks of units and their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...analysis.breakdown import (
    MOST_WARM_UP,
    STEP,
    UNATTRIBUTED,
    Breakdown,
    PhaseFigures,
    warm_up_of,
)
from ..relations import ABSENT, Block, Texts


@dataclass(slots=True)
class _Durations:
    """The durations of a rank, array by array."""

    steps: list[np.ndarray] = field(default_factory=list)
    unattributed: list[np.ndarray] = field(default_factory=list)
    phases: dict[int, list[np.ndarray]] = field(default_factory=dict)
    """By the tokens of the phases' names, in the order of their first occurrence."""


class BreakdownFold:
    """The breakdown of each rank. The units of a rank are added in the order of their start."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._ranks: dict[int, _Durations] = {}

    def add(self, units: Block, parts: Block) -> None:
        """Add units, and the parts of all of them in the same order."""
        ns, counts = units["ns"], units["parts"]
        of_part = np.repeat(np.arange(len(ns)), counts)
        # Times of damaged records may add up to more than 64 bits: then they are Python's integers.
        is_small = int(parts["ns"].max(initial=0)) < 2**61 // max(int(counts.max(initial=0)), 1)
        inside = np.r_[0, np.cumsum(parts["ns"] if is_small else parts["ns"].astype(object))]
        ends = np.cumsum(counts)
        covered = inside[ends] - inside[ends - counts]  # also right if the sums have wrapped
        rest = ns - covered
        of_rank, ranks = units["rank"], units["rank"][of_part]
        for rank in np.unique(of_rank).tolist():
            found = self._ranks.setdefault(rank, _Durations())
            is_own = of_rank == rank
            found.steps.append(ns[is_own])
            found.unattributed.append(rest[is_own])
            of_parts = ranks == rank
            names, durations = parts["name"][of_parts], parts["ns"][of_parts]
            _, first = np.unique(names, return_index=True)
            for name in names[np.sort(first)].tolist():
                found.phases.setdefault(name, []).append(durations[names == name])

    def result(self) -> dict[int | None, Breakdown]:
        """Return the breakdown of each rank with units, without the durations."""
        return {
            None if rank == ABSENT else rank: self._figures([found])
            for rank, found in self._ranks.items()
        }

    def together(self) -> Breakdown:
        """Return the breakdown of the units of all ranks, without the durations."""
        return self._figures([self._ranks[rank] for rank in sorted(self._ranks)])

    def _figures(self, ranks: Sequence[_Durations]) -> Breakdown:
        phases: dict[int, list[np.ndarray]] = {}
        for each in ranks:
            for name, durations in each.phases.items():
                phases.setdefault(name, []).extend(durations)
        units = _joined([durations for each in ranks for durations in each.steps])
        steps = figures_of(STEP, units)
        warm_up = warm_up_of(steps, units[:MOST_WARM_UP].tolist())
        rest = _joined([durations for each in ranks for durations in each.unattributed])
        return Breakdown(
            steps,
            [
                figures_of(self._texts.text(name) or "?", _joined(durations))
                for name, durations in phases.items()
            ],
            figures_of(UNATTRIBUTED, rest),
            warm_up,
            figures_of(STEP, units[warm_up:]),
        )


def _joined(durations: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *durations])


def figures_of(name: str, durations: np.ndarray) -> PhaseFigures:
    """Return the figures of some durations in ns."""
    ordered = np.sort(durations)
    return PhaseFigures.of(name, len(ordered), sum_of(ordered), lambda place: int(ordered[place]))


def sum_of(numbers: np.ndarray) -> int:
    """Return the exact sum of numbers of 64 bits."""
    if not len(numbers):
        return 0
    largest = max(abs(int(numbers.max())), abs(int(numbers.min())))
    if largest < 2**62 // len(numbers):
        return int(numbers.sum())
    return sum(numbers.tolist())
