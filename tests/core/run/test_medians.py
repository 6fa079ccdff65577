"""Medians and percentiles are those of NumPy, to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel.core.run.figures.medians import median_of, medians_of, percentiles_of
from tests.kit.examples import examples

numbers = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=30),
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=30),
)


@settings(max_examples=examples(200))
@given(numbers, st.sampled_from([(5, 25), (10, 50), (0, 100)]))
def test_figures_are_those_of_numpy(values: list[float], percents: tuple[float, float]) -> None:
    array = np.array(values)
    assert median_of(values) == np.median(array)
    assert [float(each) for each in percentiles_of(array.astype(float), percents)] == [
        float(each) for each in np.percentile(array.astype(float), percents)
    ]


@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (5, 4), (64, 33)])
def test_figures_of_tables_are_those_of_numpy(shape: tuple[int, int]) -> None:
    table = np.random.default_rng(1).random(shape)
    for axis in (0, 1):
        assert (medians_of(table, axis) == np.median(table, axis=axis)).all()
    found = percentiles_of(table, (10, 50))
    assert (np.array(found) == np.percentile(table, (10, 50), axis=1)).all()


def test_the_median_of_nothing_is_no_number() -> None:
    assert math.isnan(median_of([]))
