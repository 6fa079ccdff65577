"""A document as text, for a terminal of 80 columns."""

# ruff: noqa: PLC0415 - rich is imported in functions, so that commands start faster

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from .findings_text import per_rank
from .formatting import WIDTH, count, duration, plural, printable, wrapped
from .full_text import full_parts
from .head import head_parts, unit_name
from .ledger_rows import AccountRow, LedgerRows, account_name, percentages
from .tables import rows_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ...core.run.figures.trainings import TrainingFigures
    from .document import Document
    from .unit_figures import UnitFigures

_LEAST_SHARE: Final = 0.0005
"""Accounts with a smaller share are one row of the text."""
_NAMED_PARTS: Final = ("other_scopes", "evaluation", "checkpoint", "logging", "communication")
_LONGEST_NAME: Final = 34
_UNATTRIBUTED: Final = "unattributed"
_MOST_GAPS: Final = 3
_LEAST_GAP: Final = 0.1
"""A gap between phases has a row if it has at least this part of the unattributed time."""
_LONGEST_PHASE: Final = 26
_MOST_ROWS: Final = 16
"""The maximum number of trainings, or of scopes of a run without units."""
_HEAD_WIDTH: Final = 9


def document_parts(document: Document, *, full: bool = False) -> Iterator[RenderableType]:
    """Yield the lines and tables of a document.

    Without `full`, a healthy run has ten lines, and slowest units, memory, metrics and marks are
    left out.
    """
    yield from head_parts(document, full=full)
    if full or document.has_problem or document.units is None:
        yield from _tables(document)
    else:
        yield from _compact(document)
    if full:
        yield from full_parts(document)


def _compact(document: Document) -> Iterator[str]:
    """Yield the ledger and the units as a few lines."""
    yield ""
    unit = unit_name(document)
    if document.ledger is not None:
        rows = sorted(_merged(document.ledger), key=lambda row: -row.ns)
        shares = percentages([row.ns for row in rows])
        text = ", ".join(
            _glued(f"{account_name(row.account, unit)} {share} %")
            for row, share in zip(rows, shares, strict=True)
        )
        yield from _with_head("time", text)
    if document.units is not None:
        yield from _with_head(plural(unit), units_text(document.units))
        for each in document.units.trainings[:_MOST_ROWS]:
            times = f"p50 {duration(each.p50_ns)}, p95 {duration(each.p95_ns)}"
            text = f"{each.units:,} {plural(unit)}; {times}, {duration(each.duration_ns)}"
            yield from wrapped(text, f"training {training_name(each)}: ", " " * _HEAD_WIDTH)
        yield from _rest(len(document.units.trainings))
    phases = [each for each in document.phases if each.p50_ns > 0]
    if phases:
        listed = ", ".join(_glued(f"{printable(e.name)} {duration(e.p50_ns)}") for e in phases)
        yield from _with_head("p50", listed)


def _with_head(head: str, text: str) -> Iterator[str]:
    yield from wrapped(text, f"{head:<{_HEAD_WIDTH - 1}} ", " " * _HEAD_WIDTH)


def units_text(units: UnitFigures) -> str:
    """Return the number, the rate, the errors and the durations of units."""
    parts = [f"{units.count:,}"]
    if units.per_s is not None:
        parts.append(f"{units.per_s:.3g} per s")
    if units.errors or units.name == "request":
        parts.append(count(units.errors, "error"))
    if units.tokens is not None:
        parts.append(count(units.tokens, "token"))
    times = zip(
        ("p50", "p95", "p99", "max"),
        (units.p50_ns, units.p95_ns, units.p99_ns, units.max_ns),
        strict=True,
    )
    spread = ", ".join(_glued(f"{name} {duration(ns)}") for name, ns in times)
    return f"{', '.join(map(_glued, parts))}; {spread}"


