"""Series of numbers as one line of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

WIDTH: Final = 40
"""The maximum number of characters."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.-=+*%#"
_NO_NUMBER: Final = "?"


def sparkline(values: Sequence[float], encoding: str | None = "utf-8") -> str:
    """Return the values as characters of growing height, at most 40.

    If there are more values, each character is the median of several. A value that is not a finite
    number is `?`. Plain ASCII is used if `encoding` lacks the block characters.
    """
    levels = _BLOCKS if _can_encode(encoding) else _ASCII
    points = _reduced(values)
    finite = [each for each in points if math.isfinite(each)]
    if not finite:
        return _NO_NUMBER * len(points)
    low, high = min(finite), max(finite)
    return "".join(_level(each, low, high, levels) for each in points)


def _level(value: float, low: float, high: float, levels: str) -> str:
    if not math.isfinite(value):
        return _NO_NUMBER
    # Half of each value, because the difference of two doubles can overflow.
    room = high / 2 - low / 2
    part = (value / 2 - low / 2) / room if room > 0 else 0.0
    return levels[min(int(part * len(levels)), len(levels) - 1)]


def _reduced(values: Sequence[float]) -> list[float]:
    if len(values) <= WIDTH:
        return list(values)
    points = []
    for place in range(WIDTH):
        first, last = place * len(values) // WIDTH, (place + 1) * len(values) // WIDTH
        part = sorted(each for each in values[first:last] if math.isfinite(each))
        points.append(part[(len(part) - 1) // 2] if part else math.nan)
    return points


def _can_encode(encoding: str | None) -> bool:
    try:
        _BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
