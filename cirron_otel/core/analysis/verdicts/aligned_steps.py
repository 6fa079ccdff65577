"""The aligned steps of an index, and their mean times by rank.

A step is aligned if every rank with steps has one with the same epoch and number. All steps are in
the index on disk; memory holds one duration for each step of the window.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, Final

from ..breakdown import COMPONENTS, is_collective
from ..epochs import create_epoch_table
from ..index import SpoolIndex
from .thresholds import Thresholds
from .window import Clock, RankSteps, StepMeans, StepNumber

MAX_SCOPES: Final = 100
"""The most scopes of a rank with a row of their own; the others are summed up."""
OTHER_SCOPES: Final = "other scopes"
_WAIT, _SCOPE = "wait", "scope"
# A step that occurs again, because the job was restarted, is aligned with the same occurrence of
# the other ranks.
_ALIGNED = """
CREATE TABLE lap (
    no INTEGER PRIMARY KEY, rank INTEGER, epoch TEXT, idx TEXT, turn INTEGER, start_ns INTEGER,
    ns INTEGER
);
INSERT INTO lap
SELECT no, coalesce(rank, -1), epoch, idx,
    row_number() OVER (PARTITION BY rank, epoch, idx ORDER BY start_ns, no), start_ns, ns
FROM step LEFT JOIN epoch_of ON epoch_of.parent = step.parent;
CREATE TABLE aligned (
    position INTEGER PRIMARY KEY, epoch TEXT, idx TEXT, turn INTEGER, start_ns INTEGER,
    ns INTEGER, is_slow INTEGER
);
CREATE TABLE windowed (no INTEGER PRIMARY KEY, rank INTEGER, position INTEGER, is_slow INTEGER);
CREATE TABLE component_of (name TEXT PRIMARY KEY, component TEXT);
"""
# Positions count from 1 at the first step of the window.
_KEYS = """
INSERT INTO aligned
SELECT row_number() OVER (ORDER BY start_ns, no), epoch, idx, turn, start_ns, ns, 0 FROM (
    SELECT min(no) AS no, epoch, idx, turn, max(start_ns) AS start_ns, max(ns) AS ns
    FROM lap GROUP BY epoch, idx, turn
    HAVING count(*) = (SELECT count(DISTINCT rank) FROM lap)
    ORDER BY max(start_ns) DESC, min(no) DESC LIMIT ?
)
"""
_WINDOWED = """
CREATE INDEX lap_key ON lap (idx, epoch, turn);
INSERT INTO windowed
SELECT lap.no, nullif(lap.rank, -1), aligned.position, aligned.is_slow
FROM aligned CROSS JOIN lap ON lap.idx IS aligned.idx AND lap.epoch IS aligned.epoch
    AND lap.turn = aligned.turn;
"""
_NAMES = """
SELECT DISTINCT phase.name FROM windowed CROSS JOIN phase ON phase.step = windowed.no
"""
_PARTS = """
FROM windowed JOIN step USING (no) LEFT JOIN phase ON phase.step = windowed.no
LEFT JOIN component_of ON component_of.name = phase.name
"""
# The phases that have a device time in a recording with one: how many lack it, how many have it.
_UNTIMED = """
SELECT count(CASE WHEN phase.gpu_ns IS NULL THEN 1 END), count(phase.gpu_ns)
FROM windowed CROSS JOIN phase ON phase.step = windowed.no
WHERE phase.name IN ('h2d', 'forward', 'loss', 'backward', 'optimizer_step')
"""


_MEANS = """
SELECT rank, is_slow, count(*), total(max(wall - idle, busy + scope)), total(idle), total(h2d),
    total(forward), total(backward), total(optimizer)
