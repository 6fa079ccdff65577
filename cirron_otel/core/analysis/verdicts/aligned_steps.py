"""The aligned steps of an index, and their mean times by rank.

A step is aligned if every rank with steps has one with the same epoch and number. All steps are in
the index on disk; memory holds one duration for each step of the window.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from ..breakdown import COMPONENTS, is_collective
from ..epochs import create_epoch_table
from ..index import SpoolIndex
from .thresholds import Thresholds
from .window import Clock, OutsideSteps, RankSteps, StepMeans, StepNumber

MAX_SCOPES: Final = 100
"""The most scopes of a rank with a row of their own; the others are summed up."""
OTHER_SCOPES: Final = "other scopes"
WAIT: Final = "wait"
"""The component of collectives."""
SCOPE: Final = "scope"
"""The component of scopes that are neither compute nor wait."""
TIMED: Final = ("h2d", "forward", "loss", "backward", "optimizer_step")
"""The phases that have a device time in a recording with one."""

RankSums: TypeAlias = tuple[int | None, int, tuple[Any, ...]]
"""The rank, whether its steps are slow, their number, and their totals, ns."""
ScopeTimes: TypeAlias = tuple[int | None, int, str, float, float]
"""The rank, whether its steps are slow, the name, and the host's and the device's total, ns."""
StepGaps: TypeAlias = dict[int | None, dict[int, float]]
"""The total times after the steps of each rank, by whether these are slow, ns."""
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
# How many phases lack a device time that recordings with one have, and how many have it.
_UNTIMED = f"""
SELECT count(CASE WHEN phase.gpu_ns IS NULL THEN 1 END), count(phase.gpu_ns)
FROM windowed CROSS JOIN phase ON phase.step = windowed.no
WHERE phase.name IN {TIMED}
"""  # noqa: S608 - constants


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
    columns[SCOPE] = "coalesce(phase.gpu_ns, phase.ns)"
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
{_PARTS} WHERE component = '{SCOPE}'
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


# The peak of a step is what torch's allocator reserved, or else what it allocated.
_STEP_PEAKS = """
SELECT windowed.rank, count(peak), max(peak), {bands}
FROM windowed JOIN (
    SELECT no, coalesce(reserved_peak, device_peak) AS peak FROM span
) USING (no) WHERE peak IS NOT NULL GROUP BY windowed.rank ORDER BY windowed.rank
"""
# The time between a step and the next one of the same session.
_OUTSIDE = """
SELECT rank, sum(ns + gap), sum(gap) FROM (
    SELECT windowed.rank, step.ns, max(coalesce(
        lead(step.start_ns) OVER following - step.start_ns - step.ns, 0
    ), 0) AS gap
    FROM windowed JOIN step USING (no) JOIN member USING (no)
    WINDOW following AS (PARTITION BY windowed.rank, member.session ORDER BY step.start_ns)
) GROUP BY rank HAVING count(*) > 1 ORDER BY rank
"""
_SUMMARISED = "SELECT count(*) FROM windowed JOIN span USING (no) WHERE span.origin IS NOT NULL"


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
                yield name, WAIT if is_collective(name) else SCOPE

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

    def present(self) -> set[int | None]:
        """Return the ranks with steps."""
        return {rank for (rank,) in self.index.rows("SELECT DISTINCT rank FROM step")}

    def summarised(self) -> int:
        """Return the number of summaries among the steps of the window."""
        return int(self.index.one(_SUMMARISED)) if self.index.has_summaries else 0

    def peaks(self, bands: Sequence[tuple[float, float]]) -> Iterator[tuple[Any, ...]]:
        """Yield the peaks of each rank with device memory: rank, number, maximum, and the mean of
        each band of the window.
        """
        position = f"(CAST(windowed.position AS REAL) / {max(self.count, 1)})"
        means = ", ".join(mean_of_band("peak", position, *band) for band in bands)
        return self.index.rows(_STEP_PEAKS.format(bands=means))

    def outside(self) -> list[OutsideSteps]:
        """Return each rank's time between the steps of the window."""
        return [OutsideSteps(*row) for row in self.index.rows(_OUTSIDE)]

    def ranks(self) -> list[RankSteps]:
        """Return the mean times of each rank."""
        gaps: StepGaps = {}
        for rank, is_slow, ns in self.index.rows(_GAPS):
            gaps.setdefault(rank, {})[is_slow] = ns
        sums = (
            (rank, is_slow, tuple(totals))
            for rank, is_slow, *totals in self.index.rows(_means_query(self.clock))
        )
        return rank_steps(sums, self.index.rows(_SCOPES), gaps, self.clock, has_slow=self.slow > 0)


def mean_of_band(value: str, position: str, low: float, high: float) -> str:
    """Return the SQL of the mean of a value over a band of the window."""
    return f"avg(CASE WHEN {position} > {low} AND {position} <= {high} THEN {value} END)"


def rank_steps(
    sums: Iterable[RankSums],
    scopes: Iterable[ScopeTimes],
    gaps: StepGaps,
    clock: Clock,
    *,
    has_slow: bool,
) -> list[RankSteps]:
    """Return the mean times of each rank from its sums, in their order."""
    others = _by_rank(scopes, clock)
    parts: dict[int | None, dict[int, tuple[Any, ...]]] = {}
    for rank, is_slow, totals in sums:
        parts.setdefault(rank, {})[is_slow] = totals
    ranks = []
    for rank, of_rank in parts.items():
        more = others.get(rank, {}), gaps.get(rank, {})
        typical = None
        if has_slow and 0 in of_rank:
            typical = _means({0: of_rank[0]}, *more)
        ranks.append(RankSteps(rank, _means(of_rank, *more), typical))
    return ranks


def _by_rank(
    rows: Iterable[ScopeTimes], clock: Clock
) -> dict[int | None, dict[int, dict[str, float]]]:
    """Return the total times of scopes that are neither compute nor wait."""
    scopes: dict[int | None, dict[int, dict[str, float]]] = {}
    for rank, is_slow, name, ns, device_ns in rows:
        times = scopes.setdefault(rank, {}).setdefault(is_slow, {})
        key = name if len(times) < MAX_SCOPES or name in times else OTHER_SCOPES
        times[key] = times.get(key, 0.0) + (ns if clock == "host" else device_ns)
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
