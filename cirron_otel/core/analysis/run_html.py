"""Runs as tables of a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..durations import SECOND_NS
from ..moments import local_moment

HEADS = ("run", "name", "status", "start", "duration", "ranks", "steps", "script")


def moment(time_ns: int | None) -> str:
    """Format wall-clock nanoseconds as local time with the zone; empty if they are unknown."""
    return "" if time_ns is None else local_moment(time_ns)


def seconds(duration_ns: int | None) -> str:
    """Format nanoseconds as seconds; empty if they are unknown."""
    return "" if duration_ns is None else f"{duration_ns / SECOND_NS:.3f} s"


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table of strings."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
