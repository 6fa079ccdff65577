"""The statistics of a measured tensor, and their representation in a snapshot record.

docs/spool-format.md, "Snapshots", defines the representation and the names of non-finite values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BINS = 16
NUDGE = 1 + 2.0**-50
"""Factor for bin numbers, so that rounding does not move a value on an edge to a lower bin."""
LARGE = 2.0**400
"""Values above this limit, or below its inverse, are scaled so that their squares fit a double."""


@dataclass(slots=True)
class Moments:
    """Sums over a tensor's finite elements, and the counts of its non-finite elements by kind."""

    count: int = 0
    nans: int = 0
    infs: int = 0
    """Positive infinities."""
    neg_infs: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    """Mean of the elements times 2**-exponent."""
    squares: float = 0.0
    """Sum of squared deviations from the mean, with the same scale."""
    exponent: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * BINS)

    @property
    def not_finite(self) -> int:
        """The number of elements that are NaN or infinite."""
        return self.nans + self.infs + self.neg_infs

    def add(self, count: int, mean: float, squares: float) -> None:
        """Add elements with the same scale (Chan, Golub, LeVeque: updating formulae)."""
        if not count:
            return
        total = self.count + count
        delta = mean - self.mean
        self.mean += delta * count / total
        self.squares += squares + delta * delta * (self.count * count / total)
        self.count = total

    def add_zeros(self, zeros: int) -> None:
        """Add zeros. The range, and so the histogram, must already include 0."""
        if zeros:
            self.add(zeros, 0.0, 0.0)
            scale = 2.0**-self.exponent
            self.counts[bin_of(0.0, self.low * scale, self.high * scale)] += zeros


def exponent_of(largest: float) -> int:
    """Return the exponent of the power of two that elements are divided by; usually 0."""
    if largest == 0 or 1 / LARGE < largest < LARGE:
        return 0
    # 2**-exponent must also be a double.
    return min(max(math.frexp(largest)[1], -900), 1000)


def bin_of(value: float, low: float, high: float) -> int:
    """Return the bin of a value; the range must be scaled with `exponent_of`."""
    if not low < high:
        return 0
    return min(int((value - low) * (NUDGE * BINS / (high - low))), BINS - 1)


def edges(low: float, high: float) -> list[float]:
    """Return the 17 evenly spaced edges of the histogram, from `low` to `high`.

    If both are equal, the edges go from `low` to `low + 1`, as in cirron-sdk: all elements are then
    in the first bin.
    """
    if low == high:
        return [low + number / BINS for number in range(BINS + 1)]
    if max(-low, high) > LARGE:  # the range, or 16 times the range, may exceed a double
        inner = edges(low / LARGE, high / LARGE)[1:BINS]
        return [low] + [max(edge * LARGE, low) for edge in inner] + [high]
    return [min(low + (high - low) * number / BINS, high) for number in range(BINS)] + [high]


def statistics(moments: Moments) -> dict[str, Any] | None:
    """Return the record's `stats`; None if the tensor has no elements.

    A statistic that is not finite is None and is listed in `nonfinite`. If some elements are not
    finite, `finite` contains the statistics of the finite elements.
    """
    if not moments.count and not moments.not_finite:
        return None
    finite = _finite(moments)
    if not moments.not_finite:
        return _json_safe(finite)
    stats: dict[str, Any] = _json_safe(_of_all(moments, finite))
    named = stats.pop("nonfinite")
    inner = {"count": moments.count} | (_json_safe(finite) if moments.count else {})
    return stats | {
        "nonfinite_count": moments.not_finite, "finite": inner, "nonfinite": named
    }  # fmt: skip


def kinds(moments: Moments) -> dict[str, int]:
    """Return the counts of non-finite elements by kind, as attributes of the record."""
    counts = {
        "nan_count": moments.nans,
        "posinf_count": moments.infs,
        "neginf_count": moments.neg_infs,
    }
    return {name: count for name, count in counts.items() if count}


def _finite(moments: Moments) -> dict[str, Any]:
    count, low, high = moments.count, moments.low, moments.high
    if not count:
        return {}
    exponent, squares = moments.exponent, moments.squares
    mean = min(max(_scaled(moments.mean, exponent), low), high)
    if low == high:
        mean, squares = low, 0.0  # any remainder of the sums is a rounding error
    norm = math.sqrt(squares + count * moments.mean * moments.mean)
    return {
        "mean": mean,
        "std": _scaled(math.sqrt(squares / count), exponent),
        "min": low,
        "max": high,
        "norm": _scaled(norm, exponent),
        "histogram": {"bins": edges(low, high), "counts": moments.counts},
    }


def _of_all(moments: Moments, finite: dict[str, Any]) -> dict[str, float]:
    """Return the statistics of all elements, including non-finite ones, as IEEE 754 defines."""
    if moments.nans:
        return dict.fromkeys(("mean", "std", "min", "max", "norm"), math.nan)
    both = moments.infs and moments.neg_infs
    infinite = math.inf if moments.infs else -math.inf
    return {
        "mean": math.nan if both else infinite,
        "std": math.nan,
        "min": -math.inf if moments.neg_infs else finite.get("min", math.inf),
        "max": math.inf if moments.infs else finite.get("max", -math.inf),
        "norm": math.inf,
    }


def _json_safe(values: dict[str, Any]) -> dict[str, Any]:
    """Replace values that JSON cannot represent with None, and list their names in `nonfinite`."""
    named = {
        key: "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        for key, value in values.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    encoded = values | dict.fromkeys(named)
    return encoded | {"nonfinite": named} if named else encoded


def _scaled(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def moments_of(row: Sequence[float]) -> Moments:
    """Convert a row with `batched.COLUMNS` to moments."""
    count, nans, infs, neg_infs = map(int, row[:4])
    low, high, mean, squares = row[4:8]
    counts = [int(value) for value in row[9:]]
    return Moments(count, nans, infs, neg_infs, low, high, mean, squares, int(row[8]), counts)
