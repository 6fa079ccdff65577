"""`cirron-otel diff`: compare what two runs computed, and how they spent their time."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from ...core.spool.directories import DEFAULT_NAME
from ...errors import UsageError
from ..present.divergence_text import comparison_lines, gap_texts
from ..present.formatting import count, printable
from . import output
from .engines import PYTHON, EngineSource, computed_by, engine_option
from .failing import FAILED_VERDICT
from .parameters import PlacesCommand, account_option, from_option, json_option
from .runs import report_chosen
from .sources import as_spool, shown_source
from .written_files import check_files, write_page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...core.analysis.divergence.comparing import RunComparison
    from ...core.analysis.divergence.tensors import RunDigests
    from ...core.analysis.run_selection import ChosenRun
    from ...core.engines.source import OpenedTables
    from ...core.run.accounts import AccountNames
    from ...core.run.run import Run
    from ...core.spool.reader import SpoolReader
    from ..present.comparison import ComparedRun, Comparison


_SIDES = 2
_LONGEST_HEADLINE = 1000
_LEVELS = ("warn", "crit")
_DIVERGENCE = "divergence"
_SLOWER = re.compile(r"slower=([0-9]{1,4}(?:\.[0-9]{1,6})?)%", re.ASCII)


class _Condition(click.ParamType):  # type: ignore[type-arg]
    """A level, `divergence`, or a share by which B is slower."""

    name = "condition"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in (*_LEVELS, _DIVERGENCE) and _share_of(value) is None:
            self.fail(
                f"{value!r} is not a condition: expected slower=N%, {', '.join(_LEVELS)} or"
                f" {_DIVERGENCE}, for example slower=5%", param, ctx,
            )  # fmt: skip
        return value


def _share_of(condition: str) -> float | None:
    """Return the share of `slower=N%`; None for another condition."""
    match = _SLOWER.fullmatch(condition)
    return None if match is None else float(match[1]) / 100


class _OpenedRun(NamedTuple):
    """One of the two runs."""

    run: ComparedRun
    digests: RunDigests | None
    """None for a run without digests."""
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
    type=_Condition(),
    metavar="slower=N%|warn|crit|divergence",
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
@click.option(
    "--html",
    "page_file",
    metavar="FILE",
    help="Also write the comparison to FILE, as a page that needs no network.",
)
@account_option
@json_option
def diff(
    first: str,
    second: str | None,
    source_format: str | None,
    engine: str,
    runs: tuple[str, ...],
    fail_on: str | None,
    tolerance: int,
    page_file: str | None,
    accounts: tuple[str, ...],
    as_json: bool,
) -> int:
    """Compare the digests of A and B, their wall time by account, and their figures.

    If the digests of a step differ, the first difference is named: the step, the quantity and the
    tensor. The headline names the accounts that explain the difference of the wall time. With
    --fail-on, the exit code is 6 if B is slower, or if the runs diverge: with slower=5% if its wall
    time, or an account of it, is longer by 5 % of the wall time of A (warn is 3 %, crit is 8 %, of
    the wall time alone).

    A is .cirron by default, and B is A by default. One of them may be - for stdin; --from then
    applies to it.
    """
    from ...core.analysis.verdicts.thresholds import thresholds_of
    from ...core.run.accounts import account_names_of
    from ..present.comparison import compare
    from ..present.comparison_text import headline, why

    names = account_names_of(accounts)
    sources = _sources(first, second, source_format, runs)
    check_files({"--html": page_file}, *(each.name for each in sources))
    with contextlib.ExitStack() as stack:
        sides = None if engine == PYTHON else _by_engine(engine, sources, names)
        a, b = [_read(stack, each, names) for each in sources] if sides is None else sides
        digests = _compared(a, b, tolerance)
    limits = thresholds_of("run")
    found = compare(a.run, b.run, limits["diff.moderate"], limits["diff.material"])
    if as_json:
        output.document({
            **found.to_json(headline(found), why(found)),
            "divergence": None if digests.first is None else digests.first.to_json(),
            "digests": digests.to_json(),
        })  # fmt: skip
    else:
        output.show_parts(_parts(found, digests))
    if page_file is not None:
        write_page(page_file, _page(found, digests))
    if _has_failed(fail_on, digests, found):
        return FAILED_VERDICT
    code = _warn_of_gaps(digests) if fail_on == _DIVERGENCE else _warn_of_noise(fail_on, found)
    return max(a.code, b.code, code)


def _parts(found: Comparison, digests: RunComparison) -> Iterator[RenderableType]:
    """Yield the lines and tables of a comparison."""
    from ..present.comparison_text import comparison_parts

    yield _side("A", found.a)
    yield _side("B", found.b)
    yield ""
    yield from comparison_lines(digests)
    yield ""
    yield from comparison_parts(found)


def _side(letter: str, run: ComparedRun) -> str:
    name = "" if run.chosen.name is None else f", {printable(run.chosen.name)}"
    units = count(run.units, printable(run.unit)) + run.of_ranks
    return f"{letter}  {printable(run.document.source)}{name}: {units}"


def _page(found: Comparison, digests: RunComparison) -> Iterator[str]:
    """Yield the text of the page on a comparison."""
    from ..present.comparison_text import headline
    from .page.element import Element
    from .page.parts import short
    from .page.shell import elements_of, footer, page_of

    title = f"{short(found.a.title)} and {short(found.b.title)}"
    body = Element(
        "body",
        Element(
            "header",
            Element("p", "cirron-otel diff", class_="over"),
            Element("h1", title),
            Element("p", Element("strong", short(headline(found), _LONGEST_HEADLINE))),
        ),
        Element("main", Element("section", elements_of(_parts(found, digests)))),
        footer("diff --json"),
    )
    return page_of(f"{title}: comparison of cirron-otel", body)


def _has_failed(fail_on: str | None, digests: RunComparison, found: Comparison) -> bool:
    if fail_on is None:
        return False
    if fail_on == _DIVERGENCE:
        return digests.first is not None
    share = _share_of(fail_on)
    if share is not None:
        return found.is_slower_by(share)
    return found.change.is_failure and fail_on in ("warn", found.change.severity)


def _warn_of_noise(fail_on: str | None, found: Comparison) -> int:
    """Warn if `slower=N%` cannot be decided; return the exit code, 0 or 1."""
    if fail_on is None or _share_of(fail_on) is None or found.change.noise is not None:
        return 0
    output.message(
        f"warning: --fail-on {fail_on}: a run has too few units to measure its noise, or none"
    )
    return 1


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


def _compared(a: _OpenedRun, b: _OpenedRun, tolerance: int) -> RunComparison:
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
    comparison.dropped = a.run.dropped_marks, b.run.dropped_marks
    return comparison


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


def _read(stack: contextlib.ExitStack, source: EngineSource, accounts: AccountNames) -> _OpenedRun:
    """Read a run; `stack` keeps it open."""
    from ...core.run.choosing import open_chosen_run
    from ...core.spool.reader import SpoolReader

    place = stack.enter_context(as_spool(*source))
    reader = SpoolReader(place.directory)
    chosen, opened = stack.enter_context(open_chosen_run(reader, source.run, accounts=accounts))
    report_chosen(chosen, source.run)
    compared = _compared_run(source.name, chosen, opened, reader, place.unconverted)
    digests = opened.digests
    compared.document.skipped += place.findings(reader)
    return _OpenedRun(compared, digests, place.report_problems(reader))


def _compared_run(
    source: str,
    chosen: ChosenRun,
    run: Run,
    reader: SpoolReader | None = None,
    missing_files: int = 0,
) -> ComparedRun:
    from ...core.run.costs import costs_of
    from ..present.comparison import ComparedRun
    from ..present.conclude import document_of_run

    document = document_of_run(
        shown_source(source), run, chosen, reader=reader, missing_files=missing_files
    )
    return ComparedRun(document, chosen, costs_of(run.ledger), run.dropped_marks)


def _by_engine(
    engine: str, sources: list[EngineSource], accounts: AccountNames
) -> list[_OpenedRun] | None:
    """Return both runs with the figures by an engine; None, with a message, if one needs Python."""
    names = iter(each.name for each in sources)

    def compute(tables: OpenedTables, wanted: str | None) -> ComparedRun:
        from ...core.run.engines.opening import engine_run

        with tables.run(*tables.choose(wanted)) as run:
            return _compared_run(next(names), run.chosen, engine_run(run, accounts=accounts))

    computed = computed_by(engine, sources, compute, "comparison")
    if computed is None:
        return None
    sides = []
    for source, each in zip(sources, computed, strict=True):
        report_chosen(each.value.chosen, source.run)
        each.value.document.skipped += each.findings
        sides.append(_OpenedRun(each.value, None, each.report_problems()))
    return sides
