"""The numbers of units: equal for the units that ranks have in common."""

from __future__ import annotations

import numpy as np

from cirron_otel.core.run.figures.unit_numbers import UnitNumbers
from cirron_otel.core.run.relations import Texts


def test_a_rank_after_one_that_repeats_units_has_a_number_for_each_of_its_own() -> None:
    numbers = UnitNumbers(Texts(), lambda _: None)
    restarted = np.array([10, 11, 10, 12, 11])
    found, is_lost = numbers.of_lane(restarted, np.array([0, 0, 1, 1, 1]))
    assert found.tolist() == [0, 1, 0, 2, 1]
    assert is_lost.tolist() == [True, True, False, False, False]
    found, is_lost = numbers.of_lane(np.array([10, 11, 12]), np.zeros(3, np.int64))
    assert found.tolist() == [0, 1, 2]
    assert is_lost.tolist() == [False] * 3
