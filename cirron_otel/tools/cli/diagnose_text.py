"""A diagnosis as text, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..present.formatting import count, duration, printable, rank_list, wrapped
from ..present.tables import rows_table
from . import output

if TYPE_CHECKING:
    from rich.table import Table

    from ...core.analysis.run_selection import ChosenRun
    from ...core.analysis.verdicts.diagnosis import Diagnosis
    from ...core.analysis.verdicts.verdict import Verdict
    from ...core.analysis.verdicts.window import StepNumber


def show_diagnosis(source: str, chosen: ChosenRun, diagnosis: Diagnosis) -> None:
    """Write the verdicts, the phases by rank, and the rules that were not assessed."""
    for part in diagnosis_parts(f"{printable(source)}{_run(chosen)}", diagnosis):
        if isinstance(part, str):
            output.result(part)
        else:
            output.show(part)


def diagnosis_parts(title: str, diagnosis: Diagnosis) -> Iterator[str | Table]:
    """Yield the lines and tables of a diagnosis."""
    yield f"{title}: {_window(diagnosis)}"
    if diagnosis.summarised_steps:
        yield summaries_line(diagnosis.summarised_steps)
    for verdict in diagnosis.verdicts:
        yield ""
        yield from verdict_lines(verdict)
    if diagnosis.phases:
        yield "\nThe mean of a step, by phase:\n"
        yield rows_table(*_phases(diagnosis))
    if diagnosis.not_assessed:
        yield "\nNot assessed:\n"
        yield from _not_assessed(diagnosis.not_assessed)


def summaries_line(steps: int) -> str:
    """Return the line about steps that an export budget sent as summaries."""
    return f"Summaries: {count(steps, 'step')}, by an export budget: times are complete"


def verdict_lines(verdict: Verdict, prefix: str = "") -> Iterator[str]:
    """Yield a verdict with its sentence and its advice."""
    ranks = f", rank {rank_list(verdict.ranks)}" if verdict.ranks else ""
    head = f"{prefix}{verdict.kind} ({verdict.severity}{ranks}): "
    yield from wrapped(printable(verdict.why), head, "  ")
    yield from wrapped(printable(verdict.next), "  try: ", "    ")


def _run(chosen: ChosenRun) -> str:
    return "" if chosen.name is None else f", run {printable(chosen.name)}"


def _window(diagnosis: Diagnosis) -> str:
    ranks = [each for each in diagnosis.ranks if each is not None]
    of = f" of {count(len(ranks), 'rank')}" if ranks else ""
    first, last = diagnosis.first, diagnosis.last
    between = "" if first is None or last is None else f" ({_step(first)} to {_step(last)})"
    return f"{count(diagnosis.steps, 'aligned step')}{between}{of}, {diagnosis.clock} clock"


def _step(number: StepNumber) -> str:
    epoch = "" if number.epoch is None else f"epoch {printable(number.epoch)} "
    return f"{epoch}step {printable(number.step or '?')}"


def _phases(diagnosis: Diagnosis) -> tuple[tuple[str, ...], set[str], list[tuple[str, ...]]]:
    if len(diagnosis.ranks) < 2:
        rows: list[tuple[str, ...]] = [
            (_name(each.name, each.is_scope), duration(round(each.first_ns)))
            for each in diagnosis.phases
        ]
        return ("phase", "mean"), {"mean"}, rows
    first = f"rank {diagnosis.ranks[0]}"
    heads = ("phase", first, "median", "worst", "rank")
    rows = [
        (
            _name(each.name, each.is_scope),
            *(duration(round(ns)) for ns in (each.first_ns, each.median_ns, each.worst_ns)),
            "-" if each.worst_rank is None else str(each.worst_rank),
        )
        for each in diagnosis.phases
    ]
    return heads, set(heads[1:]), rows


def _name(name: str, is_scope: bool) -> str:
    return f"{name} (scope)" if is_scope else name


def _not_assessed(reasons: dict[str, str]) -> Iterator[str]:
    """Yield the rules by reason."""
    rules: dict[str, list[str]] = {}
    for rule, reason in reasons.items():
        rules.setdefault(reason, []).append(rule)
    for reason, names in rules.items():
        yield from wrapped(reason, f"  {', '.join(names)}: ", "    ")
