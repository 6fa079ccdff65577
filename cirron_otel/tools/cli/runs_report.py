"""`cirron-otel runs report`: the figures of many runs, by a key of their configuration."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...core.analysis.run_keys import KEYS
from ...core.moments import parse_moment
from ...core.spool.directories import DEFAULT_NAME
from ...errors import CirronOtelError, InputError, UsageError
from ..present.formatting import count, duration, local_moment, printable, wrapped
from ..present.tables import rows_table
from . import output
from .parameters import PlacesCommand, from_option, json_option
from .progress import ShownProgress, progress
from .sources import as_spool, shown_source
from .written_files import check_files, write_page

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ...core.analysis.run_catalogue import RunCatalogue
    from ...core.analysis.run_groups import GroupedRuns, NamedRun, RunGroup
    from ...core.analysis.run_hosts import HostCounts
    from .page.sweep import Sweep

_MOST_GROUPS = 1000
_MOST_PHASES = 5
_MOST_VALUES = 3
_SHARES = "share of the time"
_LONGEST_VALUE = 40


def _moment(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_moment(text, time.time_ns())
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@click.command(cls=PlacesCommand, short_help="The figures of many runs, by a key.")
@click.argument("sources", metavar="[SRC]...", nargs=-1)
@from_option
@click.option(
    "--since",
    "since_ns",
    callback=_moment,
    metavar="AGE|TIME",
    help="Only runs that began at this time or later: 30d, 12h, 2026-11-01 (UTC).",
)
@click.option(
    "--until",
    "until_ns",
    callback=_moment,
    metavar="AGE|TIME",
    help="Only runs that began before this time.",
)
@click.option(
    "--group-by",
    "keys",
    multiple=True,
    metavar="KEY",
    help=f"{', '.join(KEYS)}, or the name of a resource attribute. Can be given several times.",
)
@click.option(
    "--by",
    "by",
    type=click.Choice(("host",)),
    help="Compare the hosts of each run: which one is the slowest, and in how many of the runs.",
)
@click.option(
    "--html",
    "page_file",
    metavar="FILE",
    help="Also write the report to FILE, with the loss of each run, as a page that needs no"
    " network.",
)
@json_option
def report(
    sources: tuple[str, ...],
    source_format: str | None,
    since_ns: int | None,
    until_ns: int | None,
    keys: tuple[str, ...],
    by: str | None,
    page_file: str | None,
    as_json: bool,
) -> int:
    """Report the time, the steps and the findings of all runs of sources, in groups.

    SRC is any source of `convert`, or a directory that contains spools at any depth.
    """
    from ...core.analysis.run_catalogue import RunCatalogue
    from ...core.analysis.run_groups import group_runs
    from ...core.analysis.run_hosts import headline

    keys = tuple(dict.fromkeys(keys))
    if not all(keys):
        raise UsageError("--group-by is empty: expected a key such as model or host.name")
    check_files({"--html": page_file}, *(sources or (DEFAULT_NAME,)))
    catalogue = RunCatalogue(keys, since_ns, until_ns)
    with contextlib.ExitStack() as stack, progress("reading") as bar:
        places = _Sources(stack, catalogue, source_format, bar)
        code = places.add(sources or (DEFAULT_NAME,))
        bar.stage("reporting", "runs", then="grouping the runs")
        sweep = None if page_file is None else _sweep()
        on_run = None if sweep is None else sweep.add
        grouped = group_runs(bar.each(list(catalogue.runs())), keys, on_run)
    shown = [shown_source(each) for each in sources or (DEFAULT_NAME,)]
    if as_json:
        output.document({
            "sources": shown,
            "since_ns": since_ns,
            "until_ns": until_ns,
            "group_by": list(keys),
            "run_count": grouped.total.runs,
            "runs_outside": catalogue.outside,
            "batches_unassigned": catalogue.unassigned,
            "groups": [each.to_json() for each in grouped.groups],
            "total": grouped.total.to_json(),
            "hosts": None if by is None else {
                "headline": headline(grouped.hosts.result(), grouped.hosts.runs),
                "runs": grouped.hosts.runs,
                "hosts": [each.to_json() for each in grouped.hosts.result()],
            },
            "skipped": [finding.to_json() for finding in catalogue.findings],
        })  # fmt: skip
    else:
        output.show_parts(_parts(", ".join(shown), catalogue, grouped, by))
    if page_file is not None and sweep is not None:
        write_page(page_file, _page(_parts(", ".join(shown), catalogue, grouped, by), sweep))
    output.skipped(catalogue.findings, catalogue.skipped)
    return 1 if catalogue.skipped else code


def _sweep() -> Sweep:
    from .page.sweep import Sweep

    return Sweep()


class _Sources:
    """Opens sources and adds their runs to a catalogue."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        catalogue: RunCatalogue,
        source_format: str | None,
        bar: ShownProgress,
    ) -> None:
        self._stack, self._catalogue, self._format = stack, catalogue, source_format
        self._bar = bar
        self._code = 0
        self._added = 0
        self._first_error: CirronOtelError | None = None

    def add(self, sources: Sequence[str]) -> int:
        """Add all sources; return the exit code, 0 or 1.

        A source that cannot be read is a finding. Raises its error if no source can be read.
        """
        for source in sources:
            for place in self._places(source):
                try:
                    self._add(place)
                except UsageError:
                    raise
                except CirronOtelError as error:
                    self._report(place, error)
        if not self._added and self._first_error is not None:
            raise self._first_error
        return self._code

    def _places(self, source: str) -> Iterator[str]:
        """Yield a source, or the spools in a directory that is not a spool itself."""
        from ...core.spool.paths import find_spool, spools_below
        from ..convert.tables import hint_for, source_with_prefix

        is_other = self._format not in (None, "spool") or source_with_prefix(source) is not None
        if is_other or not os.path.isdir(source):  # noqa: PTH112 - false for any odd path
            yield source
            return
        directory = Path(source)
        try:
            root = find_spool(directory).root
        except InputError:
            root = None
        if root is not None and root != directory / DEFAULT_NAME:
            yield source
            return
        is_empty = True
        for spool in spools_below(directory, lambda error: self._report(source, error)):
            is_empty = False
            yield str(spool)
        if is_empty:
            text = f"{source} contains no spool, at any depth: name a directory with recordings"
            self._report(source, InputError(hint_for(directory) or text))

    def _add(self, place: str) -> None:
        source = f"source {self._added + 1:,}"
        opening = as_spool(place, self._format, stage=f"reading {source}")
        opened = self._stack.enter_context(opening)
        if opened.converted is not None:
            self._catalogue.findings += opened.converted.skipped
            self._catalogue.skipped += opened.converted.skipped_count
            opened.converted.skipped, opened.converted.skipped_count = [], 0
            output.shortfalls(opened.converted)
            self._code = self._code or (1 if opened.converted.exit_code else 0)
        self._bar.stage(f"finding the runs of {source}")
        self._catalogue.add(opened.directory, shown_source(place), self._bar)
        self._added += 1

    def _report(self, place: str, error: CirronOtelError) -> None:
        from ...core.records.problems import ReadingProblem

        self._first_error = self._first_error or error
        self._catalogue.skipped += 1
        self._catalogue.findings.append(
            ReadingProblem(shown_source(place), "unreadable", str(error))
        )


