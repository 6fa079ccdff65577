"""Convert users' attributes to JSON; values that JSON cannot represent become readable text."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ...ids import INT64_LIMIT
from ..tracing.coerce import Deferred, RefusedValueError, coerce

_MAX_DEPTH = 16
_MAX_TEXT = 8192
"""Maximum characters of the text of an object that is not a JSON value."""
_MAX_ITEMS = 100_000
"""Maximum number of items in all containers of one attribute, because a list may contain itself."""
MAX_INTEGER_BITS = 12_000
"""Integers with more bits cannot be written: Python's limit is 4,300 digits."""
_SIMPLE = frozenset({str, bool, type(None)})
NONE: dict[str, Any] = {}


def plain_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `attributes` as a JSON object."""
    if not attributes:
        return NONE
    for key, value in attributes.items():
        kind = type(value)
        if kind is float:
            is_plain = value - value == 0.0  # neither NaN nor infinite
        elif kind is int:
            is_plain = -INT64_LIMIT <= value < INT64_LIMIT
        else:
            is_plain = kind in _SIMPLE
        if not is_plain or type(key) is not str:
            return {text_of(k): plain(v) for k, v in dict(attributes).items()}
    return dict(attributes)


def plain(value: Any) -> Any:
    """Return `value` as a JSON value; NaN and infinities as cirron-sdk's `nan`, `inf`, `-inf`."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    try:
        return _plain(value, 1, [_MAX_ITEMS])
    except Exception:
        return f"<{kind.__name__}>"


def text_of(value: object) -> str:
    """Return the text of any object as an exact `str`; never raises."""
    try:
        text = str.__str__(value) if isinstance(value, str) else str(value)
        return text if type(text) is str else str.__str__(text)
    except Exception:
        return f"<{type(value).__name__}: str() failed>"


def _plain(value: Any, depth: int, room: list[int]) -> Any:
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is int:
        bits = value.bit_length()
        return value if bits <= MAX_INTEGER_BITS else f"<int of {bits} bits>"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _non_finite(value)
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, (Mapping, Sequence, Set)):
        room[0] -= len(value)
        if depth >= _MAX_DEPTH or room[0] < 0:
            return f"<{kind.__name__} of {len(value)}>"
        if isinstance(value, Mapping):
            return {text_of(k): _plain(v, depth + 1, room) for k, v in list(value.items())}
        return [_plain(item, depth + 1, room) for item in list(value)]
    return _other(value)


def _non_finite(value: float) -> str:
    if value != value:
        return "nan"
    return "inf" if value > 0 else "-inf"


def _other(value: Any) -> Any:
    try:
        scalar = value if isinstance(value, Deferred) else coerce(value)
        if isinstance(scalar, Deferred):
            scalar = scalar.value()
        return plain(scalar)
    except RefusedValueError:
        pass
    except Exception:
        return f"<{type(value).__name__}>"
    return text_of(value)[:_MAX_TEXT]
