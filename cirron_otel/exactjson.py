"""JSON that loses nothing: what Python's numbers and dicts would change is kept as text.

`loads` returns ordinary Python values, except that a token which parsing would change (`1e400`,
`-0`, more digits than a double holds) or an object that repeats a key becomes a `Raw`, its JSON
text. `dumps` writes every value that `loads` can return. `equal` compares as JSON values: an int
is not a float, -0.0 is not 0.0, NaN is NaN, the order of keys does not matter.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from .errors import InputError

# Python refuses to parse longer integers (int_max_str_digits); far below that limit already,
# an int is no longer a number anybody computes with.
_MAX_INT_DIGITS = 4000


class Raw:
    """A piece of JSON text, in ASCII, that no Python value stands for exactly."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        """Keep `text`, which must be valid JSON in ASCII (other characters as escapes)."""
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raw) and other.text == self.text

    def __hash__(self) -> int:
        return hash((Raw, self.text))

    def __repr__(self) -> str:
        return f"Raw({self.text!r})"


def _parse_int(token: str) -> int | Raw:
    if token == "-0" or len(token) > _MAX_INT_DIGITS:  # noqa: S105 - a token of JSON
        return Raw(token)
    return int(token)


def _parse_float(token: str) -> float | Raw:
    value = float(token)
    if token == repr(value):
        return value
    if math.isinf(value) or Decimal(repr(value)) != Decimal(token):
        return Raw(token)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Raw:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    return Raw("{" + ",".join(f"{dumps_ascii(k)}:{dumps_ascii(v)}" for k, v in pairs) + "}")


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_parse_int, parse_float=_parse_float
)


def loads(data: bytes | str) -> Any:
    """Parse one JSON document, exactly.

    Raises InputError where it is not UTF-8, not JSON, or nested too deep to be handled.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise InputError("JSON nested too deep: more levels than can be handled") from None


def dumps(value: Any) -> bytes:
    """Write `value` as compact JSON in UTF-8; lone surrogates become escapes."""
    text = _text(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return dumps_ascii(value).encode("ascii")


def dumps_ascii(value: Any) -> str:
    """Write `value` as compact JSON in ASCII: it can be cut anywhere and joined again."""
    return _text(value, ascii_only=True)


def _text(value: Any, ascii_only: bool = False) -> str:
    try:
        return _encoders[ascii_only].encode(value)
    except TypeError:  # a Raw is in it: the standard encoder has no way to write text verbatim
        return _walk(value, ascii_only)


_encoders = {
    ascii_only: json.JSONEncoder(ensure_ascii=ascii_only, separators=(",", ":"), allow_nan=True)
    for ascii_only in (False, True)
}


def _walk(value: Any, ascii_only: bool) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        items = (f"{_walk(k, ascii_only)}:{_walk(v, ascii_only)}" for k, v in value.items())
        return "{" + ",".join(items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_walk(v, ascii_only) for v in value) + "]"
    return _encoders[ascii_only].encode(value)


def equal(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON value (see the module's text)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(v, b[k]) for k, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, float):
        if a == b:
            return math.copysign(1.0, a) == math.copysign(1.0, b)
        return a != a and b != b
    return bool(a == b)


def dumps_sorted(value: Any) -> str:
    """Write `value` as `dumps_ascii` does, the keys of every object in sorted order: for hashes."""
    return dumps_ascii(_sorted(value))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value
