"""`cirron-otel diff`: compare what two runs computed, and how they spent their time."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...core.spool.directories import DEFAULT_NAME
from ...errors import UsageError
from . import output
from .diagnose import FAILED_VERDICT
from .divergence_text import comparison_lines, gap_texts
from .engines import PYTHON, EngineSource, computed_by, engine_option
from .parameters import PlacesCommand, from_option, json_option
from .runs import report_chosen, run_json
from .sources import as_spool, shown_source
from .tables import rows_table
from .text import count, duration, of_ranks, printable, value_text, wrapped

if TYPE_CHECKING:
    from rich.table import Table

    from ...core.analysis.breakdown import Breakdown, PhaseFigures
    from ...core.analysis.divergence.comparing import RunComparison
    from ...core.analysis.divergence.tensors import RunDigests
    from ...core.analysis.run_selection import ChosenRun
    from ...core.analysis.verdicts.comparison import StepChange
    from ...core.engines.source import OpenedTables
    from ...core.records.findings import Finding
    from ...core.run.compared_run import ComparedRun, LastValue


_SIDES = 2
_DIVERGENCE = "divergence"


class _Run(NamedTuple):
    """One of the two runs."""

    figures: ComparedRun
    chosen: ChosenRun
    digests: RunDigests | None
    """None for a run without digests."""
    findings: list[Finding]
    code: int


@click.command(cls=PlacesCommand, short_help="Compare the results and the times of two runs.")
@click.argument("first", metavar="[A]", default=DEFAULT_NAME)
@click.argument("second", metavar="[B]", required=False)
@from_option
@engine_option
@click.option(
    "--run",
    "runs",
    multiple=True,
    metavar="NAME|ID|last|all",
    help="Only this run of A and of B; given twice, the run of A and the run of B.",
)
@click.option(
    "--fail-on",
    "fail_on",
    type=click.Choice(("warn", "crit", _DIVERGENCE)),
    help="Exit with code 6 if B is slower by this much, or if the runs diverge.",
)
@click.option(
    "--ulp-tol",
    "tolerance",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Losses that are at most N ULPs apart count as equal.",
)
@json_option
def diff(
    first: str,
    second: str | None,
    source_format: str | None,
    engine: str,
    runs: tuple[str, ...],
    fail_on: str | None,
    tolerance: int,
    as_json: bool,
) -> int:
    """Compare the digests of A and B, their steps by phase, and the last values of their marks.

    If the digests of a step differ, the first difference is named: the step, the quantity and the
    tensor. With --fail-on, the exit code is 6 if the steps of B are slower (3 % is warn, 8 % is
    crit), or if the runs diverge.

    A is .cirron by default, and B is A by default. One of them may be - for stdin; --from then
    applies to it.
    """
    from ...core.analysis.verdicts.comparison import compare_steps
    from ...core.analysis.verdicts.thresholds import thresholds_of

    sources = _sources(first, second, source_format, runs)
    with contextlib.ExitStack() as stack:
        sides = None if engine == PYTHON else _by_engine(engine, sources)
        a, b = [_read(stack, *each) for each in sources] if sides is None else sides
        comparison = _compared(a, b, tolerance)
    phases = _phases(a.figures.steps, b.figures.steps)
    marks = _marks(a.figures, b.figures)
    left_out = max(each.figures.marks_left_out for each in (a, b))
    change = compare_steps(a.figures.medians, b.figures.medians, thresholds_of("run"))
    if as_json:
        output.document({
            "a": _side(sources[0].name, a),
            "b": _side(sources[1].name, b),
            "divergence": None if comparison.first is None else comparison.first.to_json(),
            "digests": comparison.to_json(),
            "verdict": change.to_json(),
            "phases": [_phase_json(*pair) for pair in phases],
            "marks": [_mark_json(*pair) for pair in marks],
            "marks_left_out": left_out,
        })  # fmt: skip
    else:
        _show_side("A", sources[0].name, a)
        _show_side("B", sources[1].name, b)
        output.result("")
        for line in comparison_lines(comparison):
            output.result(line)
        for line in _verdicts(a, b, change):
            output.result(line)
        _show(phases, marks)
        if left_out:
            output.result(f"and up to {left_out:,} more series of marks")
    if _has_failed(fail_on, comparison, change):
        return FAILED_VERDICT
    code = _warn_of_gaps(comparison) if fail_on == _DIVERGENCE else 0
    return max(a.code, b.code, code)


def _show_side(letter: str, source: str, run: _Run) -> None:
    summary = f"{count(run.figures.steps.steps.times, 'step')}{of_ranks(run.figures.ranks)}"
    name = "" if run.chosen.name is None else f", {printable(run.chosen.name)}"
    output.result(f"{letter}  {printable(shown_source(source))}{name}: {summary}")


def _has_failed(fail_on: str | None, comparison: RunComparison, change: StepChange) -> bool:
    if fail_on == _DIVERGENCE:
        return comparison.first is not None
    return fail_on is not None and change.is_failure and fail_on in ("warn", change.severity)


def _warn_of_gaps(comparison: RunComparison) -> int:
    """Warn if the comparison leaves open whether the runs diverge; return the exit code, 0 or 1."""
    gaps = []
    if not comparison.compared:
        gaps.append("no step was compared")
    if comparison.failed:
        gaps.append(f"{count(comparison.failed, 'digest')} could not be taken")
    gaps += gap_texts(comparison)
    for each in gaps:
        output.message(f"warning: --fail-on divergence: {each}")
    return 1 if gaps else 0


def _compared(a: _Run, b: _Run, tolerance: int) -> RunComparison:
    """Compare the digests of two runs."""
    from ...core.analysis.divergence.comparing import RunComparison, compare_runs
    from ...core.analysis.divergence.settling import settle

    comparison = RunComparison()
    one, other = a.digests, b.digests
    if one is not None or other is not None:
        comparison = compare_runs(
            () if one is None else one.steps, () if other is None else other.steps, tolerance
        )
        if one is not None and other is not None:
            for rank in comparison.ranks:
                settle(rank, one, other)
    comparison.dropped = a.figures.dropped_marks, b.figures.dropped_marks
    return comparison


def _verdicts(a: _Run, b: _Run, change: StepChange) -> Iterator[str]:
    """Yield the verdict on the difference, and each run's own unless it has too few steps."""
    from .diagnose_text import verdict_lines

    yield ""
    yield from wrapped(change.why, f"{change.kind}: ", "  ")
    for letter, run in (("A", a), ("B", b)):
        for primary in run.figures.verdicts[:1]:
            if primary.kind != "WARMUP":
                yield from verdict_lines(primary, f"{letter}: ")


