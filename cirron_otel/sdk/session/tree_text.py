"""Format a scope as one line of text, for `trace()` and `output="stdout"`.

The format is cirron-sdk's, `epoch[0] — 1.50s {loss=0.2500}`, except that small and large numbers
keep their digits (a learning rate of 1e-05 is not 0.0000) and that names and values contain no line
breaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TextIO

from msgspec import Raw

from ... import semconv as sc
from ..flush.rows import MarkRow

MOST_MARKS = 20
"""Maximum number of marks on one line; any others are only counted."""
MOST_TEXT = 80
"""Maximum characters of a name or of a mark's text."""
_FIXED = (1e-3, 1e7)


def scope_line(name: Any, index: Any, wall_us: int, marks: Iterable[tuple[Any, Any]]) -> str:
    """Return the line of one scope; `marks` are names and values in the order of the marks."""
    number = "" if index is None else f"[{index}]"
    shown = list(marks)
    parts = [f"{_text(key)}={_value(value)}" for key, value in shown[:MOST_MARKS]]
    if len(shown) > MOST_MARKS:
        parts.append(f"… {len(shown) - MOST_MARKS} more")
    marks_text = f" {{{', '.join(parts)}}}" if parts else ""
    return f"{_text(name)}{number} — {duration(wall_us)}{marks_text}"


def duration(wall_us: int) -> str:
    """Format microseconds for display."""
    if wall_us < 1_000:
        return f"{wall_us}us"
    if wall_us < 1_000_000:
        return f"{wall_us / 1e3:.1f}ms"
    return f"{wall_us / 1e6:.2f}s"


def value_of(mark: MarkRow) -> Any:
    """Return the number, bool, or text of a mark; NaN and infinities as floats."""
    if isinstance(mark.value_nonfinite, str):
        return float(mark.value_nonfinite)
    if isinstance(mark.value, Raw):
        return int(bytes(mark.value))
    return mark.value


def is_users(mark: MarkRow) -> bool:
    """Return whether a mark is the user's, rather than one with the SDK's own time."""
    return bool(mark.name != sc.OVERHEAD_NS)


def write_text(stream: TextIO, text: str) -> None:
    """Write text to a stream whose encoding may lack some of the characters."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _value(value: Any) -> str:
    if not isinstance(value, float):
        return _text(value)
    if not math.isfinite(value) or value == 0 or _FIXED[0] <= abs(value) < _FIXED[1]:
        return f"{value:.4f}"
    return f"{value:.4g}"


def _text(value: Any) -> str:
    text = str(value)
    if not text.isprintable():
        text = ascii(text)[1:-1]
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"