FROM (
    SELECT *, {idle} AS idle FROM (
        SELECT *, h2d + forward + backward + optimizer AS busy FROM (
            SELECT windowed.rank, windowed.is_slow, step.ns AS wall, {sums}
            {parts} GROUP BY windowed.no
        )
    )
) GROUP BY rank, is_slow ORDER BY rank, is_slow
"""


def _means_query(clock: Clock) -> str:
    """Return the query for the sums over the steps of each rank, slow steps apart.

    On the device's clock, the input is the part of the loading during which the device is idle.
    """
    columns = dict.fromkeys(
        ("h2d", "forward", "backward", "optimizer"), "coalesce(phase.gpu_ns, 0)"
    )
    columns[_SCOPE] = "coalesce(phase.gpu_ns, phase.ns)"
    if clock == "host":
        columns = dict.fromkeys(columns, "phase.ns")
    columns["input"] = "phase.ns"
    sums = ", ".join(
        f"total(CASE WHEN component = '{component}' THEN {column} END) AS {component}"
        for component, column in columns.items()
    )
    idle = "input" if clock == "host" else "min(input, max(wall - busy, 0))"
    return _MEANS.format(idle=idle, sums=sums, parts=_PARTS)


_SCOPES = f"""
SELECT windowed.rank, windowed.is_slow, phase.name, total(phase.ns),
    total(coalesce(phase.gpu_ns, phase.ns))
{_PARTS} WHERE component = '{_SCOPE}'
GROUP BY windowed.rank, windowed.is_slow, phase.name ORDER BY 4 DESC
"""


# The time from a step to the next one of the same session, unless only sums are recorded.
_GAPS = """
SELECT rank, is_slow, total(gap) FROM (
    SELECT windowed.rank, windowed.is_slow, max(coalesce(
        lead(step.start_ns) OVER following - step.start_ns - step.ns, 0
    ), 0) AS gap
    FROM windowed JOIN step USING (no) JOIN span USING (no) JOIN member USING (no)
    WHERE NOT span.phases_are_sums
    WINDOW following AS (PARTITION BY windowed.rank, member.session ORDER BY step.start_ns)
) GROUP BY rank, is_slow
"""


class AlignedSteps:
    """The window of an index's aligned steps.

    `create_step_tables` must have been applied to the index; create one object per index.
    """

    def __init__(self, index: SpoolIndex, limits: Thresholds) -> None:
        """Create and fill the tables of the window."""
        self.index = index
        create_epoch_table(index, "epoch_of", "SELECT DISTINCT parent FROM step")
        index.script(_ALIGNED)
        index.change(_KEYS, [(round(limits["window.steps"]),)])
        self.slow = self._mark_slow(limits)
        index.script(_WINDOWED)
        index.change("INSERT INTO component_of VALUES (?, ?)", self._components())
        self.count = int(index.one("SELECT count(*) FROM aligned"))
        untimed, timed = next(index.rows(_UNTIMED))
        self.clock: Clock = "device" if timed and not untimed else "host"

    def _mark_slow(self, limits: Thresholds) -> int:
        """Mark the slow steps if they are few; return how many they are."""
        durations = [ns for (ns,) in self.index.rows("SELECT ns FROM aligned")]
        if not durations:
            return 0
        limit = limits["few_steps.factor"] * statistics.median(durations)
        slow = sum(1 for ns in durations if ns > limit)
        if slow > limits["few_steps.share"] * len(durations):
            return 0
        self.index.change("UPDATE aligned SET is_slow = ns > ?", [(limit,)])
        return slow

    def _components(self) -> Iterator[tuple[str, str]]:
        for (name,) in self.index.rows(_NAMES):
            if name in COMPONENTS:
                yield name, COMPONENTS[name]
            else:
                yield name, _WAIT if is_collective(name) else _SCOPE

    def ends(self) -> tuple[StepNumber | None, StepNumber | None]:
        """Return the first and the last step; None if no steps are aligned."""
        query = "SELECT epoch, idx FROM aligned WHERE position = ?"
        first, last = (next(self.index.rows(query, place), None) for place in (1, self.count))
        return (
            None if first is None else StepNumber(*first),
            None if last is None else StepNumber(*last),
        )

    def times(self) -> tuple[int | None, int | None]:
        """Return the start of the first step and the end of the last one, Unix ns."""
        query = """
            SELECT min(step.start_ns), max(step.start_ns + step.ns)
            FROM windowed JOIN step USING (no)
        """
        return next(self.index.rows(query), (None, None))

    def ranks(self) -> list[RankSteps]:
        """Return the mean times of each rank."""
        scopes = self._scopes()
        gaps: dict[int | None, dict[int, float]] = {}
        for rank, is_slow, ns in self.index.rows(_GAPS):
            gaps.setdefault(rank, {})[is_slow] = ns
        sums: dict[int | None, dict[int, tuple[Any, ...]]] = {}
        for rank, is_slow, *totals in self.index.rows(_means_query(self.clock)):
            sums.setdefault(rank, {})[is_slow] = tuple(totals)
        ranks = []
        for rank, parts in sums.items():
            of_rank = scopes.get(rank, {}), gaps.get(rank, {})
            means = _means(parts, *of_rank)
            typical = None
            if self.slow and 0 in parts:
                typical = _means({0: parts[0]}, *of_rank)
            ranks.append(RankSteps(rank, means, typical))
        return ranks

    def _scopes(self) -> dict[int | None, dict[int, dict[str, float]]]:
        """Return the total times of scopes that are neither compute nor wait."""
        scopes: dict[int | None, dict[int, dict[str, float]]] = {}
        for rank, is_slow, name, ns, device_ns in self.index.rows(_SCOPES):
            times = scopes.setdefault(rank, {}).setdefault(is_slow, {})
            key = name if len(times) < MAX_SCOPES or name in times else OTHER_SCOPES
            times[key] = times.get(key, 0.0) + (ns if self.clock == "host" else device_ns)
        return scopes


def _means(
    parts: dict[int, tuple[Any, ...]],
    scopes: dict[int, dict[str, float]],
    gaps: dict[int, float],
) -> StepMeans:
    """Return the means of the sums in `parts`, which are the slow steps' and the others'."""
    count, *totals = (sum(column) for column in zip(*parts.values(), strict=True))
    others: dict[str, float] = {}
    for is_slow in parts:
        for name, ns in scopes.get(is_slow, {}).items():
            others[name] = others.get(name, 0.0) + ns / count
    step, idle, h2d, forward, backward, optimizer = (total / count for total in totals)
    outside = sum(gaps.get(is_slow, 0.0) for is_slow in parts) / count
    return StepMeans(step, idle, h2d, forward, backward, optimizer, others, outside)
