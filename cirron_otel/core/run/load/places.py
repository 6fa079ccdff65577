"""The file and the position of each span of a recording."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Place(NamedTuple):
    """The place of a span's record."""

    file: str
    """The name of the batch file."""
    position: int
    """The position of the record among the spans of the batch."""


class Places:
    """The batches in their order, each with the number of its first span."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._firsts: list[int] = []
        self._positions: dict[int, Sequence[int]] = {}
        """The positions of the spans of batches of which a record may be several spans."""

    def add(self, name: str, first: int, positions: Sequence[int] | None = None) -> None:
        """Add a batch, whose spans have the numbers from `first` on."""
        if positions is not None:
            self._positions[len(self.names)] = positions
        self.names.append(name)
        self._firsts.append(first)

    def files_of(self, numbers: np.ndarray) -> list[str]:
        """Return the names of the batches of spans with some numbers."""
        places = np.searchsorted(self._firsts, numbers, side="right") - 1
        return [self.names[at] for at in places.tolist()]

    def of(self, number: int) -> Place | None:
        """Return the place of the span with a number."""
        at = bisect.bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        position = number - self._firsts[at]
        positions = self._positions.get(at)
        if positions is not None:
            position = positions[position]
        return Place(self.names[at], position)
