"""`cirron-otel runs`: list the runs of a spool, and report on many.

Other commands use this module to choose a run.
"""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...core.analysis.runs import HEADS, MOST_LISTED
from ...ids import SHORT_ID_DIGITS
from ..present.formatting import count, duration, local_moment, numbers, printable
from ..present.tables import rows_table
from . import output
from .parameters import json_option, spool_argument
from .runs_report import report

if TYPE_CHECKING:
    from rich.table import Table

    from ...core.analysis.run_selection import ChosenRun
    from ...core.analysis.runs import Run
    from ...core.spool.reader import SpoolReader


def chosen_run(reader: SpoolReader, wanted: str | None) -> ChosenRun:
    """Limit `reader` to the run named by `--run`, or else to the last run, and report which."""
    from ...core.analysis.run_selection import choose_run

    chosen = choose_run(reader, wanted)
    report_chosen(chosen, wanted)
    return chosen


def report_chosen(chosen: ChosenRun, wanted: str | None) -> None:
    """Report which run was chosen, unless the user named it."""
    from ...core.analysis.run_selection import names_text

    if wanted is None and chosen.run is not None and chosen.count > 1:
        output.message(
            f"{count(chosen.count, 'run')}; this is the last, {printable(chosen.run.name)};"
            " --run NAME or --run all selects others:"
            f" {names_text(chosen.others, chosen.count - 1)}"
        )


def run_json(chosen: ChosenRun) -> dict[str, Any] | None:
    """Return the fields of a chosen run that other documents include; None if there is none."""
    return None if chosen.run is None else {"id": chosen.run.id, "name": chosen.run.name}


@click.group(short_help="List the runs of a spool, and report on many.")
def runs() -> None:
    """List runs, and report on many.

    A run is one `profile()` or one `cirron-otel run`, with all its processes.
    """


@runs.command(short_help="Name, time, ranks, status, steps and conclusion of each run.")
@spool_argument
@json_option
def ls(directory: str, as_json: bool) -> int:
    """List the runs of a spool, oldest first.

    The conclusion is the last one that `report` or `run` stored, if the run has no newer batch.
    """
    from ...core.analysis.runs import read_runs
    from ...core.spool.reader import SpoolReader
    from ..present.conclusion_file import is_current, read_conclusions

    reader = SpoolReader(directory)
    listing = read_runs(reader)
    shown = listing.runs[-MOST_LISTED:]
    stored = read_conclusions(reader.paths)
    conclusions = {
        run.id: stored[run.id]
        for run in shown
        if run.id in stored and is_current(stored[run.id], run.batches)
    }
    if as_json:
        output.document({
            "path": str(reader.paths.spool),
            "runs": [{**run.to_json(), "conclusion": conclusions.get(run.id)} for run in shown],
            "run_count": len(listing.runs),
            "batches_unassigned": len(listing.unassigned),
            "findings": [finding.to_json() for finding in reader.findings],
        })  # fmt: skip
    else:
        if shown:
            output.show(_table(shown, conclusions))
        else:
            output.result(f"{printable(str(reader.paths.spool))}: no run")
        if listing.unassigned:
            output.result(f"{count(len(listing.unassigned), 'batch', 'batches')} without a run")
        if len(shown) < len(listing.runs):
            output.message(f"the last {len(shown):,} of {len(listing.runs):,} runs are listed")
    output.skipped(reader.findings, reader.skipped)
    return 1 if reader.skipped else 0


runs.add_command(report)

_RIGHT = {"duration", "steps"}


def _table(shown: list[Run], conclusions: dict[str, dict[str, Any]]) -> Table:
    """Return the runs; the column of conclusions is left out if there are none."""
    rows = [_row(run, shown) for run in shown]
    if not conclusions:
        return rows_table(HEADS, _RIGHT, rows)
    cells = [_conclusion(conclusions.get(run.id)) for run in shown]
    return rows_table(
        (*HEADS, "conclusion"),
        _RIGHT,
        [(*row, cell) for row, cell in zip(rows, cells, strict=True)],
    )


def _conclusion(conclusion: dict[str, Any] | None) -> str:
    """Return the status of a run with the kind of its first finding; `-` if it is unknown."""
    if conclusion is None:
        return "-"
    findings, status = conclusion.get("findings"), str(conclusion["status"])
    first = findings[0] if isinstance(findings, list) and findings else None
    kind = first.get("kind") if isinstance(first, dict) else None
    return status if status == "healthy" or not isinstance(kind, str) else f"{status}: {kind}"


def _row(run: Run, shown: list[Run]) -> tuple[str, ...]:
    return (
        printable(_short(run, shown)),
        printable(run.name),
        run.outcome,
        local_moment(run.start_ns),
        "?" if run.duration_ns is None else duration(run.duration_ns),
        _ranks(run),
        f"{run.steps:,}",
        "-" if run.script is None else printable(run.script),
    )


def _ranks(run: Run) -> str:
    more = run.rank_count - len(run.ranks)
    return numbers(run.ranks) + (f" and {more:,} more" if more else "")


def _short(run: Run, shown: list[Run]) -> str:
    """Return the shortest unique beginning of an id, at least 8 characters long."""
    length = SHORT_ID_DIGITS
    others = [each.id for each in shown if each is not run]
    while length < len(run.id) and any(each.startswith(run.id[:length]) for each in others):
        length += 1
    return run.id[:length]
