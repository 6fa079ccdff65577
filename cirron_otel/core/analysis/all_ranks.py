"""The steps of all ranks together: medians and percentiles without the durations in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .breakdown import STEP, UNATTRIBUTED, Breakdown, PhaseFigures, PhaseTimes, place_of_95
from .index import SpoolIndex
from .run_time import RankReport

_WANTED = "CREATE TABLE wanted (name TEXT, place INTEGER, PRIMARY KEY (name, place)) WITHOUT ROWID;"
_STEPS: Final = "SELECT 'step' AS name, ns FROM step"
_PHASES: Final = "SELECT name, ns FROM phase"
_UNATTRIBUTED: Final = """
SELECT 'unattributed' AS name, step.ns - coalesce(sum(phase.ns), 0) AS ns
FROM step LEFT JOIN phase ON phase.step = step.no GROUP BY step.no
"""
_CHOSEN = """
SELECT name, place, ns FROM (
    SELECT name, ns, row_number() OVER (PARTITION BY name ORDER BY ns) - 1 AS place FROM ({source})
) WHERE (name, place) IN (SELECT name, place FROM wanted)
"""


def steps_of_all(index: SpoolIndex, ranks: Sequence[RankReport]) -> Breakdown:
    """Return the breakdown of the steps of all ranks, after `report_run`; at most once per index.

    It is equal to `joined` of the ranks' breakdowns with durations. Raises TargetError if there is
    no disk space.
    """
    index.script(_WANTED)
    parts = [each.steps for each in ranks]
    phases: dict[str, list[PhaseTimes]] = {}
    for part in parts:
        for each in part.phases:
            phases.setdefault(each.name, []).append(each)
    (steps,) = _figures(index, _STEPS, {STEP: [part.steps for part in parts]})
    rests = {UNATTRIBUTED: [part.unattributed for part in parts]}
    (unattributed,) = _figures(index, _UNATTRIBUTED, rests)
    return Breakdown(steps, _figures(index, _PHASES, phases), unattributed)


def _figures(
    index: SpoolIndex, source: str, series: Mapping[str, Sequence[PhaseTimes]]
) -> list[PhaseTimes]:
    """Return the figures of each name; `series` has those of each rank."""
    counts = {name: sum(each.times for each in parts) for name, parts in series.items()}
    index.change("DELETE FROM wanted", [()])
    index.change(
        "INSERT OR IGNORE INTO wanted VALUES (?, ?)",
        ((name, place) for name, count in counts.items() for place in _places(count)),
    )
    rows = index.rows(_CHOSEN.format(source=source))
    chosen = {(name, place): ns for name, place, ns in rows}
    figures: list[PhaseTimes] = []
    for name, parts in series.items():
        low, high, p95 = (chosen.get((name, place), 0) for place in _places(counts[name]))
        total_ns = sum(each.total_ns for each in parts)
        max_ns = max((each.max_ns for each in parts), default=0)
        figures.append(PhaseFigures(name, counts[name], total_ns, (low, high), p95, max_ns))
    return figures


def _places(count: int) -> tuple[int, int, int]:
    """Return the places of the two middle ones, and of the 95th percentile, of sorted values."""
    return (count - 1) // 2, count // 2, place_of_95(count)
