"""The trainings of a run, if its processes have several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....semconv import TRAINING
from ...analysis.breakdown import STEP
from ..relations import ABSENT, INTEGER, NO_TEXT, Block, Texts
from .durations import table_figures
from .ledger import Lane, Ledger, Places


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """The units of a training, over all ranks."""

    number: int
    """The number within the process, from 0."""
    name: str | None
    """The name that the program gives it; None without one."""
    units: int
    """The number of distinct units, however many ranks repeat each of them."""
    p50_ns: int
    p95_ns: int
    duration_ns: int
    """The time from the start of its first unit to the end of its last one."""


class TrainingNamesFold:
    """Collects the names of trainings from the marks at their beginnings."""

    def __init__(self, texts: Texts) -> None:
        """`texts` has the names of the marks and of the trainings."""
        self._texts = texts
        self._names: dict[int, tuple[int, int]] = {}
        """By number: the time of the mark, and the token of the name."""

    def add(self, block: Block) -> None:
        """Add marks, in any order. Of several names of a number, the earliest counts."""
        is_due = (block["name"] == self._texts.token(TRAINING)) & (block["type"] == INTEGER)
        is_due &= (block["device"] != NO_TEXT) & (block["ts_ns"] != ABSENT)
        columns = (block[name][is_due].tolist() for name in ("value", "ts_ns", "device"))
        for number, at, name in zip(*columns, strict=True):
            self._names[number] = min(self._names.get(number, (at, name)), (at, name))

    def name(self, number: int) -> str | None:
        """Return the name of a training."""
        _, token = self._names.get(number, (0, NO_TEXT))
        return self._texts.text(token)


def trainings_of(ledger: Ledger | None, names: TrainingNamesFold) -> list[TrainingFigures]:
    """Return the trainings in the order of their numbers; none if there is only one."""
    units: dict[int, list[tuple[Lane, Places]]] = {}
    for lane in () if ledger is None else ledger.lanes:
        for number, places in lane.trainings():
            units.setdefault(number, []).append((lane, places))
    if len(units) < 2:
        return []
    return [_figures(number, units[number], names.name(number)) for number in sorted(units)]


def _figures(
    number: int, lanes: Sequence[tuple[Lane, Places]], name: str | None
) -> TrainingFigures:
    start, ns, units = (
        np.concatenate([getattr(lane, column)[places] for lane, places in lanes])
        for column in ("start", "ns", "number")
    )
    size = max(lane.size for lane, _ in lanes)
    [figures] = table_figures([STEP], (ns // size)[None])
    spread = figures.spread()
    return TrainingFigures(
        number, name, len(np.unique(units)) * size, spread["p50"], spread["p95"],
        int((start + ns).max() - start.min()),
    )  # fmt: skip
