"""Numbers, sizes, times and names as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from .. import durations

duration = durations.duration

_SIZES = ("B", "kB", "MB", "GB", "TB")
_SECOND = 1_000_000_000
_LONGEST_VALUE = 40


def printable(text: str) -> str:
    """`text` with everything escaped that is no printable character: controls, surrogates."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def count(number: int, one: str, many: str = "") -> str:
    """`1 span`, `1,234 spans`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def added(recorded: int, synthetic: int) -> str:
    """Explain why more spans are sent than were recorded; "" if that is not so."""
    return f" ({recorded:,} recorded, {synthetic:,} synthetic)" if synthetic else ""


def size(number: int) -> str:
    """Bytes in decimal units: `98.6 kB`."""
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{number} B" if unit == 0 else f"{value:.3g} {_SIZES[unit]}"


def moment(ns: int | None) -> str:
    """Wall-clock nanoseconds as UTC to the second; `?` where not known."""
    if ns is None:
        return "?"
    try:
        return datetime.fromtimestamp(ns // _SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"


def local_moment(ns: int | None) -> str:
    """Wall-clock nanoseconds as local time to the second, with the zone; `?` where not known."""
    if ns is None:
        return "?"
    try:
        local = datetime.fromtimestamp(ns // _SECOND, UTC).astimezone()
        return local.strftime("%Y-%m-%d %H:%M:%S %Z").rstrip()
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"


def clock_time(ns: int | None) -> str:
    """The local time of day of `local_moment`."""
    text = local_moment(ns)
    return text.split(" ")[1] if text.count(" ") >= 2 else text


def numbers(values: list[int]) -> str:
    """Sorted numbers with runs drawn together: `0-7, 12`; `-` for none."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ", ".join(parts) or "-"


def value_text(value: str | None) -> str:
    """A mark's value as text, short: a number to six digits, `-` for none."""
    from ..spool.rows import number_of  # noqa: PLC0415 - for those who show marks

    if value is None:
        return "-"
    number = number_of(value)
    if number is not None:
        return f"{number:.6g}"
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"
