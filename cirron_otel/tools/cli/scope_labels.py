"""The texts beside a scope in a tree: its error, and the last values of its marks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...semconv import OVERHEAD_NS
from .text import count, printable

if TYPE_CHECKING:
    from ...core.analysis.tree import MarkNode

_MARKS_SHOWN = 5
_MAX_VALUE = 40
_LONG_FRACTION = re.compile(r"-?\d{1,9}\.\d{6,20}(e[+-]?\d{1,3})?", re.ASCII)
_MOST_NAMES = 1000
"""The most names of marks that are kept for scopes of one line."""


def failure(error: str | None) -> str:
    """Return the text beside a scope that failed; "" for any other scope."""
    return "" if error is None else f"  ✗ {_short(printable(error))}"


class Marks:
    """The last value of each mark of the scopes of one line, and the number of marks."""

    def __init__(self, left_out: int = 0) -> None:
        """`left_out` marks are not known."""
        self.left_out = left_out
        self.last: dict[str | None, str | None] = {}
        self._often: dict[str | None, int] = {}

    def add(self, mark: MarkNode) -> None:
        """Add a mark, which comes after the others."""
        self._take(mark.name, mark.value, 1)

    def merge(self, other: Marks) -> None:
        """Add the marks of `other`, which come after these."""
        self.left_out += other.left_out
        for name, value in other.last.items():
            self._take(name, value, other._often[name])

    def _take(self, name: str | None, value: str | None, often: int) -> None:
        if name not in self.last and len(self.last) >= _MOST_NAMES:
            self.left_out += often
            return
        self.last[name] = value
        self._often[name] = self._often.get(name, 0) + often

    def __str__(self) -> str:
        """Return the last value of each mark, with the number of marks if there are several."""
        parts = []
        for name, value in itertools.islice(self.last.items(), _MARKS_SHOWN):
            often = self._often[name]
            shown = printable(name if name is not None else "?")
            parts.append(f"{shown}={_short(value)}" + (f" ({often:,}×)" if often > 1 else ""))
        more = self.left_out + sum(list(self._often.values())[_MARKS_SHOWN:])
        return ", ".join(parts) + (f", {count(more, 'more mark')}" if more else "")


def marks_of(marks: Iterable[MarkNode], left_out: int) -> Marks:
    """Return the marks of a scope without the SDK's own; `left_out` others are not known."""
    # The SDK's own mark is in every scope: --json has it.
    user_marks = Marks(left_out)
    for mark in marks:
        if mark.name != OVERHEAD_NS:
            user_marks.add(mark)
    return user_marks


def appendix(marks: Marks) -> str:
    """Return the text after a scope with these marks; "" without any."""
    return f"  {marks}" if marks.last or marks.left_out else ""


def _short(value: str | None) -> str:
    """Return a short form of a value: six digits of a long fraction, the start of a long text."""
    if value is None:
        return "?"
    if _LONG_FRACTION.fullmatch(value):
        return f"{float(value):.6g}"
    text = printable(value)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"
