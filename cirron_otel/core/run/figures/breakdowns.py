"""The time of the units of each rank, by phase: a fold over blocks of units and their parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...analysis.breakdown import STEP, UNATTRIBUTED, Breakdown, PhaseFigures, PhaseTimes
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
        covered = np.zeros(len(ns), np.int64)
        np.add.at(covered, of_part, parts["ns"])
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
        """Return the breakdown of each rank with units."""
        return {
            None if rank == ABSENT else rank: Breakdown(
                _times(STEP, found.steps),
                [
                    _times(self._texts.text(name) or "?", durations)
                    for name, durations in found.phases.items()
                ],
                _times(UNATTRIBUTED, found.unattributed),
            )
            for rank, found in self._ranks.items()
        }


def _times(name: str, durations: list[np.ndarray]) -> PhaseTimes:
    return PhaseTimes(name, np.concatenate(durations).tolist())


def figures_of(name: str, durations: np.ndarray) -> PhaseFigures:
    """Return the figures of some durations in ns; at least one."""
    ordered, count = np.sort(durations), len(durations)
    middle = int(ordered[(count - 1) // 2]), int(ordered[count // 2])
    p95 = int(ordered[-(-95 * count // 100) - 1])
    return PhaseFigures(name, count, int(durations.sum()), middle, p95, int(ordered[-1]))
