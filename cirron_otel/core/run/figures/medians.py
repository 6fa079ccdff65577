"""Medians and percentiles: NumPy's numbers, at less cost for few values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def median_of(values: np.ndarray | Sequence[float]) -> float:
    """Return the median of numbers that are not NaN; NaN if there are no numbers."""
    if not len(values):
        return float("nan")
    return float(medians_of(np.asarray(values), 0))


def medians_of(table: np.ndarray, axis: int) -> np.ndarray:
    """Return the medians along an axis with at least one number, as float64."""
    count = table.shape[axis]
    low, high = (count - 1) // 2, count // 2
    ordered = np.partition(table, (low, high), axis=axis)
    middle: np.ndarray = ordered.take(low, axis=axis).astype(np.float64)
    if high > low:
        middle = (middle + ordered.take(high, axis=axis)) / 2
    return middle


def percentiles_of(values: np.ndarray, percents: Sequence[float]) -> list[np.ndarray]:
    """Return percentiles along the last axis, which has at least one number.

    Between two numbers, they are interpolated linearly.
    """
    last = values.shape[-1] - 1
    places = [last * (percent / 100) for percent in percents]
    lows = [int(place) for place in places]
    ordered = np.partition(values, [*lows, *(min(low + 1, last) for low in lows)], axis=-1)
    found = []
    for place, low in zip(places, lows, strict=True):
        below, above = ordered[..., low], ordered[..., min(low + 1, last)]
        part, distance = place - low, above - below
        found.append(below + distance * part if part < 0.5 else above - distance * (1 - part))
    return found
