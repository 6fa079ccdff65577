"""Repeated keys of JSON objects, of which parsers keep only the last.

RFC 8259 leaves the meaning of a repeated key open, and protobuf's JSON format does not allow it. A
document with one is refused: otherwise all values but the last would be lost without notice.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import orjson

from ...errors import InputError
from .json_scalars import shortened

TOO_DEEP = "JSON nested deeper than OTLP allows: flatten the attribute values"

_TOKEN = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"([ \t\r\n]*+:)?|[\[\]{},]', re.DOTALL)
"""Matches a structural character, or a string; the second group matches if the string is a key."""
_STRING, _KEY = 1, 2
_ESCAPE = re.compile(rb"\\(?:(u003[aA])|.)", re.DOTALL)
_SHOWN = 300


def check_keys(data: bytes, document: Any) -> None:
    """Raise InputError, with its JSON path, if a key is repeated in an object of `data`.

    `document` is the result of parsing `data`, which must be valid JSON in UTF-8. Also raises
    InputError if it is nested too deeply.

    Each member of an object has a colon, and the colons in strings stay when the document is
    written again. So there are fewer colons if, and only if, members are missing.
    """
    written = _written(document)
    if written == data or written.count(b":") == data.count(b":") + _escaped_colons(data):
        return
    raise InputError(
        f"{_shown(_first_repeat(data))}: the key occurs twice in its object, expected once:"
        " remove one, or merge their values"
    )


def _written(document: Any) -> bytes:
    try:
        return orjson.dumps(document, default=float)
    except orjson.JSONEncodeError:  # nested deeper than orjson writes; it is the fastest
        pass
    try:
        return msgspec.json.encode(document, enc_hook=float)
    except RecursionError:
        raise InputError(TOO_DEEP) from None


def _escaped_colons(data: bytes) -> int:
    """Return how many colons in strings of `data` are written as escapes."""
    if b"\\" not in data or b"\\u003" not in data:  # one byte is found faster than several
        return 0
    return sum(1 for escape in _ESCAPE.finditer(data) if escape[1] is not None)


def _first_repeat(data: bytes) -> list[bytes | int]:
    """Return the keys and indices that lead to the second occurrence of the first repeated key."""
    keys_of: list[set[bytes] | None] = []  # of each open object; None for an array
    path: list[bytes | int] = []
    for token in _TOKEN.finditer(data):
        if token.lastindex == _KEY:
            key = token[_STRING]
            if b"\\" in key:
                key = orjson.loads(b'"' + key + b'"').encode()
            path[-1] = key
            keys = keys_of[-1]
            if keys is None or key in keys:
                break
            keys.add(key)
        elif token.lastindex is None:
            match token[0]:
                case b"{":
                    keys_of.append(set())
                    path.append(b"")
                case b"[":
                    keys_of.append(None)
                    path.append(0)
                case b",":
                    if isinstance(index := path[-1], int):
                        path[-1] = index + 1
                case _:
                    keys_of.pop()
                    path.pop()
    return path


def _shown(path: list[bytes | int]) -> str:
    """Return `path` as text for a message: in one line, and shortened in the middle if long."""
    steps = (f"[{step}]" if isinstance(step, int) else _shown_key(step) for step in path)
    text = "".join(steps).removeprefix(".")
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"


def _shown_key(key: bytes) -> str:
    text = shortened(key.decode())
    return f".{text}" if text.isascii() and text.isidentifier() else f"[{text!a}]"
