"""The outermost scopes of random graphs, some with cycles."""

from __future__ import annotations

import random

import pytest

from cirron_otel.core.run.shapes.tree import outermost


def walked(row: int, around: dict[int, int]) -> int:
    """The outermost scope, or the first of a cycle that a walk reaches."""
    path = [row]
    while (above := around.get(path[-1], -1)) >= 0 and above not in path:
        path.append(above)
    return above if above >= 0 else path[-1]


@pytest.mark.parametrize("seed", range(200))
def test_the_outermost_scope_is_independent_of_the_order(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 12)
    around = {row: chance.randrange(-1, count) for row in range(count) if chance.random() < 0.9}
    rows = list(range(count))
    expected = {row: walked(row, around) for row in rows}
    for _ in range(3):
        chance.shuffle(rows)
        assert outermost(rows, around) == expected
    assert {row: outermost([row], around)[row] for row in rows} == expected
