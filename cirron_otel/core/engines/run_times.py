"""The times of each rank: its steps by phase, and its wall time."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

import ibis

from ...semconv import SESSION as SESSION_NAME
from ..analysis.breakdown import (
    CHECKPOINT,
    STEP,
    UNATTRIBUTED,
    Breakdown,
    PhaseTimes,
)
from ..analysis.run_time import SESSION, WORK, RankReport, Row, wall_time_of
from .engine import SqlEngine, Table
from .expressions import ascending, duration, has_name, non_negative
from .figures import figures_by_rank, figures_of
from .steps import StepRelations
from .steps_by_rank import StepsByRank

_EVAL, _RECOMPUTE = "eval", "recompute"
_KIND: Final[dict[Row, int]] = {row: number for number, row in enumerate(WORK)}

Interval: TypeAlias = tuple[Any, ...]
"""A start, an end, a kind, and the time without work, of `wall_time_of`."""


class RankTimes:
    """The reports of the ranks of a run."""

    def __init__(self, engine: SqlEngine, relations: StepRelations) -> None:
        """Compute what grows with the number of steps."""
        self._engine, self._relations = engine, relations
        self._phases = phase_figures(engine, relations.phase)
        self._steps = StepsByRank(engine, relations)
        self._steady = figures_by_rank(engine, self._steps.steady(), STEP)
        rest = _unattributed(engine, relations)
        self._unattributed = figures_by_rank(engine, rest, UNATTRIBUTED)

    def reports(self) -> list[RankReport]:
        """Return the report of each rank, in order of rank."""
        span = self._relations.span
        ranks = span.group_by("rank").agg(
            spans=span.count(), first=span.start_ns.min(), last=span.end_ns.max(),
            recompute=ibis.ifelse(has_name(span.name, _RECOMPUTE), duration(span), 0)
            .sum().cast("int64"),
        ).order_by(ascending(ibis._.rank))  # fmt: skip
        rows = list(self._engine.rows(ranks))
        others = self._other_intervals()
        step = self._relations.step
        ordered = step.order_by([ascending(step.rank), step.position])
        columns = self._engine.columns(ordered.select("rank", "start_ns", "ns"))
        times = groupby(
            chain.from_iterable(zip(*some, strict=True) for some in columns), key=itemgetter(0)
        )
        reports = []
        following = next(times, None)
        for row in rows:
            steps: Iterable[tuple[Any, ...]] = ()
            if following is not None and following[0] == row[0]:
                steps = following[1]
            reports.append(self._report(row, steps, others[row[0]]))
            if steps:
                following = next(times, None)
        return reports

    def _report(
        self, row: tuple[Any, ...], steps: Iterable[tuple[Any, ...]], others: list[Interval]
    ) -> RankReport:
        rank, spans, first_ns, last_ns, recompute_ns = row
        warm_up, first = self._steps.warm_up.get(rank, 0), self._steps.first.get(rank, [])
        all_steps, steady, unattributed = (
            figures.get(rank) or PhaseTimes(name)
            for name, figures in (
                (STEP, self._steps.figures),
                (STEP, self._steady),
                (UNATTRIBUTED, self._unattributed),
            )
        )
        phases = self._phases.get(rank, [])
        breakdown = Breakdown(all_steps, phases, unattributed, warm_up, steady)
        steady_ns = first_ns
        if warm_up:
            steady_ns = first[warm_up][0] if warm_up < len(first) else None
        limit = last_ns if steady_ns is None else steady_ns
        intervals = intervals_of(steps, others, limit or 0, last_ns or 0)
        time = wall_time_of(intervals, first_ns, last_ns)
        return RankReport(rank, spans, first_ns, last_ns, breakdown, time, int(recompute_ns or 0))

    def _other_intervals(self) -> defaultdict[int | None, list[Interval]]:
        """Return the checkpoints, evaluations and sessions of each rank, in order of start."""
        span = self._relations.span
        is_named = span.name.isin([_EVAL, SESSION_NAME]) | span.name.lower().contains(CHECKPOINT)
        rows = span.filter(is_named).select("rank", "name", "start_ns", "end_ns")
        intervals: defaultdict[int | None, list[Interval]] = defaultdict(list)
        for rank, name, start, end in self._engine.rows(rows):
            if CHECKPOINT in name.translate(_ASCII_LOWER):
                intervals[rank].append((start, end, _KIND["checkpoints"]))
            elif name in (_EVAL, SESSION_NAME):
                kind = _KIND["evaluation"] if name == _EVAL else SESSION
                intervals[rank].append((start, end, kind))
        for each in intervals.values():
            each.sort(key=_order_of)
        return intervals


def intervals_of(
    steps: Iterable[tuple[Any, ...]], others: list[Interval], steady_ns: int, last_ns: int
) -> Iterator[Interval]:
    """Yield the intervals of a rank's steps (rank, start, duration) and the others, by their start.

    The steps before `steady_ns` are warm-up. Consecutive steps of one kind are one interval, with
    the time between them, if no step overlaps them, and nothing else begins or ends during them.
    A step without a duration is an interval of its own.
    """
    times = {time for begin, end, *_ in others for time in (begin, end) if time is not None}
    joined = _joined(steps, iter(sorted({*times, last_ns})), steady_ns)
    return heapq.merge(joined, others, key=_order_of)


def _joined(
    steps: Iterable[tuple[Any, ...]], times: Iterator[int], steady_ns: int
) -> Iterator[Interval]:
    until = start = end = latest = -_NEVER
    kind, apart, is_alone = -1, 0, True
    for _, begin, ns in steps:
        of_step = _KIND["warm_up" if begin < steady_ns else "steps"]
        if of_step == kind and not is_alone and ns and end <= begin and begin + ns <= until:
            apart += begin - end
            latest = end = begin + ns
            continue
        if kind >= 0:
            yield start, end, kind, apart
        start, end, kind, apart = begin, begin + ns, of_step, 0
        is_alone = begin < latest or not ns  # an earlier one still runs, or it is no work
        latest = max(latest, end)
        while until < begin:
            until = next(times, _NEVER)
    if kind >= 0:
        yield start, end, kind, apart


_NEVER: Final = 1 << 64
_ASCII_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
"""The letters that SQLite's LIKE compares without their case."""