def _parts(
    source: str, catalogue: RunCatalogue, grouped: GroupedRuns, by: str | None
) -> Iterator[RenderableType]:
    """Yield the lines and tables of the report."""
    outside = f", {count(catalogue.outside, 'other')} outside" if catalogue.outside else ""
    period = [
        f"{word} {local_moment(ns)}"
        for word, ns in (("since", catalogue.since_ns), ("until", catalogue.until_ns))
        if ns is not None
    ]
    head = ", ".join([f"{printable(source)}: {count(grouped.total.runs, 'run')}", *period])
    yield head + outside
    if catalogue.unassigned:
        yield f"{count(catalogue.unassigned, 'batch', 'batches')} without a run"
    if grouped.total.runs:
        yield from _group_parts(catalogue.keys, grouped)
    if by is not None:
        yield from _host_parts(grouped.hosts)


def _group_parts(keys: Sequence[str], grouped: GroupedRuns) -> Iterator[RenderableType]:
    groups = grouped.groups[:_MOST_GROUPS]
    rows = [*groups, grouped.total] if keys else [grouped.total]
    yield ""
    yield _runs(keys, rows)
    if grouped.total.steps.times:
        yield "\nThe steps, and the share of each phase in their time:\n"
        yield _steps(keys, rows)
    yield "\nThe number of runs with each status, and with each kind of finding:\n"
    yield _findings(keys, rows)
    yield "\nThe oldest and the newest run:\n"
    yield _ends(keys, rows)
    if len(groups) < len(grouped.groups):
        more = len(grouped.groups) - len(groups)
        yield f"and {count(more, 'more group')}: --json has all of them"


