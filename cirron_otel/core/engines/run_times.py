"""The times of each rank: its steps by phase, and its wall time."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final

import ibis

from ...semconv import SESSION as SESSION_NAME
from ..analysis.breakdown import CHECKPOINT, STEP, Breakdown, PhaseFigures, PhaseTimes
from ..analysis.run_time import SESSION, WORK, RankReport, Row, wall_time_of
from .engine import SqlEngine, Table
from .expressions import ascending, duration, has_name, non_negative
from .steps import StepRelations

_EVAL, _RECOMPUTE = "eval", "recompute"
_KIND: Final[dict[Row, int]] = {row: number for number, row in enumerate(WORK)}

Interval = tuple[int | None, int | None, int]
"""A start, an end, and a kind of `wall_time_of`."""


class RankTimes:
    """The reports of the ranks of a run."""

    def __init__(self, engine: SqlEngine, relations: StepRelations) -> None:
        """Compute what grows with the number of steps."""
        self._engine, self._relations = engine, relations
        self._phases = phase_figures(engine, relations.phase)

    def reports(self) -> list[RankReport]:
        """Return the report of each rank, in order of rank."""
        span = self._relations.span
        ranks = span.group_by("rank").agg(
            spans=span.count(), first=span.start_ns.min(), last=span.end_ns.max(),
            recompute=ibis.ifelse(has_name(span.name, _RECOMPUTE), duration(span), 0)
            .sum().cast("int64"),
        ).order_by(ascending(ibis._.rank))  # fmt: skip
        rows = list(self._engine.rows(ranks))
        steps = self._steps()
        others = self._other_intervals()
        return [self._report(row, steps.get(row[0], ([], [], [])), others[row[0]]) for row in rows]

    def _report(
        self, row: tuple[Any, ...], steps: tuple[list[int], ...], others: list[Interval]
    ) -> RankReport:
        rank, spans, first_ns, last_ns, recompute_ns = row
        starts, durations, unattributed = steps
        breakdown = Breakdown(
            PhaseTimes(STEP, durations),
            self._phases.get(rank, []),
            PhaseTimes("unattributed", unattributed),
        )
        warm_up = breakdown.warm_up
        steady_ns = first_ns
        if warm_up:
            steady_ns = starts[warm_up] if warm_up < len(starts) else None
        limit = last_ns if steady_ns is None else steady_ns
        of_steps = (
            (start, start + ns, _KIND["warm_up" if start < limit else "steps"])
            for start, ns in zip(starts, durations, strict=True)
        )
        intervals = heapq.merge(of_steps, others, key=_start_and_end)
        time = wall_time_of(intervals, first_ns, last_ns)
        return RankReport(rank, spans, first_ns, last_ns, breakdown, time, int(recompute_ns or 0))

    def _steps(self) -> dict[int | None, tuple[list[int], list[int], list[int]]]:
        """Return the starts, durations and unattributed times of the steps of each rank."""
        step, phase = self._relations.step, self._relations.phase
        covered = phase.group_by("step").agg(covered=phase.ns.sum().cast("int64"))
        joined = step.left_join(covered, step.no == covered.step)
        rows = joined.select(
            rank=step.rank, position=step.position, start_ns=step.start_ns, ns=step.ns,
            rest=step.ns - covered.covered.fill_null(0),
        ).order_by([ascending(ibis._.rank), ibis._.position])  # fmt: skip
        steps: dict[int | None, tuple[list[int], list[int], list[int]]] = {}
        for rank, group in groupby(self._engine.rows(rows), key=itemgetter(0)):
            _, _, starts, durations, unattributed = zip(*group, strict=True)
            steps[rank] = list(starts), list(durations), list(map(int, unattributed))
        return steps

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
            each.sort(key=_start_and_end)
        return intervals


_ASCII_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
"""The letters that SQLite's LIKE compares without their case."""


def _start_and_end(interval: Interval) -> tuple[Any, ...]:
    start, end, _ = interval
    return start is not None, start or 0, end is not None, end or 0


def steps_of_all(
    engine: SqlEngine, relations: StepRelations, ranks: Sequence[RankReport]
) -> Breakdown:
    """Return the breakdown of the steps of all ranks."""
    phase = relations.phase.mutate(rank=ibis.literal(0))
    figures = {each.name: each for each in phase_figures(engine, phase).get(0, [])}
    names = dict.fromkeys(each.name for rank in ranks for each in rank.steps.phases)
    steps = chain.from_iterable(rank.steps.steps.durations for rank in ranks)
    unattributed = chain.from_iterable(rank.steps.unattributed.durations for rank in ranks)
    return Breakdown(
        PhaseTimes(STEP, list(steps)),
        [figures[name] for name in names],
        PhaseTimes("unattributed", list(unattributed)),
    )


def phase_figures(engine: SqlEngine, phase: Table) -> dict[int | None, list[PhaseTimes]]:
    """Return the phases of each rank in the order of their first occurrence.

    The medians and the 95th percentiles are exact: the engine selects the durations there.
    """
    groups = engine.store(
        phase.group_by("rank", "name").agg(
            total=phase.ns.sum().cast("int64"), position=phase.position.min()
        )
    )
    same = [
        phase.rank.identical_to(groups.rank), phase.name == groups.name,
        phase.position == groups.position,
    ]  # fmt: skip
    firsts = phase.inner_join(groups, same).select(
        rank=groups.rank, name=groups.name, total=groups.total, position=groups.position,
        no=phase.no,
    )  # fmt: skip
    firsts = firsts.group_by("rank", "name", "total", "position").agg(no=firsts.no.min())
    window = ibis.window(group_by=[phase.rank, phase.name], order_by=[phase.ns])
    whole = ibis.window(group_by=[phase.rank, phase.name])
    placed = phase.select(
        "rank", "name", "ns", place=ibis.row_number().over(window), times=phase.count().over(whole)
    )
    times = placed.times
    p95 = (times * 95 + 99) // 100 - 1
    places = [(times - 1) // 2, times // 2, p95, times - 1]
    chosen = placed.filter(placed.place.isin(places)).order_by("place")
    values: defaultdict[tuple[int | None, str], list[tuple[int, int, int]]] = defaultdict(list)
    for rank, name, ns, place, count in engine.rows(chosen):
        values[rank, name].append((place, ns, count))
    order = firsts.order_by([ascending(firsts.rank), firsts.position, firsts.no])
    figures: defaultdict[int | None, list[PhaseTimes]] = defaultdict(list)
    for rank, name, total, _, _ in engine.rows(order):
        figures[rank].append(_figures(name, int(total), values[rank, name]))
    return figures


def _figures(name: str, total_ns: int, values: list[tuple[int, int, int]]) -> PhaseFigures:
    count = values[0][2]
    by_place = {place: ns for place, ns, _ in values}
    middle = by_place[(count - 1) // 2], by_place[count // 2]
    p95 = by_place[(count * 95 + 99) // 100 - 1]
    return PhaseFigures(name, count, total_ns, middle, p95, by_place[count - 1])


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