def _glued(text: str) -> str:
    """Return text that `wrapped` keeps on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _tables(document: Document) -> Iterator[RenderableType]:
    unit = unit_name(document)
    if document.ledger is not None:
        yield ""
        yield from ledger_title(document.ledger)
        yield ""
        yield ledger_table(document.ledger, unit)
    if document.units is not None:
        yield ""
        yield from wrapped(units_text(document.units), f"The {plural(unit)}: ", "  ")
        yield ""
        yield _phases(document, document.units)
        if document.units.trainings:
            yield ""
            yield _trainings(document.units)
            yield from _rest(len(document.units.trainings))
    elif document.scopes:
        yield ""
        yield "The scopes by name:"
        yield ""
        yield _scopes(document)
        yield from _rest(len(document.scopes))


def _rest(count: int) -> Iterator[str]:
    """Yield a line with the number of rows that the text leaves out, if it leaves out some."""
    if count > _MOST_ROWS:
        yield f"and {count - _MOST_ROWS:,} more: --json has them"


def ledger_title(ledger: LedgerRows) -> Iterator[str]:
    """Yield the title of the ledger."""
    if len(ledger.ranks) > 1:
        yield f"The time, {duration(ledger.extent_ns)}, as the mean of {len(ledger.ranks):,} ranks:"
    else:
        yield f"The time, {duration(ledger.extent_ns)}:"


def ledger_table(ledger: LedgerRows, unit: str) -> Table:
    """Return the accounts with their shares, which add up to 100.0 %, and the ranks' range."""
    rows = _merged(ledger)
    shares = percentages([row.ns for row in rows])
    heads: tuple[str, ...] = ("account", "time", "share")
    has_ranks = len(ledger.ranks) > 1
    cells: list[tuple[str, ...]] = []
    for row, share in zip(rows, shares, strict=True):
        cells.append((_titled(row, unit), per_rank(row.ns, ledger), f"{share} %"))
        if has_ranks:
            cells[-1] = (*cells[-1], _range(ledger, row))
        cells += [
            (f"  {_cut(name, _LONGEST_NAME)}", per_rank(ns, ledger), *[""] * (1 + has_ranks))
            for name, ns in _gaps(row)
        ]
    cells.append(("total", duration(ledger.extent_ns), "100.0 %", *[""] * has_ranks))
    if has_ranks:
        heads = (*heads, "lowest to highest rank")
    return rows_table(heads, set(heads[1:]), cells)


def _gaps(row: AccountRow) -> list[tuple[str, int]]:
    """Return the largest gaps between phases, with their times in ns."""
    if row.account != _UNATTRIBUTED:
        return []
    return [part for part in row.parts[:_MOST_GAPS] if part[1] >= _LEAST_GAP * row.ns]


_OTHERS: Final = "the other accounts"


def _merged(ledger: LedgerRows) -> list[AccountRow]:
    """Return the rows; several very small ones become one."""
    small = [row for row in ledger.accounts if row.share < _LEAST_SHARE]
    if len(small) < 2:
        return ledger.accounts
    rows = [row for row in ledger.accounts if row.share >= _LEAST_SHARE]
    return [*rows, AccountRow(_OTHERS, sum(r.ns for r in small), sum(r.share for r in small))]


def _titled(row: AccountRow, unit: str) -> str:
    """Return the name of an account, with the names of its scopes if they are the user's own."""
    name = account_name(row.account, unit)
    if row.account not in _NAMED_PARTS or not row.parts:
        return name
    listed = ", ".join(printable(part) for part, _ in row.parts)
    if listed == name:
        return name
    text = f"{name} ({listed})"
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 2]}…)"


def _range(ledger: LedgerRows, row: AccountRow) -> str:
    if row.account == _OTHERS:
        return ""
    low, high = (f"{100 * share:.1f}" for share in ledger.range_of(row.account))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _phases(document: Document, units: UnitFigures) -> Table:
    heads = ("phase", "times", "p50", "p95", "p99", "max")
    rows = [
        (_cut(each.name), f"{each.times:,}",
         *map(duration, (each.p50_ns, each.p95_ns, each.p99_ns, each.max_ns)))
        for each in document.phases
    ]  # fmt: skip
    times = sum(number for _, number in units.ranks)
    rows.append((
        _cut(units.name), f"{times:,}",
        *map(duration, (units.p50_ns, units.p95_ns, units.p99_ns, units.max_ns)),
    ))  # fmt: skip
    return rows_table(heads, set(heads[1:]), rows)


def _trainings(units: UnitFigures) -> Table:
    heads = ("training", plural(printable(units.name)), "p50", "p95", "time")
    return rows_table(heads, set(heads[1:]), [
        (training_name(each), f"{each.units:,}",
         *map(duration, (each.p50_ns, each.p95_ns, each.duration_ns)))
        for each in units.trainings[:_MOST_ROWS]
    ])  # fmt: skip


def training_name(training: TrainingFigures) -> str:
    """Return the number of a training with its name, if it has one."""
    name = "" if training.name is None else f" ({printable(training.name)})"
    return f"{training.number}{name}"


def _scopes(document: Document) -> Table:
    heads = ("scope", "count", "total", "p50", "p95")
    return rows_table(heads, set(heads[1:]), [
        (_cut(each.name), f"{each.count:,}",
         *map(duration, (each.total_ns, each.p50_ns, each.p95_ns)))
        for each in document.scopes[:_MOST_ROWS]
    ])  # fmt: skip


def _cut(name: str, most: int = _LONGEST_PHASE) -> str:
    text = printable(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain_lines(parts: Iterable[RenderableType], width: int = WIDTH) -> list[str]:
    """Return lines and tables as plain text."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False, no_color=True
    )
    with console.capture() as drawn:
        for part in parts:
            console.print(part, soft_wrap=True)
    return [line.rstrip() for line in drawn.get().splitlines()]
