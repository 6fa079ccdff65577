"""What statistics are, in exact arithmetic: slow, short, and independent of torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

LARGEST = sys.float_info.max * (1 - 1e-12)
"""Above it, a rounding more or less decides whether a result is a double."""


def root(value: Fraction) -> float:
    """The square root, also of what no double holds; infinite where the root is no double."""
    if not value:
        return 0.0
    shift = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    try:
        return math.ldexp(math.sqrt(value / Fraction(4) ** shift), shift)
    except OverflowError:
        return math.inf


def exact(values: Sequence[float]) -> dict[str, float]:
    """mean, population std, min, max and Euclidean norm of finite values."""
    some = [Fraction(value) for value in values]
    mean = sum(some) / len(some)
    return {
        "mean": float(mean),
        "std": root(sum((value - mean) ** 2 for value in some) / len(some)),
        "min": float(min(values)),
        "max": float(max(values)),
        "norm": root(sum((value * value for value in some), Fraction(0))),
    }


def check(stats: dict[str, Any], values: Sequence[float]) -> None:
    """See that `stats` are those of finite `values`."""
    truth = exact(values)
    spread = max(map(abs, values))
    for key, expected in truth.items():
        found = stats[key]
        if expected > LARGEST and stats[key] is None:
            assert (found, stats["nonfinite"][key]) == (None, "inf"), key
        else:
            # A mean of what cancels, and a spread of what is nearly constant, are as exact as the
            # elements' size allows.
            near = pytest.approx(expected, rel=1e-12, abs=max(spread * 1e-14, 1e-320))
            assert found == near, key
    check_histogram(stats["histogram"], values)


def check_histogram(histogram: dict[str, Any], values: Sequence[float]) -> None:
    """17 edges from the least to the greatest; every element counted between its edges.

    An element that lies on an edge, as far as a double can tell, may be counted on either side.
    """
    edges, counts = histogram["bins"], histogram["counts"]
    assert (len(edges), len(counts)) == (17, 16)
    assert edges == sorted(edges)
    assert sum(counts) == len(values)
    low, high = min(values), max(values)
    assert edges[0] == low
    if low == high:
        assert edges[-1] == low + 1
        assert counts == [len(values), *[0] * 15]
        return
    assert edges[-1] == high
    slack = (Fraction(high) - Fraction(low)) * Fraction(1, 10**11)
    for number in range(1, 16):
        below = sum(counts[:number])
        edge = Fraction(low) + (Fraction(high) - Fraction(low)) * number / 16
        assert sum(value < edge - slack for value in values) <= below
        assert below <= sum(value < edge + slack for value in values)
