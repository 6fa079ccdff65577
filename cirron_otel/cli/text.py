"""Numbers, sizes, times and names as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

_SIZES = ("B", "kB", "MB", "GB", "TB")
_DURATIONS = ((1, "ns", 1_000), (1_000, "µs", 1_000_000), (1_000_000, "ms", 1_000_000_000))
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


def duration(ns: int | None) -> str:
    """Nanoseconds in the unit that suits them: `412 ms`, `1 h 02 min`; `?` where not known."""
    if ns is None:
        return "?"
    if ns < 0:
        return "-" + duration(-ns)
    for scale, unit, below in _DURATIONS:
        if round(ns / scale, 0 if ns >= 100 * scale else 2) * scale < below:
            return f"{ns / scale:.3g} {unit}"
    seconds = ns / _SECOND
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def moment(ns: int | None) -> str:
    """Wall-clock nanoseconds as UTC to the second; `?` where not known."""
    if ns is None:
        return "?"
    try:
        return datetime.fromtimestamp(ns // _SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"


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
