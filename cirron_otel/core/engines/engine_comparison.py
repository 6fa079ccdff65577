"""The figures by which `diff` compares a run with another one, by an SQL engine."""

from __future__ import annotations

import ibis

from ...semconv import SESSION
from ..analysis.divergence.dropped_marks import dropped_marks
from ..analysis.epochs import add_open_scopes
from ..analysis.run_report import diagnosis_of
from ..analysis.verdicts.thresholds import thresholds_of
from ..run.compared_run import ComparedRun, LastValue
from .engine_diagnosis import window_of
from .expressions import ascending, has_name
from .reduced_index import ReducedIndex
from .run_times import phase_names, steps_of_all
from .series import mark_series_of
from .source import OpenedRun
from .steps_by_rank import StepsByRank


def compared_run_of(run: OpenedRun) -> ComparedRun:
    """Return the figures of a run; call it at most once, and instead of a report.

    They are equal to those of `compared_run`. Raises InputError if the engine cannot read the run,
    and TargetError if there is no disk space.
    """
    engine, relations = run.engine, run.relations
    reduced = ReducedIndex(engine, run.files, run.index, relations, run.mark)
    reduced.fill(only_verdicts=True)
    index = reduced.index
    if run.paths is not None:
        add_open_scopes(index, run.paths)
    steps = window_of(run, index, thresholds_of("run"))
    diagnosis = diagnosis_of(index, steps)
    ranks = relations.span.group_by("rank").agg(spans=ibis._.count())
    names = dict.fromkeys(name for _, name in phase_names(engine, relations.phase))
    series, left_out = mark_series_of(engine, relations, run.mark, index, only_last=True)
    return ComparedRun(
        [rank for rank, _ in engine.rows(ranks.order_by(ascending(ranks.rank)))],
        steps_of_all(engine, relations, names),
        StepsByRank(engine, relations).block_medians(),
        [LastValue.of(each) for each in series],
        left_out,
        diagnosis,
        _dropped_marks(run, reduced),
    )


def _dropped_marks(run: OpenedRun, reduced: ReducedIndex) -> int:
    if not run.files.may_have_drops:
        return 0
    span = run.relations.span
    reduced.add_spans_of(span.filter(has_name(span.name, SESSION) & span.id.notnull()))
    return dropped_marks(reduced.index, run.batches)
