"""Numbers, sizes, times and names as text for people."""

from __future__ import annotations

import re
import textwrap

from ...core import durations, moments

duration = durations.duration
local_moment, clock_time = moments.local_moment, moments.clock_time

WIDTH = 80
"""The columns of wrapped text."""

_SIZES = ("B", "kB", "MB", "GB", "TB")
_LONGEST_VALUE = 40
_UNITS = re.compile(r"(\d) ((?:ns|µs|ms|s|min|h|%|steps/s)\b)")
"""Matches a figure and its unit, which stay on one line."""


def printable(text: str) -> str:
    """Return `text` with every unprintable character escaped: controls, surrogates."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def reason(error: str) -> str:
    """Return the status message of a failed or killed session, to show beside its state."""
    text = printable(error).removeprefix("killed: ").removeprefix("incomplete: ")
    return text.replace("without closing this scope", "without closing its session")


def count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, as in `1 span` or `1,234 spans`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def added(recorded: int, synthetic: int) -> str:
    """Explain why more spans are sent than were recorded; "" if the numbers are equal."""
    return f" ({recorded:,} recorded, {synthetic:,} synthetic)" if synthetic else ""


def size(number: int) -> str:
    """Return bytes in decimal units, as in `98.6 kB`."""
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{number} B" if unit == 0 else f"{value:.3g} {_SIZES[unit]}"


def numbers(values: list[int]) -> str:
    """Return sorted numbers with ranges, as in `0-7, 12`; `-` for none."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ", ".join(parts) or "-"


def value_text(value: str | None) -> str:
    """Return a mark's value as short text: a number to six digits, `-` for none."""
    from ...core.records.rows import number_of  # noqa: PLC0415 - for those who show marks

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
