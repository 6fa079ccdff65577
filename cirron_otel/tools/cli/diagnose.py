"""`cirron-otel diagnose`: verdicts on a run by named rules."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...core.spool.directories import DEFAULT_NAME
from ...errors import UsageError
from . import output
from .engines import PYTHON, EngineSource, computed_by, engine_option
from .parameters import (
    PlacesCommand,
    fail_on_option,
    from_option,
    json_option,
    run_option,
    unit_option,
)
from .progress import progress
from .runs import report_chosen, run_json
from .sources import as_spool, shown_source

if TYPE_CHECKING:
    from ...core.analysis.run_selection import ChosenRun
    from ...core.analysis.verdicts.diagnosis import Diagnosis
    from ...core.analysis.verdicts.thresholds import Thresholds
    from ...core.analysis.verdicts.verdict import Verdict
    from ...core.engines.source import OpenedTables
    from ...core.records.findings import Finding

FAILED_VERDICT = 6
"""The exit code if a verdict is as severe as `--fail-on`."""


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
    findings: list[Finding]
    code: int
    """The exit code for problems of the source, 0 or 1."""


@click.command(cls=PlacesCommand, short_help="Name the causes of a slow run.")
@click.argument("source", metavar="[SRC]", default=DEFAULT_NAME)
@from_option
@run_option
@engine_option
@click.option(
    "--window",
    "window",
    type=click.IntRange(1),
    metavar="N",
    help="Diagnose the last N aligned steps; the same as --set window.steps=N.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a threshold (docs/verdicts.md lists them). Can be given several times.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Follow the job that records into SRC, a spool or a database, until it ends.",
)
@unit_option
@fail_on_option
@json_option
def diagnose(
    source: str,
    source_format: str | None,
    run: str | None,
    engine: str,
    window: int | None,
    settings: tuple[str, ...],
    live: bool,
    unit: str | None,
    fail_on: str | None,
    as_json: bool,
) -> int:
    """Name the causes of a slow run, with the numbers, the ranks, and the next thing to try.

    SRC is .cirron by default; - is stdin. The last run is diagnosed, unless --run names another;
    with --run all, each run has a diagnosis of its own.
    """
    from ...core.analysis.verdicts.thresholds import thresholds_of
    from .diagnose_text import show_diagnosis

    changes = settings if window is None else (*settings, f"window.steps={window}")
    limits = thresholds_of("live" if live else "run", changes)
    place = EngineSource(source, source_format, run)
    if unit is not None and (live or engine != PYTHON):
        raise UsageError(f"--unit needs --engine {PYTHON}, without --live")
    if live:
        if engine != PYTHON:
            raise UsageError(f"--live needs --engine {PYTHON}")
        from .diagnose_live import follow

        has_failed, code = follow(
            source, source_format, run, limits,
            as_json=as_json, is_failure=lambda each: is_failure(each, fail_on),
        )  # fmt: skip
        return FAILED_VERDICT if has_failed else code
    found = None if engine == PYTHON else _by_engine(engine, place, limits)
    if found is None:
        found = _in_python(place, limits, unit, lists_others=as_json)
    if as_json:
        output.document({
            "source": shown_source(source),
            "runs": [each.to_json() for each in found.runs],
            "findings": [finding.to_json() for finding in found.findings],
        })  # fmt: skip
    else:
        for number, each in enumerate(found.runs):
            if number:
                output.result("")
            show_diagnosis(shown_source(source), each.chosen, each.diagnosis)
    verdicts = (verdict for each in found.runs for verdict in each.diagnosis.verdicts)
    if any(is_failure(verdict, fail_on) for verdict in verdicts):
        return FAILED_VERDICT
    return found.code


def is_failure(verdict: Verdict, fail_on: str | None) -> bool:
    """Return whether a verdict is a problem that is at least as severe as `fail_on`."""
    from ...core.analysis.verdicts.verdict import SEVERITIES

    if fail_on is None or not verdict.is_failure:
        return False
    return verdict.severity in SEVERITIES[SEVERITIES.index(fail_on) :]


def _in_python(
    source: EngineSource, limits: Thresholds, unit: str | None, *, lists_others: bool
) -> _DiagnosedSource:
    """Return the diagnosis of the wanted run, or of each run for `all`.

    With `lists_others`, the names of the other runs are needed, so all runs are read.
    """
    from ...core.analysis.run_selection import ALL, all_runs
    from ...core.analysis.verdicts.diagnosis import diagnose
    from ...core.run.choosing import open_chosen_run
    from ...core.run.opening import diagnose_batches
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
                window = opened.window(limits, chosen.world_size)
                runs = [DiagnosedRun(chosen, diagnose(window, limits))]
        return _DiagnosedSource(runs, place.findings(*readers), place.report_problems(*readers))


def _by_engine(engine: str, source: EngineSource, limits: Thresholds) -> _DiagnosedSource | None:
    """Return the diagnoses by an engine; None, with a message, if a run needs Python."""

    def compute(tables: OpenedTables, wanted: str | None) -> list[DiagnosedRun]:
        from ...core.analysis.run_selection import ALL
        from ...core.analysis.verdicts.diagnosis import diagnose
        from ...core.run.engines.opening import engine_run

        runs = []
        for chosen, names in tables.each() if wanted == ALL else [tables.choose(wanted)]:
            with tables.run(chosen, names, needs_digests=False) as run:
                window = engine_run(run).window(limits, run.chosen.world_size)
                runs.append(DiagnosedRun(chosen, diagnose(window, limits)))
        return runs

    computed = computed_by(engine, [source], compute, "diagnosis")
    if computed is None:
        return None
    [found] = computed
    for each in found.value:
        report_chosen(each.chosen, source.run)
    return _DiagnosedSource(found.value, found.findings, found.report_problems())
