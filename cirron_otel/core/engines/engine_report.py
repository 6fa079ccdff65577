"""The report of a run whose steps an SQL engine aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ibis

from ..analysis.bound import bound_of
from ..analysis.epochs import add_open_scopes
from ..analysis.failures import ENDED, failures_of
from ..analysis.mark_series import MAX_SERIES
from ..analysis.memory_series import memory_report
from ..analysis.run_report import (
    GpuTime,
    RunReport,
    SlowStep,
    diagnosis_of,
    drops_of,
)
from ..analysis.summary import SessionSummary, sessions_of, with_processes
from ..analysis.verdicts.thresholds import thresholds_of
from .engine_diagnosis import window_of
from .expressions import descending, has_name
from .reduced_index import ReducedIndex
from .run_times import RankTimes, device_times
from .series import mark_series_of
from .source import OpenedRun
from .steps import StepRelations

_MOST_LEVELS = 64


def report_of(run: OpenedRun, slowest: int = 10) -> RunReport:
    """Return the report of a run; call it at most once.

    The report is equal to that of `report_run` on an index of the same batches. Raises InputError
    if the engine cannot read the run, and TargetError if there is no disk space.
    """
    engine, relations, mark = run.engine, run.relations, run.mark
    reduced = ReducedIndex(engine, run.files, run.index, relations, mark)
    reduced.fill()
    index = reduced.index
    if run.paths is not None:
        add_open_scopes(index, run.paths)
    steps = window_of(run, index, thresholds_of("run"))
    ranks = RankTimes(engine, relations).reports()
    sessions = sessions_of(index)
    if run.paths is not None:
        sessions = with_processes(sessions, run.paths, adds=run.is_complete)
    _add_for_failures(reduced, relations, mark, sessions)
    marks, left_out = mark_series_of(engine, relations, mark, index)
    bound, straggler = bound_of(ranks)
    summarised = 0
    if index.has_summaries:
        origins = relations.span.filter(relations.span.origin.notnull()).select("origin")
        summarised = engine.count(origins.distinct())
    return RunReport(
        sum(each.spans for each in ranks),
        ranks,
        list(_slowest(run, slowest)),
        marks,
        left_out,
        _device_times(run),
        failures_of(index, run.batches, sessions),
        drops_of(index, run.batches, sessions) if run.files.may_have_drops else [],
        bound,
        straggler,
        memory_report(index),
        diagnosis_of(index, steps),
        summarised,
        None,
    )


def _device_times(run: OpenedRun) -> list[GpuTime]:
    times = [
        GpuTime(rank, name, count, int(float(gpu_ns)), int(float(wall_ns)))
        for rank, name, count, gpu_ns, wall_ns in device_times(run.engine, run.relations.span)
    ]
    times.sort(key=lambda each: (each.rank is not None, each.rank or 0, -each.gpu_ns, each.name))
    return times[:MAX_SERIES]


def _slowest(run: OpenedRun, count: int) -> Iterator[SlowStep]:
    engine, step, phase = run.engine, run.relations.step, run.relations.phase
    slow = engine.store(step.order_by([descending(step.ns), step.no]).limit(count))
    phases = phase.semi_join(slow, phase.step == slow.no)
    totals: dict[int, dict[str, int]] = {}
    for number, name, ns in engine.rows(phases.order_by("no").select("step", "name", "ns")):
        of_step = totals.setdefault(number, {})
        of_step[name] = of_step.get(name, 0) + ns
    columns = ("no", "id", "parent", "rank", "idx", "start_ns", "ns")
    rows = list(engine.rows(slow.order_by([descending(slow.ns), slow.no]).select(*columns)))
    epochs = _epochs_above(run, {row[2] for row in rows if row[2] is not None})
    for number, span_id, parent, rank, idx, start_ns, ns in rows:
        yield SlowStep(span_id, rank, epochs.get(parent), idx, start_ns, ns, totals.get(number, {}))


def _epochs_above(run: OpenedRun, parents: set[str]) -> dict[str | None, str | None]:
    """Return the index of the epoch that each parent is, or is in."""
    scope = run.relations.around.select("id", "name", "idx", "parent")
    above = {parent: parent for parent in parents}
    epochs: dict[str | None, str | None] = {}
    scopes: dict[str, tuple[str | None, str | None, str | None]] = {}
    for _ in range(_MOST_LEVELS):
        if not above:
            break
        if unread := set(above.values()) - scopes.keys():
            scopes |= dict.fromkeys(unread, (None, None, None))
            rows = run.engine.rows(scope.filter(scope.id.isin(sorted(unread))))
            scopes |= {id_: (name, idx, parent) for id_, name, idx, parent in rows}
        higher: dict[str, str] = {}
        for parent, id_ in above.items():
            name, idx, up = scopes[id_]
            if name == "epoch":
                epochs[parent] = idx
            elif up is not None:
                higher[parent] = up
        above = higher
    return epochs


def _add_for_failures(
    reduced: ReducedIndex,
    relations: StepRelations,
    mark: Any,
    sessions: list[SessionSummary],
) -> None:
    """Add the records that failures name: a rank's last loss, and the last step of a job."""
    ended = [each for each in sessions if each.state in ENDED and each.id is not None]
    if not ended:
        return
    span, engine = relations.span, reduced.engine
    times: set[int] = set()
    query = (
        "SELECT span.end_ns FROM session JOIN span ON span.id = session.key WHERE state IN (?, ?)"
    )
    times.update(end for (end,) in reduced.index.rows(query, *ENDED) if end is not None)
    times.update(each.end_ns for each in ended if each.end_ns is not None)
    losses = mark.filter(mark.name.lower().contains("loss"))
    joined = losses.inner_join(span, losses.span == span.id)
    ranked = engine.store(joined.select(*(losses[name] for name in losses.columns), rank=span.rank))
    for time_ns in sorted(times):
        past = ranked.filter(ranked.ts_ns <= time_ns)
        window = ibis.window(
            group_by=past.rank,
            order_by=[past.name != "loss", descending(past.ts_ns), ibis.desc(past.no)],
        )
        last = past.mutate(place=ibis.row_number().over(window))
        chosen = last.filter(last.place == 0).select(*mark.columns)
        reduced.add_marks_of(engine.store(chosen))
    for each in ended:
        if each.start_ns is not None and each.end_ns is not None:
            steps = span.filter(
                has_name(span.name, "step") & span.start_ns.between(each.start_ns, each.end_ns)
            )
            steps = steps.order_by([ibis.desc(steps.start_ns), ibis.desc(steps.no)])
            reduced.add_spans_of(engine.store(steps.limit(1)))
