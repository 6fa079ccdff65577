"""The times at which ranks had computed their gradients, as DistributedDataParallel measures them.

All ranks end a backward pass together. DDP measures in some units how long each rank waited in it
for the others. The rest of the pass is the rank's own work.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .ledger import Lane, UsualBackward
from .medians import median_of, percentiles_of
from .timed_marks import TimedValues

_FEWEST: Final = 4
"""The minimum number of measured units."""
_WIDTH: Final = 1.35
"""The distance of the quartiles of a normal distribution, in deviations."""


def usual_backward(lane: Lane, times: TimedValues | None) -> UsualBackward | None:
    """Return the usual own work of a lane in backward passes; None if it is unknown.

    `times` has the times from the end of the rank's own work to that of the backward pass. The
    result is the median over the measured units. A unit with two measurements has several models,
    and none of its backward passes is known.
    """
    if times is None or not len(lane.start):
        return None
    place = np.searchsorted(lane.start, times.at, side="right") - 1
    is_inside = place >= 0
    place, exposed = place[is_inside], times.values[is_inside]
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
