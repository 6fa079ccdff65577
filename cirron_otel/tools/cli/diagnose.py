"""`cirron-otel diagnose`: verdicts on a run by named rules."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...core.spool.directories import DEFAULT_NAME
from . import output
from .parameters import PlacesCommand, fail_on_option, from_option, json_option, run_option
from .runs import chosen_run, run_json
from .sources import as_spool, shown_source

if TYPE_CHECKING:
    from ...core.analysis.run_selection import ChosenRun
    from ...core.analysis.verdicts.diagnosis import Diagnosis
    from ...core.analysis.verdicts.thresholds import Thresholds
    from ...core.analysis.verdicts.verdict import Verdict
    from ...core.records.findings import Finding
    from .sources import OpenedSource

FAILED_VERDICT = 6
"""The exit code if a verdict is as severe as `--fail-on`."""


class DiagnosedRun(NamedTuple):
    """A run with its diagnosis."""

    chosen: ChosenRun
    diagnosis: Diagnosis
    findings: list[Finding]
    code: int
    """The exit code for problems of the source, 0 or 1."""

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `runs`."""
        return {
            "run": run_json(self.chosen),
            "other_runs": list(self.chosen.others),
            **self.diagnosis.to_json(),
        }


@click.command(cls=PlacesCommand, short_help="Name the causes of a slow run.")
@click.argument("source", metavar="[SRC]", default=DEFAULT_NAME)
@from_option
@run_option
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
@fail_on_option
@json_option
def diagnose(
    source: str,
    source_format: str | None,
    run: str | None,
    window: int | None,
    settings: tuple[str, ...],
    live: bool,
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
    if live:
        from .diagnose_live import follow

        has_failed, code = follow(
            source, source_format, run, limits,
            as_json=as_json, is_failure=lambda each: is_failure(each, fail_on),
        )  # fmt: skip
        return FAILED_VERDICT if has_failed else code
    with as_spool(source, source_format, run) as place:
        found = list(_diagnosed(place, run, limits))
    if as_json:
        output.document({
            "source": shown_source(source),
            "runs": [each.to_json() for each in found],
            "findings": [finding.to_json() for each in found for finding in each.findings],
        })  # fmt: skip
    else:
        for number, each in enumerate(found):
            if number:
                output.result("")
            show_diagnosis(shown_source(source), each.chosen, each.diagnosis)
    if any(is_failure(verdict, fail_on) for each in found for verdict in each.diagnosis.verdicts):
        return FAILED_VERDICT
    return max((each.code for each in found), default=0)


def is_failure(verdict: Verdict, fail_on: str | None) -> bool:
    """Return whether a verdict is a problem that is at least as severe as `fail_on`."""
    from ...core.analysis.verdicts.verdict import SEVERITIES

    if fail_on is None or not verdict.is_failure:
        return False
    return verdict.severity in SEVERITIES[SEVERITIES.index(fail_on) :]


def _diagnosed(
    place: OpenedSource, wanted: str | None, limits: Thresholds
) -> Iterator[DiagnosedRun]:
    """Yield the diagnosis of the wanted run, or of each run for `all`."""
    from ...core.analysis.run_selection import ALL, all_runs
    from ...core.analysis.verdicts.reading import diagnose_batches
    from ...core.spool.reader import SpoolReader

    reader = SpoolReader(place.directory)
    selected = all_runs(reader) if wanted == ALL else [(chosen_run(reader, wanted), reader)]
    for chosen, batches in selected:
        diagnosis = diagnose_batches(batches, limits, chosen.world_size)
        code = place.report_problems(batches)
        yield DiagnosedRun(chosen, diagnosis, place.findings(batches), code)