def _sources(
    first: str, second: str | None, source_format: str | None, runs: tuple[str, ...]
) -> list[EngineSource]:
    """Return A and B. Raises UsageError if one is missing, or both are standard input."""
    if len(runs) > _SIDES:
        raise UsageError("--run can be given at most twice: for A and for B")
    if second is None:
        if len(runs) < _SIDES:
            raise UsageError("B is missing: name a source, or two runs of A with --run")
        second = first
    if first == second == "-":
        raise UsageError("only one of A and B can be standard input")
    has_stdin = "-" in (first, second)
    return [
        EngineSource(name, source_format if name == "-" or not has_stdin else None, run)
        for name, run in zip(
            (first, second), (runs[0], runs[-1]) if runs else (None, None), strict=True
        )
    ]


def _read(
    stack: contextlib.ExitStack, source: str, source_format: str | None, run: str | None
) -> _Run:
    """Read a run; `stack` keeps it open."""
    from ...core.run.choosing import open_chosen_run
    from ...core.run.compared_run import compared_run
    from ...core.spool.reader import SpoolReader

    place = stack.enter_context(as_spool(source, source_format, run))
    reader = SpoolReader(place.directory)
    chosen, opened = stack.enter_context(open_chosen_run(reader, run))
    report_chosen(chosen, run)
    figures, digests = compared_run(opened), opened.digests
    findings, code = place.findings(reader), place.report_problems(reader)
    return _Run(figures, chosen, digests, findings, code)


