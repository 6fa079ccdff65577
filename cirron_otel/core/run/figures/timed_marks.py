"""The integers of one mark with their times, by rank: a fold over the relation `mark`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..relations import ABSENT, INTEGER, Block, Texts, known


class TimedValues(NamedTuple):
    """The values of a mark in one rank."""

    at: np.ndarray
    """The time of each mark, Unix ns."""
    values: np.ndarray


class TimedFold:
    """Collects the values of the marks with one name that are integers of 0 or more."""

    def __init__(self, texts: Texts, name: str) -> None:
        """`texts` has the names of the marks."""
        self._texts, self._name = texts, name
        self._rows: list[np.ndarray] = []

    def add(self, block: Block) -> None:
        """Add marks, in any order."""
        is_due = (block["name"] == self._texts.token(self._name)) & (block["type"] == INTEGER)
        is_due &= (block["ts_ns"] != ABSENT) & (block["value"] >= 0)
        if is_due.any():
            columns = [block[name][is_due] for name in ("rank", "ts_ns", "value")]
            self._rows.append(np.stack(columns))

    def result(self) -> dict[int | None, TimedValues]:
        """Return the values by rank, in the order in which they were added."""
        if not self._rows:
            return {}
        rank, at, values = np.concatenate(self._rows, axis=1)
        return {
            known(each): TimedValues(at[rank == each], values[rank == each])
            for each in np.unique(rank).tolist()
        }
