"""The wall time of a rank from joined intervals equals that from single ones."""

from __future__ import annotations

import heapq
import random
from typing import Any

from cirron_otel.core.analysis.run_time import SESSION, WORK, wall_time_of
from cirron_otel.core.run.figures.wall_times import intervals_of

_WARM_UP, _STEPS = WORK.index("warm_up"), WORK.index("steps")


def _key(interval: tuple[Any, ...]) -> tuple[Any, ...]:
    start, end, *_ = interval
    return start is not None, start or 0, end is not None, end or 0


def test_joined_intervals_have_the_same_rows() -> None:
    joined = 0
    for seed in range(3000):
        chance = random.Random(seed)
        steps, now = [], 100
        for _ in range(chance.randrange(1, 14)):
            now += chance.choice([0, 1, 3, 10, 50])
            steps.append((0, now, chance.choice([0, 1, 5, 5, 20, 60])))
            now += steps[-1][2] if chance.random() < 0.7 else 0
        others: list[tuple[Any, ...]] = []
        for _ in range(chance.randrange(4)):
            start = chance.randrange(80, now + 60)
            end = start + chance.choice([0, 2, 10, 100, 400, -5])
            kind = chance.choice([0, 1, SESSION, SESSION])
            others.append((start, None if chance.random() < 0.05 else end, kind))
        others.sort(key=_key)
        first = min(start for start, *_ in (*(each[1:] for each in steps), *others))
        last = max([start + ns for _, start, ns in steps] + [end for _, end, _ in others if end])
        steady = chance.choice([first, steps[min(2, len(steps) - 1)][1], last])
        single = [
            (start, start + ns, _WARM_UP if start < steady else _STEPS) for _, start, ns in steps
        ]
        expected = wall_time_of(heapq.merge(single, others, key=_key), first, last)
        intervals = list(intervals_of([each[1:] for each in steps], others, steady, last))
        joined += len(intervals) < len(single) + len(others)
        assert wall_time_of(intervals, first, last) == expected, seed
    assert joined > 1000
