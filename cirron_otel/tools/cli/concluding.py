"""The conclusions on the wanted runs of a source."""

# ruff: noqa: PLC0415 - imports in functions, so that commands start faster

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .engines import EngineSource, computed_by
from .progress import progress
from .runs import report_chosen
from .sources import as_spool, shown_source

if TYPE_CHECKING:
    from ...core.analysis.run_selection import ChosenRun
    from ...core.engines.source import OpenedTables
    from ...core.records.problems import ReadingProblem
    from ...core.run.findings.choices import Choices
    from ...core.run.run import Run
    from ..present.document import Document


class Concluded(NamedTuple):
    """The documents of the wanted runs of a source."""

    runs: list[tuple[ChosenRun, Document]]
    skipped: list[ReadingProblem]
    code: int
    """The exit code for problems of the source, 0 or 1."""


def in_python(
    source: EngineSource, choices: Choices, unit: str | None, *, lists_others: bool
) -> Concluded:
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

        def concluded(chosen: ChosenRun, batches: SpoolReader, opened: Run) -> None:
            document = document_of_run(
                shown_name,
                opened,
                chosen,
                reader=batches,
                choices=choices,
                missing_files=place.unconverted,
            )
            runs.append((chosen, document))

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
                with open_run(batches, batches, unit=unit, accounts=choices.accounts) as opened:
                    concluded(chosen, batches, opened)
        else:
            shown.stage("reading batches", then="diagnosing")
            with open_chosen_run(reader, source.run, unit=unit, accounts=choices.accounts) as (
                chosen,
                opened,
            ):
                report_chosen(chosen, source.run)
                concluded(chosen, reader, opened)
        return Concluded(runs, place.findings(*readers), place.report_problems(*readers))


def concluded_by(engine: str, source: EngineSource, choices: Choices) -> Concluded | None:
    """Return the documents by an engine; None, with a message, if a run needs Python."""

    def compute(tables: OpenedTables, wanted: str | None) -> list[tuple[ChosenRun, Document]]:
        from ...core.analysis.run_selection import ALL
        from ...core.run.engines.opening import engine_run
        from ..present.conclude import document_of_run

        runs = []
        for chosen, names in tables.each() if wanted == ALL else [tables.choose(wanted)]:
            with tables.run(chosen, names) as run:
                opened = engine_run(run, accounts=choices.accounts)
                document = document_of_run(
                    shown_source(source.name), opened, run.chosen, choices=choices
                )
            runs.append((chosen, document))
        return runs

    computed = computed_by(engine, [source], compute, "diagnosis")
    if computed is None:
        return None
    [found] = computed
    for chosen, _ in found.value:
        report_chosen(chosen, source.run)
    return Concluded(found.value, found.findings, found.report_problems())
