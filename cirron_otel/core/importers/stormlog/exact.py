"""Exact parsing of one record, and the problems of its JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from .... import exactjson
from ....errors import InputError

_SPACE = b" \t\r\n"
_INT64 = range(-(2**63), 2**63)


class RecordProblem(NamedTuple):
    """A problem of a record: a stable code, and a message for people."""

    code: str
    message: str


class ParsedRecord(NamedTuple):
    """A parsed record.

    `data` is None if the text is not a JSON object. Otherwise `data` has the values that Python's
    json module returns, except that a number that would change when it is written again is an
    `exactjson.Raw`. `problems` lists what JSON readers disagree on.
    """

    data: dict[str, Any] | None
    problems: tuple[RecordProblem, ...] = ()


def parse_record(raw: bytes, value: Any = None) -> ParsedRecord:
    """Parse the text of one record without changing any value silently.

    `value` is what orjson returns for `raw`, if that is known.
    """
    if value is None:
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return _parse_slowly(raw)
    # No text in JSON contains a line break, and removing the spaces of strings from both sides
    # changes neither's equality, so equal texts prove that orjson lost nothing.
    if (
        type(value) is dict
        and orjson.dumps(value).translate(None, _SPACE) == raw.translate(None, _SPACE)
    ):  # fmt: skip
        return ParsedRecord(value)
    return _parse_slowly(raw)


def _parse_slowly(raw: bytes) -> ParsedRecord:
    try:
        value = exactjson.loads(raw)
    except InputError as error:
        return ParsedRecord(None, (RecordProblem("not-json", str(error)),))
    problems = []
    if _repeats_a_key(value):
        # Readers that accept repeated keys take the last value; `raw` has them all.
        problems.append(RecordProblem("repeated-key", "a key is repeated: expected each key once"))
        value = json.loads(raw)
    if not isinstance(value, dict):
        kind = type(value).__name__
        return ParsedRecord(
            None, (RecordProblem("not-an-object", f"expected an object, found {kind}"),)
        )
    problems += dict.fromkeys(_odd_values(value))
    return ParsedRecord(value, tuple(problems))


def _repeats_a_key(value: Any) -> bool:
    if isinstance(value, exactjson.Raw):
        return value.text.startswith("{")
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and any(_repeats_a_key(item) for item in value)


def _odd_values(value: Any) -> Iterator[RecordProblem]:
    """Yield the values that other JSON readers refuse or change."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _odd_values(key)
            yield from _odd_values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _odd_values(item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield RecordProblem(
                "not-finite", "NaN or Infinity is not JSON: expected a number or null"
            )
    elif isinstance(value, int):
        if value not in _INT64:
            yield RecordProblem("large-integer", "an integer has more than 64 bits")
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            yield RecordProblem("lone-surrogate", "a string contains half of a surrogate pair")
