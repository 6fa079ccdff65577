"""The slowest units: a fold over blocks of units and their parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..relations import Block, Texts


@dataclass(frozen=True, slots=True)
class SlowUnit:
    """A unit with its parts."""

    ns: int
    no: int
    row: dict[str, int]
    """Its columns."""
    parts: dict[str, int]
    """The time of each phase, ns, in the order of their first occurrence."""


@dataclass(slots=True)
class SlowestFold:
    """The `most` slowest units of all ranks, the slowest first."""

    texts: Texts
    most: int
    _found: list[SlowUnit] = field(default_factory=list)

    def add(self, units: Block, parts: Block) -> None:
        """Add units, and the parts of all of them in the same order."""
        ns, counts = units["ns"], units["parts"]
        places = np.arange(len(ns))
        if len(self._found) == self.most and self.most:
            places = np.flatnonzero(ns >= self._found[-1].ns)
        order = places[np.lexsort((units["no"][places], -ns[places]))[: self.most]]
        ends = np.cumsum(counts)
        for place in order.tolist():
            row = {name: int(column[place]) for name, column in units.items()}
            totals: dict[str, int] = {}
            inside = slice(int(ends[place] - counts[place]), int(ends[place]))
            rows = zip(
                parts["no"][inside].tolist(), parts["name"][inside].tolist(),
                parts["ns"][inside].tolist(), strict=True,
            )  # fmt: skip
            for _, token, part_ns in sorted(rows):
                name = self.texts.text(token) or "?"
                totals[name] = totals.get(name, 0) + part_ns
            self._found.append(SlowUnit(row["ns"], row["no"], row, totals))
        self._found.sort(key=lambda each: (-each.ns, each.no))
        del self._found[self.most :]

    def result(self) -> list[SlowUnit]:
        """Return the units."""
        return self._found
