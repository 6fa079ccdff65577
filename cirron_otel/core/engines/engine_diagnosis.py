"""The verdicts on a run of which an SQL engine computes the sums of the window."""

from __future__ import annotations

from ..analysis.index import SpoolIndex
from ..analysis.sessions import assign_sessions
from ..analysis.verdicts.diagnosis import Diagnosis
from ..analysis.verdicts.reading import diagnose_index
from ..analysis.verdicts.thresholds import Thresholds
from .reduced_index import ReducedIndex
from .source import OpenedRun
from .step_window import EngineSteps


def diagnosis_of_run(run: OpenedRun, limits: Thresholds) -> Diagnosis:
    """Return the diagnosis of a run; call it at most once, and instead of a report.

    It is equal to that of `diagnose_batches`. Raises InputError if the engine cannot read the run,
    and TargetError if there is no disk space.
    """
    reduced = ReducedIndex(run.engine, run.files, run.index, run.relations, run.mark)
    reduced.fill(only_verdicts=True)
    steps = window_of(run, reduced.index, limits)
    return diagnose_index(reduced.index, limits, run.chosen.world_size, steps=steps)


def window_of(run: OpenedRun, index: SpoolIndex, limits: Thresholds) -> EngineSteps | None:
    """Assign sessions to the records of an index, and return the window of the steps.

    `index` is the filled index of the run. None if the run has no steps.
    """
    steps = None
    if run.engine.count(run.relations.step.limit(1)):
        steps = EngineSteps(run.engine, run.relations, index, limits)
    sessions = assign_sessions(index)
    if steps is not None:
        steps.add_sessions(index, sessions)
    return steps