def _host_parts(counts: HostCounts) -> Iterator[RenderableType]:
    from ...core.analysis.run_hosts import headline

    hosts = counts.result()
    yield ""
    yield from wrapped(printable(headline(hosts, counts.runs)), "", "  ")
    if hosts:
        yield ""
        heads = ("host", "runs", "slowest in", "share", "by")
        yield rows_table(heads, set(heads[1:]), [
            (
                printable(each.host),
                f"{each.runs:,}",
                f"{each.slowest:,}",
                f"{100 * each.slowest / each.runs:.0f} %",
                "-" if each.excess is None else f"{100 * each.excess:+.0f} %",
            )
            for each in hosts[:_MOST_GROUPS]
        ])  # fmt: skip


def _page(parts: Iterable[RenderableType], sweep: Sweep) -> Iterator[str]:
    """Yield the text of the page on many runs."""
    from .page.element import Element
    from .page.shell import elements_of, footer, page_of

    body = Element(
        "body",
        Element(
            "header",
            Element("p", "cirron-otel runs report", class_="over"),
            Element("h1", count(len(sweep.runs), "run")),
        ),
        Element("main", sweep.sections(), Element("section", elements_of(parts))),
        footer("runs report --json"),
    )
    return page_of(f"{count(len(sweep.runs), 'run')}: report of cirron-otel", body)


def _table(
    keys: Sequence[str],
    rows: Sequence[RunGroup],
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
) -> Table:
    names = tuple(map(printable, keys)) or ("",)
    lines = [(*_key_cells(keys, group), *line) for group, line in zip(rows, cells, strict=True)]
    left = {"status", "conclusion", "findings", "oldest", "newest", "began", _SHARES}
    return rows_table(
        (*names, *map(printable, heads)), {each for each in heads if each not in left}, lines
    )


def _key_cells(keys: Sequence[str], group: RunGroup) -> list[str]:
    if not group.key:
        return ["all", *("" for _ in keys[1:])]
    return [_value(group.key[key]) for key in keys]


def _value(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, list):
        more = len(value) - _MOST_VALUES
        text = ", ".join(_value(each) for each in value[:_MOST_VALUES])
        return text + (f" and {more:,} more" if more > 0 else "")
    if isinstance(value, bool):
        return "true" if value else "false"
    text = printable(str(value))
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _runs(keys: Sequence[str], rows: Sequence[RunGroup]) -> Table:
    cells = []
    for group in rows:
        status = ", ".join(f"{number:,} {name}" for name, number in group.statuses.most_common())
        if group.out_of_memory:
            status += f" ({group.out_of_memory:,} out of memory)"
        gpu = "-" if group.gpu_ns is None else duration(group.gpu_ns)
        cells.append(
            (f"{group.runs:,}", status, duration(group.duration_ns), duration(group.rank_ns), gpu)
        )
    return _table(keys, rows, ("runs", "status", "time", "rank time", "GPU time"), cells)


def _steps(keys: Sequence[str], rows: Sequence[RunGroup]) -> Table:
    cells = [
        (
            f"{group.steps.times:,}",
            *(duration(ns) if group.steps.times else "-" for ns in _spread(group).values()),
            _shares(group) if group.steps.times else "-",
        )
        for group in rows
    ]
    return _table(keys, rows, ("steps", *_spread(rows[0]), _SHARES), cells)


def _spread(group: RunGroup) -> dict[str, int]:
    spread = group.steps.spread()
    del spread["max"]
    return spread


def _shares(group: RunGroup) -> str:
    """Return the shares of the longest phases, of the other ones, and of the rest of the steps."""
    longest = group.phase_ns.most_common(_MOST_PHASES)
    others = sum(group.phase_ns.values()) - sum(ns for _, ns in longest)
    rows = [*longest, *([("other phases", others)] if others else [])]
    rows.append(("unattributed", group.unattributed_ns))
    return ", ".join(f"{name} {100 * group.share(ns):.1f} %" for name, ns in rows)


def _findings(keys: Sequence[str], rows: Sequence[RunGroup]) -> Table:
    cells = [(_counted(group.conclusions), _counted(group.findings)) for group in rows]
    return _table(keys, rows, ("conclusion", "findings"), cells)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common()) or "-"


def _ends(keys: Sequence[str], rows: Sequence[RunGroup]) -> Table:
    cells = [(*_end(group.oldest), *_end(group.newest)) for group in rows]
    return _table(keys, rows, ("oldest", "began", "newest", "began"), cells)


def _end(run: NamedRun | None) -> tuple[str, str]:
    return ("-", "-") if run is None else (printable(run.name), local_moment(run.start_ns))
