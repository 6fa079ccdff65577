"""Builds the document of a run from its figures, its ledger and its findings."""

# ruff: noqa: PLC0415 - numpy is imported with the figures, so that commands start faster

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .document import Conclusion, Document, NotAssessed, Setting, document_of
from .ledger_rows import ledger_rows
from .open_scopes import OpenScope, open_scopes_of
from .unit_figures import phase_rows, scope_rows, unit_figures

if TYPE_CHECKING:
    from ...core.analysis.run_selection import ChosenRun
    from ...core.records.problems import ReadingProblem
    from ...core.run.findings.choices import Choices
    from ...core.run.run import Run
    from ...core.spool.paths import SpoolPaths
    from ...core.spool.reader import SpoolReader


def conclude(
    run: Run,
    unit: str = "step",
    world_size: int | None = None,
    choices: Choices | None = None,
    missing_files: int = 0,
) -> Conclusion:
    """Return the conclusion on a run. Raises TargetError if there is no disk space.

    `unit` is the name of a unit. `world_size` is the number of ranks that the run should have, if
    it is known. `choices` are the thresholds and the ignored findings, by default none.
    `missing_files` are parts of another source that could not be converted.
    """
    from ...core.run.findings import conclude as rules
    from ...core.run.findings.choices import Choices
    from ...core.run.findings.run_facts import facts_of

    choices = Choices() if choices is None else choices
    facts = facts_of(run, unit=unit, world_size=world_size, missing_files=missing_files)
    findings, ignored = choices.divided(rules.conclude(facts, choices.limits))
    if choices.rate is not None:
        for each in (*findings, *ignored):
            each.amount = choices.rate.amount(each.cost_ns)
    return Conclusion(
        findings,
        rules.status_of(findings),
        rules.headline_of(findings, facts),
        facts.state,
        [NotAssessed(**each) for each in rules.not_assessed(facts)],
        choices.limits.to_json(),
        ignored,
    )


def document_of_run(
    source: str,
    run: Run,
    chosen: ChosenRun | None = None,
    *,
    reader: SpoolReader | None = None,
    choices: Choices | None = None,
    world_size: int | None = None,
    missing_files: int = 0,
) -> Document:
    """Return the document of a run. Raises TargetError if there is no disk space.

    `source` has no credentials. `reader` has the batches of the run if they are in a spool; without
    it, the scopes that are open are unknown. `world_size` is the number of ranks that the run
    should have, by default that of `chosen`. `missing_files` is the number of parts of the source
    that could not be converted.
    """
    from ...core.run.report import report_of

    figures = report_of(run)
    unit = run.recording.unit_name
    units = unit_figures(
        figures, run.ledger, unit, errors=run.failed_units, tokens=run.unit_tokens,
        trainings=run.trainings,
    )  # fmt: skip
    if world_size is None and chosen is not None:
        world_size = chosen.world_size
    conclusion = conclude(run, unit, world_size, choices, missing_files)
    opened: list[OpenScope] = []
    if reader is not None and conclusion.state == "running":
        names = set(run.recording.files())
        if chosen is not None and chosen.run is not None:
            names |= chosen.run.batches  # also those without records
        opened = _open_scopes(reader.paths, names)
    return document_of(
        source,
        chosen,
        figures,
        ledger_rows(run.ledger, None if choices is None else choices.rate),
        units,
        conclusion,
        sessions=run.sessions,
        phases=phase_rows(figures.together),
        scopes=scope_rows(run.recording.tree.scopes) if units is None else (),
        open_scopes=opened,
        configuration=[
            Setting(name, value, list(ranks))
            for name, values in run.settings.items()
            for value, ranks in values.items()
        ],
    )


def add_skipped(document: Document, skipped: Sequence[ReadingProblem]) -> None:
    """Add to a document the records that could not be read or were dropped while recording."""
    from ...core.records.problems import ReadingProblem

    document.skipped += skipped
    for each in document.figures.drops:
        rank = "" if each.rank is None else f" by rank {each.rank}"
        text = f"{each.count:,} {each.reason} dropped while recording{rank}"
        document.skipped.append(ReadingProblem("", "dropped", text))


def _open_scopes(paths: SpoolPaths, names: Iterable[str | None]) -> list[OpenScope]:
    from ...core.spool.owner import owner_of

    owners = {owner for name in names if (owner := owner_of(name or "")) is not None}
    return open_scopes_of(paths, owners)
