"""Count the values of a JSON text before it is parsed into objects.

A value of two bytes becomes a Python object of up to 64 bytes, and then a message object of the
same size: 30 MB of empty attributes become 2 GB. The number of brackets and commas outside of
strings is an upper bound for the number of values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .measure import MAX_ELEMENTS, TooManyElementsError

_OBJECTS_EACH = 3
"""Maximum number of objects per element of OTLP: a key-value, its value, and the list in that."""
_VALUES_EACH = 16
"""Values, lists and objects per element; an attribute has four, a span with all fields twenty."""

_STEP = 256 * 1024
"""Bytes to examine at a time: other threads are blocked meanwhile, and removing strings takes many
times as much memory."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string. It may be unterminated: otherwise the search would start again at each quote."""
_WHOLE_TEXTS = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)


def check_json(body: bytes, max_elements: int = MAX_ELEMENTS) -> None:
    """Raise TooManyElementsError if `body` has more values than `max_elements` elements can have.

    Invalid JSON is left to the parser. Memory use is small for any body.
    """
    # First count the characters within strings as well: usually that is enough.
    if not _is_within(_steps(body), max_elements) and not _is_within(
        _outside_texts(body), max_elements
    ):
        raise TooManyElementsError(
            f"more values than {max_elements} elements (spans, events, attributes, …) have, in one"
            " request: send smaller batches"
        )


def _is_within(pieces: Iterable[bytes], max_elements: int) -> bool:
    objects = values = 0
    for piece in pieces:
        braces = piece.count(b"{")
        objects += braces
        values += braces + piece.count(b"[") + piece.count(b",")
        if objects > _OBJECTS_EACH * max_elements + 1 or values > _VALUES_EACH * max_elements + 1:
            return False
    return True


def _steps(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), _STEP):
        yield body[at : at + _STEP]


def _outside_texts(body: bytes) -> Iterator[bytes]:
    """Yield `body` without its strings, in pieces."""
    at = 0
    while at < len(body):
        end = _end(_WHOLE_TEXTS.match(body, at, at + _STEP))
        if end > at:
            yield _TEXT.sub(b"", body[at:end])
        else:  # a string that is longer than a step
            end = _end(_TEXT.match(body, at))
        at = end


def _end(match: re.Match[bytes] | None) -> int:
    assert match is not None  # noqa: S101 - one pattern matches "", the other any quote
    return match.end()
