"""What database columns can hold of a JSON value: the value itself, or something close to it.

The result never raises in a driver: text without NUL and half surrogates, integers of the
column's width, finite numbers, JSON of RFC 8259. Exactness is not promised: callers compare what
the columns give back with the truth, and keep the difference.
"""

from __future__ import annotations

import json
import math
from typing import Any

from .. import exactjson
from ..exactjson import Raw

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def text(value: Any) -> str:
    """A text column: another value than text stands as its JSON, a missing one as ""."""
    if value is None:
        return ""
    return clean(value if isinstance(value, str) else exactjson.dumps_ascii(value))


def nullable_text(value: Any) -> str | None:
    """A text column that may be null."""
    return None if value is None else text(value)


def clean(value: str) -> str:
    """`value` with U+FFFD in the place of each character that databases refuse."""
    if value.isascii():
        return value.replace("\0", _REPLACEMENT)
    well_formed = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return well_formed.replace("\0", _REPLACEMENT)


def capped(value: Any, max_bytes: int) -> str | None:
    """A text column of at most `max_bytes` of UTF-8, cut between characters; null for no text."""
    if not isinstance(value, str):
        return None
    return clean(value).encode()[:max_bytes].decode("utf-8", "ignore")


def integer(value: Any, bits: int) -> int | None:
    """An integer column; null for what is none, or does not fit."""
    limit = 1 << bits - 1
    return value if type(value) is int and -limit <= value < limit else None


def number(value: Any) -> float | None:
    """A column of doubles; null for what is no finite number."""
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return None
    return value if type(value) is float and math.isfinite(value) else None


def json_object(value: Any) -> dict[str, Any] | None:
    """A JSON column that holds an object, or null."""
    plain = plain_json(value)
    return plain if isinstance(plain, dict) else None


def plain_json(value: Any) -> Any:
    """A JSON column: what every parser reads; null for a number that it would not."""
    if isinstance(value, dict):
        return {clean(key): plain_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain_json(each) for each in value]
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Raw):
        return (
            plain_json(json.loads(value.text, parse_int=_to_float)) if _is_object(value) else None
        )
    if type(value) is int and integer(value, 64) is None:
        return number(value)
    return value


def _is_object(value: Raw) -> bool:
    """Whether it is an object with a repeated key: the last counts, as for most parsers."""
    return value.text.startswith("{")


def _to_float(token: str) -> int | float:
    return int(token) if len(token) < 19 else float(token)
