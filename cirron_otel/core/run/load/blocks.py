"""The units of a recording in order, in blocks, each with its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ..relations import Block
from .columns import Columns

_AT_ONCE: Final = 1 << 13


def unit_blocks(
    units: Columns, parts: Columns, *, by_rank: bool = True, size: int = _AT_ONCE
) -> Iterator[tuple[Block, Block]]:
    """Yield the units by rank, start and number, and the parts of these units in order.

    Without `by_rank`, they are ordered by start and number.
    """
    table, below = units.table(), parts.table()
    at = {name: number for number, name in enumerate(units.names)}
    order = np.lexsort(units.taken(*("no", "start_ns", "rank")[: 2 + by_rank]).T)
    counts = units.taken("parts")[:, 0]
    firsts = np.cumsum(counts) - counts
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        rows = table[chosen]
        places = ranges(firsts[chosen], counts[chosen])
        inside = below[places]
        yield (
            {name: rows[:, number] for name, number in at.items()},
            {name: inside[:, number] for number, name in enumerate(parts.names)},
        )
        units.release()
        parts.release()


def ranges(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the numbers from each first one on, as many as its count."""
    ends = np.cumsum(counts)
    offsets = np.repeat(firsts - (ends - counts), counts)
    return offsets + np.arange(len(offsets))
