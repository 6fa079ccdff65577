"""The rows of blocks of units by rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..relations import Block


def sorted_by_rank(units: Block, parts: Block) -> tuple[Block, Block]:
    """Return a block with its ranks in order. The rows of a rank keep their order.

    Blocks come in the order of ranks, so a rank is complete when a higher one follows.
    """
    ranks = units["rank"]
    if (ranks[1:] >= ranks[:-1]).all():
        return units, parts
    order = np.argsort(ranks, kind="stable")
    places = np.argsort(np.repeat(ranks, units["parts"]), kind="stable")
    return (
        {name: column[order] for name, column in units.items()},
        {name: column[places] for name, column in parts.items()},
    )


def by_rank(units: Block) -> Iterator[tuple[int, slice]]:
    """Yield each rank of a sorted block with the place of its units."""
    ranks = units["rank"]
    bounds = [0, *(np.flatnonzero(ranks[1:] != ranks[:-1]) + 1).tolist(), len(ranks)]
    for first, end in pairwise(bounds):
        if first < end:
            yield int(ranks[first]), slice(first, end)
