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
from .progress import progress
from .runs_report import report

if TYPE_CHECKING:
    from rich.table import Table

    from ...core.analysis.metrics import LossMetric
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


_RIGHT = {"duration", "steps", "last", "best"}
_ORDERS = ("start", "duration", "name", "loss")
_MOST_SETTINGS = 4
_LONGEST_SETTING = 24


@runs.command(short_help="Name, time, ranks, status, steps, conclusion and loss of each run.")
@spool_argument
@click.option(
    "--sort",
    "order",
    type=click.Choice(_ORDERS),
    default="start",
    show_default=True,
    help="The order of the runs: the oldest, the shortest, or the one with the best loss first.",
)
@json_option
def ls(directory: str, order: str, as_json: bool) -> int:
    """List the runs of a spool, oldest first.

    The conclusion and the loss are those that `report` or `run` stored last, if the run has no
    newer batch. With --sort loss, the losses of the other runs are read from their batches. The
    hyperparameters and settings that differ have columns.
    """
    from ...core.analysis.runs import read_runs
    from ...core.spool.reader import SpoolReader
    from ..present.conclusion_file import is_current, read_conclusions

    reader = SpoolReader(directory)
    listing = read_runs(reader)
    listed = listing.runs[-MOST_LISTED:]
    stored = read_conclusions(reader.paths)
    conclusions = {
        run.id: stored[run.id]
        for run in listed
        if run.id in stored and is_current(stored[run.id], run.batches)
    }
    shown = _Listed(listed, conclusions, _losses(reader, listed, conclusions, order == "loss"))
    shown.sort(order)
    if as_json:
        output.document({
            "path": str(reader.paths.spool),
            "settings": shown.settings,
            "runs": [shown.to_json(run) for run in shown.runs],
            "run_count": len(listing.runs),
            "batches_unassigned": len(listing.unassigned),
            "findings": [finding.to_json() for finding in reader.findings],
        })  # fmt: skip
    else:
        if shown.runs:
            output.show(shown.table())
        else:
            output.result(f"{printable(str(reader.paths.spool))}: no run")
        if listing.unassigned:
            output.result(f"{count(len(listing.unassigned), 'batch', 'batches')} without a run")
        if len(listed) < len(listing.runs):
            output.message(f"the last {len(listed):,} of {len(listing.runs):,} runs are listed")
    output.skipped(reader.findings, reader.skipped)
    return 1 if reader.skipped else 0


runs.add_command(report)


def _losses(
    reader: SpoolReader, listed: list[Run], conclusions: dict[str, dict[str, Any]], reads: bool
) -> dict[str, LossMetric]:
    """Return the loss of each run by its id; with `reads`, also of runs without a conclusion."""
    from ...core.analysis.run_losses import shared_losses
    from ..present.conclusion_file import losses_in

    known = {id_: losses_in(each) for id_, each in conclusions.items()}
    losses = {id_: each for id_, each in known.items() if each is not None}
    if reads:
        unknown = [run for run in listed if run.id not in losses]
        losses |= _read_losses(reader, unknown)
    return shared_losses(losses)


def _read_losses(reader: SpoolReader, unknown: list[Run]) -> dict[str, list[LossMetric]]:
    from ...core.analysis.metrics import losses
    from ...core.run.opening import open_run
    from ...core.spool.reader import SpoolReader

    found = {}
    with progress("reading the losses", "runs") as bar:
        for run in bar.each(unknown):
            of_run = SpoolReader(reader.paths.root, only=run.batches)
            with open_run(of_run, of_run) as opened:
                found[run.id] = losses(opened.marks[0])
    return found


class _Listed:
    """The listed runs, with their conclusions and losses by their ids."""

    def __init__(
        self,
        runs: list[Run],
        conclusions: dict[str, dict[str, Any]],
        losses: dict[str, LossMetric],
    ) -> None:
        from ...core.analysis.run_losses import differing_settings

        self.runs, self._conclusions, self._losses = list(runs), conclusions, losses
        self.settings = differing_settings([run.resource for run in runs])
        """The hyperparameters and settings that differ."""

    def sort(self, order: str) -> None:
        """Sort the runs; those with equal keys stay in order of their start."""
        from ...core.analysis.run_losses import loss_order

        if order == "loss":
            self.runs.sort(key=lambda run: loss_order(self._losses.get(run.id)))
        elif order == "duration":
            self.runs.sort(key=lambda run: (run.duration_ns is None, run.duration_ns or 0))
        elif order == "name":
            self.runs.sort(key=lambda run: run.name)

    def to_json(self, run: Run) -> dict[str, Any]:
        """Return a run as a JSON object."""
        loss = self._losses.get(run.id)
        return {
            **run.to_json(),
            "conclusion": self._conclusions.get(run.id),
            "loss": None if loss is None else {
                "name": loss.title, "last": loss.last, "best": loss.best
            },
        }  # fmt: skip

    def table(self) -> Table:
        """Return the runs; columns without any value are left out."""
        from ...core.analysis.run_losses import short_name

        rows = [_row(run, self.runs) for run in self.runs]
        columns: list[tuple[str, list[str]]] = [
            (head, [row[place] for row in rows]) for place, head in enumerate(HEADS)
        ]
        if self._conclusions:
            cells = [_conclusion(self._conclusions.get(run.id)) for run in self.runs]
            columns.append(("conclusion", cells))
        if self._losses:
            losses = [self._losses.get(run.id) for run in self.runs]
            title = printable(next(iter(self._losses.values())).title)
            last = [_number(None if each is None else each.last) for each in losses]
            columns.append((title, last))
            columns.append(("best", [_number(e if e is None else e.best) for e in losses]))
        settings: dict[tuple[str, ...], str] = {}  # of equal columns, the first one
        for name in self.settings:
            settings.setdefault(tuple(_setting(e.resource.get(name)) for e in self.runs), name)
        for values, name in list(settings.items())[:_MOST_SETTINGS]:
            columns.append((printable(short_name(name)), list(values)))
        heads = tuple(head for head, _ in columns)
        right = _RIGHT | {each.title for each in self._losses.values()}
        return rows_table(heads, right, [*zip(*(cells for _, cells in columns), strict=True)])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _setting(value: Any) -> str:
    from ...core.analysis.run_losses import setting_text

    text = printable(setting_text(value))
    return text if len(text) <= _LONGEST_SETTING else f"{text[: _LONGEST_SETTING - 1]}…"


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
