"""`cirron-otel diagnose --rules traceml`: verdicts on a run by the rules of TraceML."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import UsageError
from . import output
from .engines import PYTHON, EngineSource, computed_by
from .progress import progress
from .runs import report_chosen, run_json
from .sources import as_spool, shown_source

if TYPE_CHECKING:
    from ...core.analysis.run_selection import ChosenRun
    from ...core.analysis.verdicts.diagnosis import Diagnosis
    from ...core.analysis.verdicts.thresholds import Thresholds
    from ...core.analysis.verdicts.verdict import Verdict
    from ...core.engines.source import OpenedTables
    from ...core.records.problems import ReadingProblem


_SEVERITIES = {"warning": "warn", "critical": "crit", "failure": "crit"}
"""The severities of verdicts by those of findings."""


class DiagnosedRun(NamedTuple):
    """A run with its diagnosis."""

    chosen: ChosenRun
    diagnosis: Diagnosis

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `runs`."""
        return {
            "run": run_json(self.chosen),
            "other_runs": list(self.chosen.others),
            **self.diagnosis.to_json(),
        }


class _DiagnosedSource(NamedTuple):
    """The wanted runs of a source."""

    runs: list[DiagnosedRun]
    findings: list[ReadingProblem]
    code: int
    """The exit code for problems of the source, 0 or 1."""


def show_verdicts(
    source: EngineSource,
    engine: str,
    limits: Thresholds,
    unit: str | None = None,
    *,
    fail_on: str | None,
    as_json: bool,
) -> tuple[bool, int]:
    """Write the verdicts on the wanted runs; return whether one is a failure, and the exit code."""
    from .diagnose_text import show_diagnosis

    if unit is not None and engine != PYTHON:
        raise UsageError(f"--unit needs --engine {PYTHON}")
    found = None if engine == PYTHON else _by_engine(engine, source, limits)
    if found is None:
        found = _in_python(source, limits, unit, lists_others=as_json)
    if as_json:
        output.document({
            "source": shown_source(source.name),
            "runs": [each.to_json() for each in found.runs],
            "findings": [finding.to_json() for finding in found.findings],
        })  # fmt: skip
    else:
        for number, each in enumerate(found.runs):
            if number:
                output.result("")
            show_diagnosis(shown_source(source.name), each.chosen, each.diagnosis)
    verdicts = (verdict for each in found.runs for verdict in each.diagnosis.verdicts)
    return any(is_failure(verdict, fail_on) for verdict in verdicts), found.code


def is_failure(verdict: Verdict, fail_on: str | None) -> bool:
    """Return whether a verdict is a problem that is at least as severe as `fail_on`."""
    from ...core.analysis.verdicts.verdict import SEVERITIES

    if fail_on is None or not verdict.is_failure:
        return False
    least = _SEVERITIES.get(fail_on, fail_on)
    return verdict.severity in SEVERITIES[SEVERITIES.index(least) :]


def _in_python(
    source: EngineSource, limits: Thresholds, unit: str | None, *, lists_others: bool
) -> _DiagnosedSource:
    """Return the diagnosis of the wanted run, or of each run for `all`.

    With `lists_others`, the names of the other runs are needed, so all runs are read.
    """
    from ...core.analysis.run_selection import ALL, all_runs
    from ...core.analysis.verdicts.diagnosis import diagnose
    from ...core.analysis.verdicts.run_window import diagnose_batches, step_window
    from ...core.run.choosing import open_chosen_run
    from ...core.spool.reader import SpoolReader

    only = None if lists_others else source.run
    with progress("reading") as shown, as_spool(source.name, source.format, only) as place:
        reader = SpoolReader(place.directory, on_progress=shown)
        readers = [reader]
        if source.run == ALL:
            shown.stage("finding the runs")
            selected = all_runs(reader)
            readers += [each for _, each in selected if each is not reader]
            runs = []
            for number, (chosen, batches) in enumerate(selected, 1):
                of_run = f" run {number:,} of {len(selected):,}" if len(selected) > 1 else ""
                shown.stage(f"reading{of_run or ' batches'}", then=f"diagnosing{of_run}")
                batches.on_progress = shown
                diagnosis = diagnose_batches(batches, limits, chosen.world_size, unit=unit)
                runs.append(DiagnosedRun(chosen, diagnosis))
        else:
            shown.stage("reading batches", then="diagnosing")
            with open_chosen_run(reader, source.run, unit=unit) as (chosen, opened):
                report_chosen(chosen, source.run)
                window = step_window(opened, limits, chosen.world_size)
                runs = [DiagnosedRun(chosen, diagnose(window, limits))]
        return _DiagnosedSource(runs, place.findings(*readers), place.report_problems(*readers))


def _by_engine(engine: str, source: EngineSource, limits: Thresholds) -> _DiagnosedSource | None:
    """Return the diagnoses by an engine; None, with a message, if a run needs Python."""

    def compute(tables: OpenedTables, wanted: str | None) -> list[DiagnosedRun]:
        from ...core.analysis.run_selection import ALL
        from ...core.analysis.verdicts.diagnosis import diagnose
        from ...core.analysis.verdicts.run_window import step_window
        from ...core.run.engines.opening import engine_run

        runs = []
        for chosen, names in tables.each() if wanted == ALL else [tables.choose(wanted)]:
            with tables.run(chosen, names, needs_digests=False) as run:
                window = step_window(engine_run(run), limits, run.chosen.world_size)
                runs.append(DiagnosedRun(chosen, diagnose(window, limits)))
        return runs

    computed = computed_by(engine, [source], compute, "diagnosis")
    if computed is None:
        return None
    [found] = computed
    for each in found.value:
        report_chosen(each.chosen, source.run)
    return _DiagnosedSource(found.value, found.findings, found.report_problems())
