"""JSON without loss: values that Python's numbers and dicts would change are kept as text.

`loads` returns ordinary Python values, except that a token which parsing would change (`1e400`,
`-0`, more digits than a double holds) or an object that repeats a key becomes a `Raw`, its JSON
text. `dumps` writes every value that `loads` can return. `equal` compares as JSON values: an int
is not a float, -0.0 is not 0.0, NaN is NaN, the order of keys does not matter.

`loads` refuses documents that are nested deeper than a fixed limit. Every function here uses one
stack frame for each level, so a value that `loads` returned can always be written and compared.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

from .errors import InputError

# Python refuses to parse integers with more digits than int_max_str_digits. Integers anywhere near
# that limit are not used in calculations, so keeping them as text costs nothing.
_MAX_INT_DIGITS = 4000

MAX_DEPTH = 512
"""The deepest nesting of a document, in levels; Python's recursion limit is 1,000 by default."""


class Raw:
    """A piece of JSON text, in ASCII, that no Python value represents exactly."""

    __slots__ = ("depth", "text")

    def __init__(self, text: str, depth: int = 0) -> None:
        """Keep `text`, which must be valid JSON in ASCII (other characters as escapes).

        `depth` is the number of nesting levels in `text`.
        """
        self.text = text
        self.depth = depth

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
    if value == 0.0:
        # Decimal refuses exponents of 19 digits; the exponent of a zero does not matter.
        is_exact = not _NONZERO.search(token.lower().partition("e")[0])
    else:
        is_exact = not math.isinf(value) and Decimal(repr(value)) == Decimal(token)
    return value if is_exact else Raw(token)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Raw:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    text = ",".join(f"{dumps_ascii(key)}:{dumps_ascii(value)}" for key, value in pairs)
    return Raw("{" + text + "}", 1 + depth_of([value for _, value in pairs], MAX_DEPTH))


_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"\\'))
_PASSES = 64
_CONTAINERS = frozenset((dict, list, Raw))
_NONZERO = re.compile("[1-9]")
_TOO_DEEP = "JSON nested too deep: more than {} levels"

_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_parse_int, parse_float=_parse_float
)


def loads(data: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any:
    """Parse one JSON document, exactly.

    Raises InputError if it is not UTF-8, not JSON, or has more than `max_depth` levels.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise InputError(_TOO_DEEP.format(max_depth)) from None
    few = text.count("[") + text.count("{") <= max_depth
    if not few and not _is_shallow(text) and depth_of([value], max_depth) > max_depth:
        raise InputError(_TOO_DEEP.format(max_depth))
    return value


def _is_shallow(text: str) -> bool:
    """Return whether the brackets prove that a document has fewer than 2 * _PASSES levels.

    Each pass removes one or two levels. Brackets in strings, and escapes, prove nothing.
    """
    brackets = text.encode("utf-8", "surrogatepass").translate(None, _NO_STRUCTURE)
    if b"\\" in brackets:
        return False
    brackets = brackets.replace(b'""', b"")
    for _ in range(_PASSES):
        if not brackets:
            break
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return not brackets


def depth_of(values: list[Any], at_most: int) -> int:
    """Return the deepest nesting among `values`, in levels; a result above `at_most` is inexact."""
    depth = deepest = 0
    while depth <= at_most:
        # Most values are scalars, and a comprehension skips them fast.
        containers = [value for value in values if type(value) in _CONTAINERS]
        if not containers:
            break
        values = []
        for value in containers:
            kind = type(value)
            levels = 1 if kind is not Raw else value.depth
            deepest = max(deepest, depth + levels)
            if kind is dict:
                values += value.values()
            elif kind is list:
                values += value
        depth += 1
    return deepest


def dumps(value: Any) -> bytes:
    """Write `value` as compact JSON in UTF-8; lone surrogates become escapes."""
    text = _text(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return dumps_ascii(value).encode("ascii")


def dumps_ascii(value: Any) -> str:
    """Write `value` as compact JSON in ASCII, which can be split anywhere and rejoined."""
    return _text(value, ascii_only=True)


def _text(value: Any, ascii_only: bool = False) -> str:
    try:
        return _encoders[ascii_only].encode(value)
    except TypeError:  # `value` contains a Raw, which the standard encoder cannot write
        return _walk(value, ascii_only)


_encoders = {
    ascii_only: json.JSONEncoder(ensure_ascii=ascii_only, separators=(",", ":"), allow_nan=True)
    for ascii_only in (False, True)
}


def _walk(value: Any, ascii_only: bool) -> str:
    # Loops rather than comprehensions, which would take a second frame for each level.
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        items = []
        for key, item in value.items():
            items.append(f"{_encoders[ascii_only].encode(key)}:{_walk(item, ascii_only)}")
        return "{" + ",".join(items) + "}"
    if isinstance(value, list):
        texts = []
        for item in value:
            texts.append(_walk(item, ascii_only))
        return "[" + ",".join(texts) + "]"
    return _encoders[ascii_only].encode(value)


_PLAIN: Final = frozenset({str, int, bool, type(None)})
"""The types of values for which Python's equality is that of JSON values of the same type."""


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are the same JSON value, by the rules in the module's docstring."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return False
        # Loops rather than all(), which would take a second frame for each level. Most values are
        # compared here, because a call takes longer.
        for key, value in a.items():
            other = b[key]
            if type(value) in _PLAIN:
                if type(value) is not type(other) or value != other:
                    return False
            elif not equal(value, other):
                return False
        return True
    if isinstance(a, list):
        if len(a) != len(b):
            return False
        for left, right in zip(a, b, strict=True):  # noqa: SIM110
            if not equal(left, right):
                return False
        return True
    if isinstance(a, float):
        if a == b:
            return math.copysign(1.0, a) == math.copysign(1.0, b)
        return a != a and b != b
    return bool(a == b)


def dumps_sorted(value: Any) -> str:
    """Write `value` like `dumps_ascii`, but with the keys of every object sorted, for hashing."""
    return dumps_ascii(_sorted(value))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        result = {}
        for key in sorted(value):
            result[key] = _sorted(value[key])
        return result
    if isinstance(value, list):
        items = []
        for item in value:
            items.append(_sorted(item))
        return items
    return value
