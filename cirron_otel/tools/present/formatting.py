"""Numbers, sizes, times, names and marks as text for people."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...core import durations, moments, nouns
from ...core.records.digest_marks import PREFIX
from ...semconv import CPU_WAIT_NS, MEMORY, OVERHEAD_NS

if TYPE_CHECKING:
    from ...core.run.trees import MarkNode

duration = durations.duration
local_moment, clock_time = moments.local_moment, moments.clock_time
count, plural = nouns.count, nouns.plural

WIDTH = 80
"""The width of wrapped text, columns."""

_SIZES = ("B", "kB", "MB", "GB", "TB")
_LONGEST_VALUE = 40
_MOST_RANGES = 32
_UNITS = re.compile(r"(\d) ((?:ns|µs|ms|s|min|h|steps/s)\b|%)")
"""Matches a number and its unit, which must stay on one line."""


def printable(text: str) -> str:
    """Return `text` with unprintable characters escaped, such as control characters and
    surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def reason(error: str) -> str:
    """Return the status message of a failed or killed session, for display next to its state."""
    text = printable(error).removeprefix("killed: ").removeprefix("incomplete: ")
    return text.replace("without closing this scope", "without closing its session")


def cause(known: str | None, requested_bytes: int | None) -> str:
    """Return the cause of a failure with a colon, to precede `reason`; "" if it is unknown."""
    if known is None:
        return ""
    asked = "" if requested_bytes is None else f", {size(requested_bytes)} requested"
    return f"{printable(known)}{asked}: "


def added(recorded: int, synthetic: int) -> str:
    """Explain why more spans are sent than were recorded; "" if the numbers are equal."""
    return f" ({recorded:,} recorded, {synthetic:,} synthetic)" if synthetic else ""


def size(number: int) -> str:
    """Return bytes in decimal units, as in `98.6 kB`."""
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{number} B" if unit == 0 else f"{value:.3g} {_SIZES[unit]}"


def numbers(values: Iterable[int]) -> str:
    """Format numbers as ranges in order, such as `0-7, 12`; `-` for none.

    If there are more than 32 ranges, the others are only counted.
    """
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in runs[:_MOST_RANGES]]
    left_out = sum(high - low + 1 for low, high in runs[_MOST_RANGES:])
    return ", ".join([*parts, f"and {left_out:,} more"] if left_out else parts) or "-"


def value_text(value: str | None) -> str:
    """Return a mark's value as short text: a number to six digits, `-` for none."""
    from ...core.records.rows import number_of  # noqa: PLC0415 - needed only to show marks

    if value is None:
        return "-"
    number = number_of(value)
    if number is not None:
        return f"{number:.6g}"
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"


def wrapped(text: str, head: str, indent: str) -> list[str]:
    """Return `head` and `text` as lines of 80 columns; later lines start with `indent`."""
    glued_text = _UNITS.sub("\\1\N{NO-BREAK SPACE}\\2", text)
    lines = textwrap.wrap(
        glued_text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\xa0", " ") for line in lines]


_MARKS_SHOWN = 5
_MAX_VALUE = 40
_BYTES = re.compile(r"\d{4,18}", re.ASCII)
_LONG_FRACTION = re.compile(r"-?\d{1,9}\.\d{6,20}(e[+-]?\d{1,3})?", re.ASCII)
_MOST_NAMES = 1000
"""The maximum number of mark names that are kept for the scopes of one line."""


def failure(error: str | None) -> str:
    """Return the text shown after a failed scope; "" for any other scope."""
    return "" if error is None else f"  ✗ {_short(printable(error))}"


class Marks:
    """The last value of each mark of the scopes of one line, and the number of marks."""

    def __init__(self, left_out: int = 0) -> None:
        """`left_out` is the number of marks whose names and values are unknown."""
        self.left_out = left_out
        self.last: dict[str | None, str | None] = {}
        self._often: dict[str | None, int] = {}

    def add(self, mark: MarkNode) -> None:
        """Add a mark, which is later than all marks so far."""
        self._take(mark.name, mark.value, 1)

    def merge(self, other: Marks) -> None:
        """Add the marks of `other`, which are later than all marks so far."""
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
            # The sampler's marks have bytes as their value.
            is_size = name == MEMORY and value is not None and _BYTES.fullmatch(value)
            text = size(int(value or 0)) if is_size else _short(value)
            parts.append(f"{shown}={text}" + (f" ({often:,}×)" if often > 1 else ""))
        more = self.left_out + sum(list(self._often.values())[_MARKS_SHOWN:])
        return ", ".join(parts) + (f", {count(more, 'more mark')}" if more else "")


def is_listed(name: str | None) -> bool:
    """Return whether a mark is listed with its scope, rather than in `--json` only.

    The SDK's overhead mark is in every scope, the waits for a CPU are in many, and digests of every
    step would hide other marks.
    """
    is_digest = name is not None and name.startswith(PREFIX)
    return name not in (OVERHEAD_NS, CPU_WAIT_NS) and not is_digest


def marks_of(marks: Iterable[MarkNode], left_out: int) -> Marks:
    """Return the listed marks of a scope.

    `left_out` is the number of further marks, whose names and values are unknown.
    """
    user_marks = Marks(left_out)
    for mark in marks:
        if is_listed(mark.name):
            user_marks.add(mark)
    return user_marks


def appendix(marks: Marks) -> str:
    """Return the text shown after a scope with these marks; "" if there are none."""
    return f"  {marks}" if marks.last or marks.left_out else ""


def _short(value: str | None) -> str:
    """Return a short form of a value: six digits of a long fraction, the start of a long text."""
    if value is None:
        return "?"
    if _LONG_FRACTION.fullmatch(value):
        return f"{float(value):.6g}"
    text = printable(value)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def rank_list(ranks: Sequence[int | None]) -> str:
    """Return ranks as `0-3, 7`; `-` if the records have no rank."""
    return numbers(rank for rank in ranks if rank is not None)


def of_ranks(ranks: Iterable[int | None]) -> str:
    """Return the number of ranks, as in ` of 2 ranks`; "" if no record has a rank.

    The process of `cirron-otel run` and the records of other services have no rank.
    """
    stated = sum(rank is not None for rank in ranks)
    return f" of {count(stated, 'rank')}" if stated else ""