def _by_engine(engine: str, sources: list[EngineSource]) -> list[_Run] | None:
    """Return both runs with the figures by an engine; None, with a message, if one needs Python."""

    def compute(tables: OpenedTables, wanted: str | None) -> tuple[ChosenRun, ComparedRun]:
        from ...core.run.compared_run import compared_run
        from ...core.run.engines.opening import engine_run

        with tables.run(*tables.choose(wanted)) as run:
            return run.chosen, compared_run(engine_run(run))

    computed = computed_by(engine, sources, compute, "comparison")
    if computed is None:
        return None
    runs = []
    for source, each in zip(sources, computed, strict=True):
        chosen, figures = each.value
        report_chosen(chosen, source.run)
        runs.append(_Run(figures, chosen, None, each.findings, each.report_problems()))
    return runs


def _phases(a: Breakdown, b: Breakdown) -> list[tuple[PhaseFigures | None, PhaseFigures | None]]:
    """Return the phases of A and B as pairs, in A's order; unattributed time and steps come
    last.
    """
    theirs = {each.name: each for each in b.phases}
    pairs: list[tuple[PhaseFigures | None, PhaseFigures | None]] = [
        (each, theirs.pop(each.name, None)) for each in a.phases
    ]
    pairs += [(None, each) for each in theirs.values()]
    return [*pairs, (a.unattributed, b.unattributed), (a.steps, b.steps)]


def _marks(a: ComparedRun, b: ComparedRun) -> list[tuple[LastValue, LastValue]]:
    """Return the last values of the series of marks that both runs have."""
    theirs = {each[:-1]: each for each in b.marks}
    pairs = ((each, theirs.get(each[:-1])) for each in a.marks)
    return [(each, other) for each, other in pairs if other is not None]


def _side(source: str, run: _Run) -> dict[str, Any]:
    return {
        "source": shown_source(source),
        "run": run_json(run.chosen),
        "ranks": run.figures.ranks,
        "steps": run.figures.steps.steps.times,
        "verdicts": [each.to_json() for each in run.figures.verdicts],
        "findings": [finding.to_json() for finding in run.findings],
    }


def _phase_json(a: PhaseFigures | None, b: PhaseFigures | None) -> dict[str, Any]:
    return {"name": _name(a, b), "a": _times(a), "b": _times(b), "change": _change(a, b)}


def _times(phase: PhaseFigures | None) -> dict[str, int] | None:
    if phase is None or not phase.times:
        return None
    return {
        "times": phase.times,
        "total_ns": phase.total_ns,
        "median_ns": phase.median_ns,
    }


def _mark_json(a: LastValue, b: LastValue) -> dict[str, Any]:
    return {"name": a.name, "rank": a.rank, "is_eval": a.is_eval, "a": a.value, "b": b.value}


def _name(a: PhaseFigures | None, b: PhaseFigures | None) -> str:
    phase = a if a is not None else b
    return phase.name if phase is not None else "?"


def _change(a: PhaseFigures | None, b: PhaseFigures | None) -> float | None:
    """Return the change of the median relative to A; None if a median is missing or A's is 0."""
    if a is None or b is None or not a.times or not b.times or not a.median_ns:
        return None
    return (b.median_ns - a.median_ns) / abs(a.median_ns)


def _show(
    phases: list[tuple[PhaseFigures | None, PhaseFigures | None]],
    marks: list[tuple[LastValue, LastValue]],
) -> None:
    heads = ("phase", "times A", "times B", "median A", "median B", "change")
    rows: list[tuple[str, ...]] = [
        (_name(a, b), _count(a), _count(b), _median(a), _median(b), _percent(_change(a, b)))
        for a, b in phases
    ]
    output.result("")
    output.show(rows_table(heads, set(heads[1:]), rows))
    if marks:
        output.result("")
        output.show(_marks_table(marks))


def _marks_table(marks: list[tuple[LastValue, LastValue]]) -> Table:
    heads = ("mark", "rank", "last A", "last B")
    rows: list[tuple[str, ...]] = [
        (
            a.title,
            "-" if a.rank is None else str(a.rank),
            value_text(a.value),
            value_text(b.value),
        )
        for a, b in marks
    ]
    return rows_table(heads, set(heads[1:]), rows)


def _count(phase: PhaseFigures | None) -> str:
    return f"{phase.times if phase is not None else 0:,}"


def _median(phase: PhaseFigures | None) -> str:
    return duration(phase.median_ns) if phase is not None and phase.times else "-"


def _percent(change: float | None) -> str:
    return "-" if change is None else f"{100 * change:+.1f} %"
