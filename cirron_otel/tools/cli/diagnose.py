"""`cirron-otel diagnose`: the conclusion on a run, without the figures that support it."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...core.spool.directories import DEFAULT_NAME
from ...errors import UsageError
from . import output
from .engines import PYTHON, EngineSource, computed_by, engine_option
from .parameters import (
    TRACEML,
    PlacesCommand,
    from_option,
    json_option,
    rules_option,
    run_option,
    set_option,
    unit_option,
)
from .progress import progress
from .runs import report_chosen
from .sources import as_spool, shown_source

if TYPE_CHECKING:
    from ...core.analysis.run_selection import ChosenRun
    from ...core.engines.source import OpenedTables
    from ...core.records.problems import ReadingProblem
    from ...core.run.findings.finding import Finding
    from ...core.run.findings.thresholds import Limits
    from ..present.document import Document

FAILED_VERDICT = 6
"""The exit code if a finding or a verdict is as severe as `--fail-on`."""
_FAIL_ON = ("warning", "critical", "failure", "warn", "crit")
_SEVERITIES = {"warn": "warning", "crit": "critical"}


class _Concluded(NamedTuple):
    """The documents of the wanted runs of a source."""

    runs: list[tuple[ChosenRun, Document]]
    skipped: list[ReadingProblem]
    code: int
    """The exit code for problems of the source, 0 or 1."""


@click.command(cls=PlacesCommand, short_help="Name the causes of a slow or failed run.")
@click.argument("source", metavar="[SRC]", default=DEFAULT_NAME)
@from_option
@run_option
@engine_option
@unit_option
@rules_option
@click.option(
    "--window",
    "window",
    type=click.IntRange(1),
    metavar="N",
    help="With --live: the last N units of each rank. With --rules traceml: the last N steps.",
)
@set_option
@click.option(
    "--live",
    is_flag=True,
    help="Follow the job that records into SRC, a spool or a database, until it ends.",
)
@click.option(
    "--fail-on",
    "fail_on",
    type=click.Choice(_FAIL_ON),
    help="Exit with code 6 if a finding has this severity, or a worse one.",
)
@json_option
def diagnose(
    source: str,
    source_format: str | None,
    run: str | None,
    engine: str,
    unit: str | None,
    rules: str | None,
    window: int | None,
    settings: tuple[str, ...],
    live: bool,
    fail_on: str | None,
    as_json: bool,
) -> int:
    """Name the causes of a slow or failed run, with their price, and the next thing to try.

    SRC is .cirron by default; - is stdin. The last run is diagnosed, unless --run names another;
    with --run all, each run has a conclusion of its own.
    """
    from ...core.run.findings.thresholds import limits_of

    place = EngineSource(source, source_format, run)
    if live and engine != PYTHON:
        raise UsageError(f"--live needs --engine {PYTHON}")
    if live and unit is not None:
        raise UsageError("--unit cannot be combined with --live")
    if rules == TRACEML:
        changes = settings if window is None else (*settings, f"window.steps={window}")
        has_failed, code = _by_traceml(
            place, engine, changes, unit, live=live, fail_on=fail_on, as_json=as_json
        )
        return FAILED_VERDICT if has_failed else code
    limits = limits_of(settings)
    if live:
        has_failed, code = _live(place, limits, window, fail_on=fail_on, as_json=as_json)
        return FAILED_VERDICT if has_failed else code
    if window is not None:
        raise UsageError(f"--window needs --rules {TRACEML} or --live")
    if unit is not None and engine != PYTHON:
        raise UsageError(f"--unit needs --engine {PYTHON}")
    found = None if engine == PYTHON else _by_engine(engine, place, limits)
    if found is None:
        found = _in_python(place, limits, unit, lists_others=as_json)
    _show(source, found, as_json=as_json)
    findings = (finding for _, document in found.runs for finding in document.findings)
    has_failed = any(_is_failure(each, fail_on) for each in findings)
    return FAILED_VERDICT if has_failed else found.code


def _by_traceml(
    source: EngineSource,
    engine: str,
    changes: Sequence[str],
    unit: str | None,
    *,
    live: bool,
    fail_on: str | None,
    as_json: bool,
) -> tuple[bool, int]:
    """Write the verdicts; return whether one is a failure, and the exit code."""
    from ...core.analysis.verdicts.thresholds import thresholds_of
    from .diagnose_traceml import is_failure, show_verdicts

    limits = thresholds_of("live" if live else "run", changes)
    if not live:
        return show_verdicts(source, engine, limits, unit, fail_on=fail_on, as_json=as_json)
    from .diagnose_live_traceml import live_verdicts
    from .follow import follow

    return follow(
        source.name, source.format, source.run,
        lambda reader: live_verdicts(
            reader, source.run, limits,
            as_json=as_json, is_failure=lambda each: is_failure(each, fail_on),
        ),
    )  # fmt: skip


def _live(
    source: EngineSource,
    limits: Limits,
    window: int | None,
    *,
    fail_on: str | None,
    as_json: bool,
) -> tuple[bool, int]:
    """Write the findings as they change; return whether one was a failure, and the exit code."""
    from .diagnose_live import live_findings
    from .follow import follow

    return follow(
        source.name, source.format, source.run,
        lambda reader: live_findings(
            reader, source.run, limits, window,
            as_json=as_json, is_failure=lambda each: _is_failure(each, fail_on),
        ),
    )  # fmt: skip


def _is_failure(finding: Finding, fail_on: str | None) -> bool:
    """Return whether a finding is at least as severe as `fail_on`."""
    from ...core.run.findings.finding import SEVERITIES

    if fail_on is None:
        return False
    least = SEVERITIES.index(_SEVERITIES.get(fail_on, fail_on))
    return SEVERITIES.index(finding.severity) <= least


def _show(source: str, found: _Concluded, *, as_json: bool) -> None:
    from ..present.head import diagnosis_parts

    if as_json:
        output.document({
            "source": shown_source(source),
            "runs": [_json(*each) for each in found.runs],
            "skipped": [each.to_json() for each in found.skipped],
        })  # fmt: skip
        return
    for number, (_, document) in enumerate(found.runs):
        if number:
            output.result("")
        output.show_parts(diagnosis_parts(document))


def _json(chosen: ChosenRun, document: Document) -> dict[str, Any]:
    head = document.head()
    del head["source"]
    return {**head, "other_runs": list(chosen.others)}


def _in_python(
    source: EngineSource, limits: Limits, unit: str | None, *, lists_others: bool
) -> _Concluded:
    """Return the document of the wanted run, or of each run for `all`.

    With `lists_others`, the names of the other runs are needed, so all runs are read.
    """
    from ...core.analysis.run_selection import ALL, all_runs
    from ...core.run.choosing import open_chosen_run
    from ...core.run.opening import open_run
    from ...core.spool.reader import SpoolReader
    from ..present.conclude import document_of_run

    only = None if lists_others else source.run
    shown_name = shown_source(source.name)
    with progress("reading") as shown, as_spool(source.name, source.format, only) as place:
        reader = SpoolReader(place.directory, on_progress=shown)
        readers = [reader]
        runs: list[tuple[ChosenRun, Document]] = []
        if source.run == ALL:
            shown.stage("finding the runs")
            selected = all_runs(reader)
            readers += [each for _, each in selected if each is not reader]
            for number, (chosen, batches) in enumerate(selected, 1):
                of_run = f" run {number:,} of {len(selected):,}" if len(selected) > 1 else ""
                shown.stage(f"reading{of_run or ' batches'}", then=f"diagnosing{of_run}")
                batches.on_progress = shown
                with open_run(batches, batches, unit=unit) as opened:
                    document = document_of_run(
                        shown_name, opened, chosen, reader=batches, limits=limits
                    )
                runs.append((chosen, document))
        else:
            shown.stage("reading batches", then="diagnosing")
            with open_chosen_run(reader, source.run, unit=unit) as (chosen, opened):
                report_chosen(chosen, source.run)
                document = document_of_run(shown_name, opened, chosen, reader=reader, limits=limits)
            runs.append((chosen, document))
        return _Concluded(runs, place.findings(*readers), place.report_problems(*readers))


def _by_engine(engine: str, source: EngineSource, limits: Limits) -> _Concluded | None:
    """Return the documents by an engine; None, with a message, if a run needs Python."""

    def compute(tables: OpenedTables, wanted: str | None) -> list[tuple[ChosenRun, Document]]:
        from ...core.analysis.run_selection import ALL
        from ...core.run.engines.opening import engine_run
        from ..present.conclude import document_of_run

        runs = []
        for chosen, names in tables.each() if wanted == ALL else [tables.choose(wanted)]:
            with tables.run(chosen, names) as run:
                document = document_of_run(
                    shown_source(source.name), engine_run(run), run.chosen, limits=limits
                )
            runs.append((chosen, document))
        return runs

    computed = computed_by(engine, [source], compute, "diagnosis")
    if computed is None:
        return None
    [found] = computed
    for chosen, _ in found.value:
        report_chosen(chosen, source.run)
    return _Concluded(found.value, found.findings, found.report_problems())
