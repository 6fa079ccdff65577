"""TraceML's numbers as the integers of records."""

from __future__ import annotations

import math
from typing import Any, Final

from ....ids import INT64_LIMIT

MAX_TEXT: Final = 256
"""The longest text about a sender, in characters; frames keep longer ones."""
_NS: Final = 1_000_000_000
_MAX_SECONDS: Final = INT64_LIMIT // _NS
MAX_DURATION_MS: Final = _MAX_SECONDS * 1e3


def number(value: Any) -> float | int | None:
    """Return a finite number, or None for any other value; a bool is not a number."""
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    return None


def time_ns(value: Any) -> int | None:
    """Return seconds since the epoch in nanoseconds; None if they are no valid time."""
    seconds = number(value)
    if seconds is None or not 0 <= seconds < _MAX_SECONDS:
        return None
    whole = int(seconds)
    return whole * _NS + round((seconds - whole) * 1e9)


def duration_ns(milliseconds: Any) -> int | None:
    """Return milliseconds in nanoseconds, rounded; None if they are no valid duration."""
    value = number(milliseconds)
    if value is None or not 0 <= value < MAX_DURATION_MS:
        return None
    return round(value * 1_000_000)


def count(value: Any) -> int | None:
    """Return a whole number of 0 or more that fits into 63 bits, also if it is a float."""
    found = number(value)
    if found is None or not 0 <= found < INT64_LIMIT or found != int(found):
        return None
    return int(found)


def identifier(value: Any) -> int | None:
    """Return an integer that fits into 63 bits, such as a pid or a rank, or None."""
    return value if type(value) is int and -INT64_LIMIT <= value < INT64_LIMIT else None


def text(value: Any) -> str | None:
    """Return the start of a string that is not empty, at most 256 characters; or None."""
    if not isinstance(value, str) or not value:
        return None
    return value[:MAX_TEXT].encode("utf-8", "replace").decode()
