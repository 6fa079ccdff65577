"""The times at which ranks had computed their gradients, as DistributedDataParallel measures them.

All ranks end a backward pass together. DDP measures in some units how long each rank waited in it
for the others. The rest of the pass is the rank's own work.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from ....semconv import DDP_EXPOSED
from ..relations import ABSENT, INTEGER, Block, Texts
from .ledger import Lane, UsualBackward
from .medians import median_of, percentiles_of

_FEWEST: Final = 4
"""The minimum number of measured units."""
_WIDTH: Final = 1.35
"""The distance of the quartiles of a normal distribution, in deviations."""


class DdpTimes(NamedTuple):
    """The measurements of a rank."""

    at: np.ndarray
    """The end of the rank's own work, Unix ns."""
    exposed: np.ndarray
    """The time from then to the end of the backward pass, ns."""


class DdpFold:
    """Collects the measurements of all ranks."""

    def __init__(self, texts: Texts) -> None:
        """`texts` has the names of the marks."""
        self._texts = texts
        self._rows: list[np.ndarray] = []

    def add(self, block: Block) -> None:
        """Add marks, in any order."""
        is_due = (block["name"] == self._texts.token(DDP_EXPOSED)) & (block["type"] == INTEGER)
        is_due &= (block["ts_ns"] != ABSENT) & (block["value"] >= 0) & (block["rank"] != ABSENT)
        if is_due.any():
            columns = [block[name][is_due] for name in ("rank", "ts_ns", "value")]
            self._rows.append(np.stack(columns))

    def result(self) -> dict[int | None, DdpTimes]:
        """Return the measurements by rank."""
        if not self._rows:
            return {}
        rank, at, exposed = np.concatenate(self._rows, axis=1)
        return {
            each: DdpTimes(at[rank == each], exposed[rank == each])
            for each in np.unique(rank).tolist()
        }


def usual_backward(lane: Lane, times: DdpTimes | None) -> UsualBackward | None:
    """Return the usual own work of a lane in backward passes; None if it is unknown.

    It is the median over the measured units. A unit with two measurements has several models, and
    none of its backward passes is known.
    """
    if times is None or not len(lane.start):
        return None
    place = np.searchsorted(lane.start, times.at, side="right") - 1
    is_inside = place >= 0
    place, exposed = place[is_inside], times.exposed[is_inside]
    if lane.size > 1:
        own = np.maximum(median_of(lane.waiting) / lane.size - exposed, 0)
    else:
        once, count = np.unique(place, return_counts=True)
        is_once = np.isin(place, once[count == 1]) & (lane.waiting[place] > 0)
        own = np.maximum(lane.waiting[place] - exposed, 0)[is_once]
    if len(own) < _FEWEST:
        return None
    low, middle, high = percentiles_of(own, (25, 50, 75))
    return UsualBackward(float(middle), float(high - low) / _WIDTH / len(own) ** 0.5)
