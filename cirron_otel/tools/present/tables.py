"""Tables for the terminal."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from typing import TYPE_CHECKING

from .formatting import duration, printable

if TYPE_CHECKING:
    from rich.table import Table

    from ...core.analysis.breakdown import Breakdown, PhaseFigures

_IDS = ("run", "session", "span")


def breakdown_table(found: Breakdown) -> Table:
    """Return the breakdown as a table for rich."""
    from rich import box
    from rich.table import Table

    drawn = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
        header_style="bold",
    )  # fmt: skip
    drawn.add_column("phase", overflow="fold")
    for name in ("times", "total", "share", *found.steps.spread()):
        drawn.add_column(name, justify="right", overflow="fold")
    rows = [*found.phases, found.unattributed]
    for phase in rows:
        drawn.add_row(*_cells(found, phase), end_section=phase is rows[-1])
    drawn.add_row(*_cells(found, found.steps))
    return drawn


def _cells(found: Breakdown, phase: PhaseFigures) -> tuple[str, ...]:
    return (
        printable(phase.name),
        f"{phase.times:,}",
        duration(phase.total_ns),
        f"{100 * found.share(phase):.1f} %",
        *map(duration, phase.spread().values()),
    )


def rows_table(heads: tuple[str, ...], right: set[str], rows: list[tuple[str, ...]]) -> Table:
    """Return a table; the columns in `right` are right-aligned. Cells may contain any text."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
        header_style="bold",
    )  # fmt: skip
    for head in heads:
        drawn.add_column(
            head, justify="right" if head in right else "left", overflow="fold",
            no_wrap=head in _IDS,
        )  # fmt: skip
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    return drawn
