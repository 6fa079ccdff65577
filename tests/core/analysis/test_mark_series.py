"""The means of series by epoch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.analysis.mark_series import MarkSeries

LARGEST = sys.float_info.max


def mean_of(numbers: Sequence[float]) -> float:
    series = MarkSeries("loss", 0)
    series.add_numbers(numbers, ["0"] * len(numbers))
    (epoch,) = series.epochs
    assert epoch.count == len(numbers)
    return epoch.mean


@pytest.mark.hypothesis
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_the_mean_of_an_epoch_is_exact_but_for_its_last_digit(numbers: list[float]) -> None:
    exact = sum(map(Fraction, numbers)) / len(numbers)
    assert mean_of(numbers) == pytest.approx(float(exact), rel=1e-15, abs=5e-324)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 23])
def test_the_mean_of_the_largest_numbers_is_finite(count: int) -> None:
    assert mean_of([LARGEST] * count) == LARGEST
    assert mean_of([-LARGEST] * count) == -LARGEST
    assert mean_of([LARGEST, -LARGEST] * count) == 0
