"""The units that failed, and the last units before some times: a fold over blocks of units."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..relations import ABSENT, NO_TEXT, Block, Texts


class PlacedUnit(NamedTuple):
    """A unit by its columns."""

    no: int
    start_ns: int
    id: str | None
    parent: str | None
    pid: int | None
    rank: int | None
    step: str | None
    error: str | None


class FailedUnitsFold:
    """The units with an error, and the unit that started last in each of some intervals."""

    def __init__(self, texts: Texts, intervals: Iterable[tuple[int, int]]) -> None:
        """The intervals are pairs of times in Unix ns."""
        self._texts = texts
        self._last: dict[tuple[int, int], PlacedUnit | None] = dict.fromkeys(intervals)
        self.failed: list[PlacedUnit] = []

    def add(self, units: Block) -> None:
        """Add units, in any order."""
        for place in np.flatnonzero(units["error"] != NO_TEXT).tolist():
            self.failed.append(self._unit(units, place))
        start, no = units["start_ns"], units["no"]
        for (first, last), known in self._last.items():
            places = np.flatnonzero((start >= first) & (start <= last))
            if len(places):
                place = int(places[np.lexsort((no[places], start[places]))[-1]])
                if known is None or (start[place], no[place]) > (known.start_ns, known.no):
                    self._last[first, last] = self._unit(units, place)

    def _unit(self, units: Block, place: int) -> PlacedUnit:
        def number(name: str) -> int:
            return int(units[name][place])

        def known(name: str) -> int | None:
            return None if (value := number(name)) == ABSENT else value

        text = self._texts.text
        return PlacedUnit(
            number("no"), number("start_ns"),
            self._texts.id_of(number("id_high"), number("id_low")), text(number("parent")),
            known("pid"), known("rank"), text(number("idx")), text(number("error")),
        )  # fmt: skip

    def last_in(self, first_ns: int, last_ns: int) -> PlacedUnit | None:
        """Return the unit that started last in one of the intervals."""
        return self._last.get((first_ns, last_ns))
