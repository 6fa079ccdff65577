"""The course of a run in few points: nothing is lost but the order within one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.run.opening import open_run

from .test_perfetto import batch
from .test_run_report import _START, mark, span


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 25))
def test_points_of_steps(durations: list[int], limit: int) -> None:
    spans = [span("step", ns, id=f"{n}", at=_START + n) for n, ns in enumerate(durations)]
    with open_run([batch(spans[::-1])]) as run:
        points = run.unit_points(0, limit)
    assert len(points) == min(len(durations), limit)
    place = 0
    for point in points:
        part = sorted(durations[place : place + point.count])
        assert (point.first, point.numbers) == (place, len(part))
        assert (point.low, point.high) == (part[0], part[-1])
        assert point.middle == part[(len(part) - 1) // 2]
        place += point.count
    assert place == len(durations)
    assert max((p.count for p in points), default=0) <= math.ceil(len(durations) / limit)


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_points_of_marks(limit: int) -> None:
    marks = [
        mark("loss", 3.0, 1, "s"),
        {**mark("loss", None, 2, "s"), "value_nonfinite": "nan"},
        mark("loss", 1.0, 3, "s"),
        mark("note", "warm", 1, "s"),
        mark("other", 7, 1, "s"),
    ]
    with open_run([batch([span("step", 5, id="s", rank=3)], marks)]) as run:
        series = {(each.name, each.rank): each for each in run.marks[0]}
        del series["other", 3]
        found = list(run.mark_points(lambda name, rank, _: series.get((name, rank)), limit))
    assert [each.name for each, _ in found] == ["loss", "note"]
    loss, note = (points for _, points in found)
    assert len(loss) == min(limit, 3)
    assert sum(point.numbers for point in loss) == 2
    assert (min(p.low for p in loss if p.numbers), max(p.high for p in loss)) == (1.0, 3.0)
    assert [(point.count, point.numbers) for point in note] == [(1, 0)]