def _order_of(interval: Interval) -> tuple[Any, ...]:
    start, end, kind, *_ = interval
    return start is not None, start or 0, end is not None, end or 0, kind


def steps_of_all(engine: SqlEngine, relations: StepRelations, names: Iterable[str]) -> Breakdown:
    """Return the breakdown of the steps of all ranks. `names` has their phases in order."""
    figures = figures_of(engine, relations.phase.select("name", "ns"), ["name"])
    tables = {STEP: relations.step, UNATTRIBUTED: _unattributed(engine, relations)}
    steps, unattributed = (
        figures_of(engine, table.select("ns", name=ibis.literal(name)), ["name"]).get((name,))
        or PhaseTimes(name)
        for name, table in tables.items()
    )
    return Breakdown(steps, [figures[name,] for name in names], unattributed)


def _unattributed(engine: SqlEngine, relations: StepRelations) -> Table:
    """Return the time of each step that no phase covers."""
    step, phase = relations.step, relations.phase
    covered = phase.group_by("step").agg(covered=phase.ns.sum().cast("int64"))
    joined = step.left_join(covered, step.no == covered.step)
    rest = joined.select(rank=step.rank, ns=step.ns - covered.covered.fill_null(0))
    return engine.store(rest)


def phase_figures(engine: SqlEngine, phase: Table) -> dict[int | None, list[PhaseTimes]]:
    """Return the phases of each rank in the order of their first occurrence."""
    values = figures_of(engine, phase.select("rank", "name", "ns"), ["rank", "name"])
    figures: defaultdict[int | None, list[PhaseTimes]] = defaultdict(list)
    for rank, name in phase_names(engine, phase):
        figures[rank].append(values[rank, name])
    return figures


def phase_names(engine: SqlEngine, phase: Table) -> Iterator[tuple[int | None, str]]:
    """Yield each rank with the names of its phases, in the order of their first occurrence."""
    groups = engine.store(phase.group_by("rank", "name").agg(position=phase.position.min()))
    same = [
        phase.rank.identical_to(groups.rank), phase.name == groups.name,
        phase.position == groups.position,
    ]  # fmt: skip
    firsts = phase.inner_join(groups, same).select(
        rank=groups.rank, name=groups.name, position=groups.position, no=phase.no
    )
    firsts = firsts.group_by("rank", "name", "position").agg(no=firsts.no.min())
    order = firsts.order_by([ascending(firsts.rank), firsts.position, firsts.no])
    for rank, name, _, _ in engine.rows(order):
        yield rank, name


def device_times(engine: SqlEngine, span: Table) -> Iterator[tuple[int | None, str, int, int, int]]:
    """Yield the device time by rank and name: the scopes, their device time and their duration."""
    timed = span.filter(span.gpu_ns.notnull())
    timed = timed.mutate(listed=timed.name.nullif("").fill_null("?"))
    sums = timed.group_by("rank", "listed").agg(
        times=timed.count(),
        gpu_ns=non_negative(timed.gpu_ns).sum().cast("int64"),
        wall_ns=duration(timed).fill_null(0).sum().cast("int64"),
    )
    for rank, name, times, gpu_ns, wall_ns in engine.rows(sums):
        yield rank, name, times, int(gpu_ns), int(wall_ns)
