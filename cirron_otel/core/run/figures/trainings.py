"""The trainings of a run, if its processes have several."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....semconv import TRAINING
from ...analysis.breakdown import STEP
from ..relations import ABSENT, INTEGER, NO_TEXT, Block, Texts
from .durations import table_figures
from .ledger import Ledger


@dataclass(frozen=True, slots=True)
class Training:
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
        self._found: dict[int, tuple[int, int]] = {}

    def add(self, block: Block) -> None:
        """Add marks, in any order. Of several names of a number, the earliest counts."""
        is_due = (block["name"] == self._texts.token(TRAINING)) & (block["type"] == INTEGER)
        is_due &= (block["device"] != NO_TEXT) & (block["ts_ns"] != ABSENT)
        columns = (block[name][is_due].tolist() for name in ("value", "ts_ns", "device"))
        for number, *found in zip(*columns, strict=True):
            at, name = found
            self._found[number] = min(self._found.get(number, (at, name)), (at, name))

    def name(self, number: int) -> str | None:
        """Return the name of a training."""
        found = self._found.get(number)
        return None if found is None else self._texts.text(found[1])


def trainings_of(ledger: Ledger | None, names: TrainingNamesFold) -> list[Training]:
    """Return the trainings in the order of their numbers; none if there is only one."""
    if ledger is None or len(numbers := ledger.trainings) < 2:
        return []
    return [_training(ledger, each, names) for each in numbers]


def _training(ledger: Ledger, number: int, names: TrainingNamesFold) -> Training:
    lanes = [(each, each.in_training(number)) for each in ledger.lanes if len(each.start)]
    start, ns, units = (
        np.concatenate([getattr(lane, name)[places] for lane, places in lanes])
        for name in ("start", "ns", "number")
    )
    size = max(lane.size for lane, _ in lanes)
    [figures] = table_figures([STEP], (ns // size)[None])
    spread = figures.spread()
    return Training(
        number, names.name(number), len(np.unique(units)) * size, spread["p50"], spread["p95"],
        int((start + ns).max() - start.min()),
    )  # fmt: skip
