"""A scope as one line of text: what `trace()` prints and what `output="stdout"` shows.

The form is cirron-sdk's, `epoch[0] — 1.50s {loss=0.2500}`, except that small and large numbers
keep their digits (a learning rate of 1e-05 is no 0.0000) and that no name or value breaks a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TextIO

from msgspec import Raw

from .. import semconv as sc
from .rows import MarkRow

MOST_MARKS = 20
"""Marks on one line; the rest is counted."""
MOST_TEXT = 80
"""Characters of a name or of a mark's text."""
_FIXED = (1e-3, 1e7)


def scope_line(name: Any, index: Any, wall_us: int, marks: Iterable[tuple[Any, Any]]) -> str:
    """One scope; `marks` are names and values, as they were made."""
    number = "" if index is None else f"[{index}]"
    shown = list(marks)
    said = [f"{_text(key)}={_value(value)}" for key, value in shown[:MOST_MARKS]]
    if len(shown) > MOST_MARKS:
        said.append(f"… {len(shown) - MOST_MARKS} more")
    rest = f" {{{', '.join(said)}}}" if said else ""
    return f"{_text(name)}{number} — {duration(wall_us)}{rest}"


def duration(wall_us: int) -> str:
    """Microseconds for people."""
    if wall_us < 1_000:
        return f"{wall_us}us"
    if wall_us < 1_000_000:
        return f"{wall_us / 1e3:.1f}ms"
    return f"{wall_us / 1e6:.2f}s"


def value_of(mark: MarkRow) -> Any:
    """The number, bool or text of a mark; NaN and the infinities as floats."""
    if isinstance(mark.value_nonfinite, str):
        return float(mark.value_nonfinite)
    if isinstance(mark.value, Raw):
        return int(bytes(mark.value))
    return mark.value


def is_users(mark: MarkRow) -> bool:
    """Whether the user made it, and not the SDK of its own time."""
    return bool(mark.name != sc.OVERHEAD_NS)


def write_text(stream: TextIO, text: str) -> None:
    """Write where the stream's encoding may not know every character."""
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
