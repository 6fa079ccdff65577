"""JSON values → the scalars of protobuf, by proto3 JSON's rules with OTLP's exceptions.

Each converter returns the value for the protobuf field, or raises `Bad` with a description of what
was expected and what was found; the caller, which traverses the document, adds the path.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import InputError

_LONGEST_INT = 24
_SHOWN = 40

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PARTS = re.compile(
    r"(-?)([0-9]++)(?:\.([0-9]++))?(?:[eE]([+-]?)(?=[0-9])0*+([0-9]*+))?"  # linear in any text
)
_LONGEST_EXPONENT = 9
_TO_STANDARD_BASE64 = str.maketrans("-_", "+/")
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Bad(Exception):  # noqa: N818 - never leaves the codec, which turns it into an InputError
    """An invalid value.

    Each caller appends its segment to `path` as the exception propagates, so the innermost segment
    comes first.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


class InexactNumberError(InputError):
    """A double was found for an integer; only the text of the number shows which integer it is."""

    def __init__(self) -> None:
        super().__init__("found a double for an integer, expected its digits as a string")


class Literal(float):
    """A number of JSON text, with its text: `float` may have rounded it."""

    __slots__ = ("text",)
    text: str


def literal(text: str) -> Literal:
    """Return the number that `text`, a token of JSON, represents."""
    number = Literal(text)
    number.text = text
    return number


def shown(value: Any) -> str:
    """Describe `value` for an error message: its JSON kind, and the value itself if short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return f"the string {shortened(value)!a}"
    if type(value) is Literal:
        return f"the number {shortened(value.text)}"
    return f"the number {value!r:.{_SHOWN}}"


def shortened(text: str) -> str:
    """Cut `text` to a length that fits a one-line message."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def string(value: Any) -> str:
    """Convert a JSON string."""
    if type(value) is not str:
        raise Bad(f"expected a string, found {shown(value)}")
    return value


def boolean(value: Any) -> bool:
    """Convert `true` or `false`."""
    if type(value) is not bool:
        raise Bad(f"expected true or false, found {shown(value)}")
    return value


def double(value: Any) -> float:
    """Convert a JSON number, or a string: "NaN", "Infinity", "-Infinity" or a number."""
    if type(value) is float:
        return value
    if type(value) in (int, Literal):
        return float(value)
    if type(value) is str:
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if _NUMBER.fullmatch(value):
            number = float(value)
            if number - number == 0.0:
                return number
            raise Bad(f"{shown(value)} is out of range for a double")
    raise Bad(f"expected a number, found {shown(value)}")


def hex_id(value: Any) -> bytes:
    """Convert hex digits in either case, two per byte, of any length."""
    if type(value) is not str:
        raise Bad(f"expected a string of hex digits, found {shown(value)}")
    try:
        return binascii.unhexlify(value)
    except ValueError:
        raise Bad(
            f"expected hex digits, two per byte, found {len(value)} characters {shortened(value)!a}"
        ) from None


def base64_bytes(value: Any) -> bytes:
    """Convert base64, standard or URL-safe, with or without padding."""
    if type(value) is not str:
        raise Bad(f"expected a base64 string, found {shown(value)}")
    text = value.rstrip("=").translate(_TO_STANDARD_BASE64)
    if len(value) - len(text) <= 2:
        try:
            return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
        except ValueError:
            pass
    raise Bad(f"expected base64, found {shown(value)}")


def integer(name: str, low: int, high: int) -> Callable[[Any], int]:
    """Return the converter for integers of one protobuf type: `low` ≤ value ≤ `high`.

    Numbers and decimal strings are accepted, both with a fraction or an exponent (`1e3`) if their
    exact value is an integer. The converter raises InexactNumberError for a double, which may have
    lost digits: the caller then parses the text again, with `Literal` for such numbers.
    """

    def convert(value: Any) -> int:
        if type(value) is int:
            number = value
        elif (
            type(value) is str and len(value) < _LONGEST_INT and value.isascii() and value.isdigit()
        ):
            number = int(value)
        elif type(value) is float:
            raise InexactNumberError
        else:
            number = _whole(value, name)
        if low <= number <= high:
            return number
        raise Bad(f"{shown(value)} is out of range for {name} ({low} to {high})")

    return convert


def _whole(value: Any, name: str) -> int:
    """Return the integer that a string or a `Literal` represents exactly.

    The size of a number is compared before it is computed: `1e999999999` needs no memory.
    """
    text = value.text if type(value) is Literal else value
    parts = _PARTS.fullmatch(text) if type(text) is str and text.isascii() else None
    if parts is not None:
        sign, integral, fraction, exponent_sign, exponent = parts.groups("")
        digits = (integral + fraction).rstrip("0")
        scale = len(integral) - len(digits)
        if len(exponent) <= _LONGEST_EXPONENT:
            scale += int(exponent_sign + (exponent or "0"))
        elif digits:
            scale = -1 if exponent_sign == "-" else _LONGEST_INT
        digits = digits.lstrip("0")
        if not digits:
            return 0
        if scale >= 0:
            if len(digits) + scale > _LONGEST_INT:
                raise Bad(f"{shown(value)} is out of range for {name}")
            return int(sign + digits + "0" * scale)
    raise Bad(f"expected {name} (a decimal string or a number), found {shown(value)}")


int32 = integer("int32", -(2**31), 2**31 - 1)
int64 = integer("int64", -(2**63), 2**63 - 1)
uint32 = integer("uint32", 0, 2**32 - 1)
uint64 = integer("uint64", 0, 2**64 - 1)


def enum(values: Iterable[tuple[str, int]]) -> Callable[[Any], int]:
    """Return the converter for an open enum: any int32, or the name of a known value."""
    names = dict(values)

    def convert(value: Any) -> int:
        if type(value) is str:
            if value in names:
                return names[value]
            if not value.lstrip("-").isdigit():
                raise Bad(f"expected an integer or one of {', '.join(names)}, found {shown(value)}")
        return int32(value)

    return convert
