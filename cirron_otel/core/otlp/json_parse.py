"""JSON text → Python values, with orjson if it is exact, otherwise with Python's own parser.

orjson refuses the bare tokens `NaN` and `Infinity`, reads `-0` as the integer 0, and turns integers
beyond 64 bits into doubles. Documents with bare tokens or `-0` use Python's own parser. So do
documents with a double for a field that is an integer (`1e3`): there, the text decides.

JSON can contain an escape for half of a surrogate pair: JavaScript writes one for a string that was
cut within a character. This is not valid Unicode, and protobuf refuses it. U+FFFD replaces it, as
in Go's decoder, and the replacement is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from ...errors import InputError
from .json_keys import TOO_DEEP, check_keys
from .json_scalars import InexactNumberError, Literal, literal

_Result = TypeVar("_Result")


class NotJsonError(InputError):
    """A text is not one JSON document; it may be a part of one, or contain several."""


_MINUS_ZERO = re.compile(rb"[:,\[]\s*-0\s*[,}\]]")
_BARE_TOKEN = re.compile(rb"[:,\[]\s*(NaN|-?Infinity)\b")
_LONGEST_INT = 20

# An escaped surrogate pair, an escaped half of a pair (the group), or any other escape.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def parse_into(data: bytes, convert: Callable[[Any], _Result]) -> tuple[_Result, list[str]]:
    """Parse `data`, and convert the document; return the result, and the lines of `parse`.

    `convert` is called a second time, with the exact text of numbers, if it found a double for an
    integer. Raises the errors of `parse` and of `convert`.
    """
    document, replaced = parse(data)
    try:
        return convert(document), replaced
    except InexactNumberError:
        document, replaced = _parse_slowly(data)
        return convert(document), replaced


def parse(data: bytes) -> tuple[Any, list[str]]:
    """Parse `data`; return the document, and a line for replaced surrogates if there are any.

    Raises NotJsonError with line and column if `data` is not JSON, InputError with the JSON path of
    a repeated key or if `data` is nested too deeply, and MemoryError if memory is short.
    """
    if b"-0" in data and _MINUS_ZERO.search(data):
        return _parse_slowly(data)
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if _BARE_TOKEN.search(data):
            return _parse_slowly(data)
        reason = str(error)
    else:
        check_keys(data, document)
        return document, []
    if "depth limit" in reason or "recursion" in reason.lower():
        raise InputError(TOO_DEEP)
    if reason.startswith("Not enough memory"):
        raise MemoryError(reason)
    if "surrogate" in reason:
        well_formed, replaced = _without_halves(data)
        if replaced:
            return parse(well_formed)[0], replaced
    raise NotJsonError(f"not JSON: {reason}")


def _without_halves(data: bytes) -> tuple[bytes, list[str]]:
    """Replace escaped halves of surrogate pairs in `data`; also return a line that reports them."""
    count = 0

    def replacement(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match[1] is None:
            return match[0]
        count += 1
        return rb"\ufffd"

    data = _ESCAPE.sub(replacement, data)
    halves = "1 half of a surrogate pair" if count == 1 else f"{count} halves of surrogate pairs"
    return data, [f"{halves} in strings replaced by U+FFFD"] if count else []


def _parse_slowly(data: bytes) -> tuple[Any, list[str]]:
    data, replaced = _without_halves(data)
    try:
        document = _decoder.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise NotJsonError(
            f"not JSON: {error.msg}: line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise InputError(TOO_DEEP) from None
    check_keys(data, document)
    return document, replaced


def _int(text: str) -> int | Literal:
    """Parse an int; -0 keeps its sign, and a large one its text."""
    if text == "-0" or len(text) > _LONGEST_INT:
        return _float(text)
    value = int(text)
    return value if -(2**63) <= value < 2**64 else _float(text)


def _float(text: str) -> Literal:
    value = literal(text)
    if value - value != 0.0:
        raise InputError(f"the number {text[:40]} is out of range")
    return value


_decoder = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=literal)
