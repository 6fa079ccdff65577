"""The shape of recordings of other services, which have no scopes with a known meaning."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..relations import NO_TEXT
from .tree import Kind, Tree


def shape(tree: Tree, names: np.ndarray, wanted: int | None = None) -> None:
    """Make the repeated scope with the largest total the unit.

    `names` has the token of each scope's name; `NO_TEXT` for scopes that do not count. The scopes
    below roots that contain others are searched; without repeated ones, the roots. `wanted` is the
    token of the name that the user has chosen.
    """
    chosen = _repeated(tree, names) if wanted is None else wanted
    if chosen is None:
        return
    is_named = names == chosen
    inside = tree.holders(is_named)
    for row in np.flatnonzero(is_named & (inside < 0)).tolist():
        tree.name[row] = Kind.STEP


def _repeated(tree: Tree, names: np.ndarray) -> int | None:
    """Return the name with the largest total; of two equal totals, the one that is first."""
    contains = np.zeros(len(names), bool)
    contains[tree.above[tree.above >= 0]] = True
    is_below = tree.above >= 0
    for is_possible in (is_below, ~is_below):
        totals: Counter[int] = Counter()
        counts: Counter[int] = Counter()
        for row in np.flatnonzero(contains & is_possible & (names != NO_TEXT)).tolist():
            if tree.is_timed(row):
                totals[int(names[row])] += tree.end[row] - tree.start[row]
                counts[int(names[row])] += 1
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            return max(repeated, key=lambda name: totals[name])
    return None
