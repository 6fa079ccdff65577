"""The wall time of a rank by row equals that of a walk from moment to moment."""

from __future__ import annotations

import random
from itertools import groupby

import numpy as np

from cirron_otel.core.analysis.run_time import ROWS, WORK, Row
from cirron_otel.core.run.figures.wall_times import SESSION, Interval, wall_time_of

_PAUSE = SESSION + 1


def test_random_intervals() -> None:
    for seed in range(3000):
        chance = random.Random(seed)
        steps, now = [], 100
        for _ in range(chance.randrange(1, 14)):
            now += chance.choice([0, 1, 3, 10, 50])
            steps.append((now, chance.choice([0, 1, 5, 5, 20, 60])))
            now += steps[-1][1] if chance.random() < 0.7 else 0
        steps.sort()
        others: list[Interval] = []
        for _ in range(chance.randrange(1, 5)):
            start = chance.randrange(80, now + 60)
            end = start + chance.choice([0, 2, 10, 100, 400, -5])
            kind = chance.choice([0, 1, SESSION, SESSION])
            others.append((start, None if chance.random() < 0.05 else end, kind))
        first = min(start or 0 for start, *_ in (*steps, *others))
        last = max([start + ns for start, ns in steps] + [end for _, end, _ in others if end])
        steady = chance.choice([first, steps[len(steps) // 2][0], last])
        units = np.array(steps, np.int64).reshape(-1, 2)
        found = wall_time_of(units, others, steady, first, last)
        assert found.rows == _walked(steps, others, steady, first, last), seed


def _walked(
    steps: list[tuple[int, int]], others: list[Interval], steady: int, first: int, last: int
) -> dict[Row, int]:
    rows: dict[Row, int] = dict.fromkeys(ROWS, 0)
    intervals = [(start, end, kind) for start, end, kind in others if start and end is not None]
    for start, ns in steps:
        intervals.append((start, start + ns, WORK.index("warm_up" if start < steady else "steps")))
    intervals.sort()
    sessions = [number for number, each in enumerate(intervals) if each[2] == SESSION]
    ahead = intervals[: sessions[0]] if sessions else []
    until = max([first, *(start for start, *_ in ahead)]) if sessions else last
    intervals.append((first, until, SESSION))
    kinds = [
        min((kind for start, end, kind in intervals if start <= at < end), default=_PAUSE)
        for at in range(first, last)
    ]
    moments = [(kind, len([*same])) for kind, same in groupby(kinds)]
    has_worked = False
    for number, (kind, ns) in enumerate(moments):
        following = moments[number + 1][0] if number + 1 < len(moments) else _PAUSE
        if kind == _PAUSE:
            rows["pauses"] += ns
            has_worked = False
        elif kind < SESSION:
            rows[WORK[kind]] += ns
            has_worked = True
        elif not has_worked:
            rows["set_up"] += ns
        else:
            rows["after_steps" if following == _PAUSE else "between_steps"] += ns
    return rows
