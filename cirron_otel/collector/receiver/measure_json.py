"""Measuring JSON before it is parsed: what becomes objects is counted in the text.

A value of two bytes takes a Python object of up to 64, and a message's object as much again: 30 MB
of empty attributes become 2 GB. Brackets and commas outside of texts tell how many there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .measure import MAX_ELEMENTS, TooManyElementsError

_OBJECTS_EACH = 3
"""Objects that an element of OTLP is at most: a key-value, its value, and the list in that."""
_VALUES_EACH = 16
"""Values, lists and objects; attributes have four, a span with all its fields has twenty."""

_STEP = 256 * 1024
"""Bytes that are looked at at once: other threads stand still meanwhile, and texts that are left
out of them take many times as much."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""One that does not end is a text, too: else each quote in it would be tried anew."""
_WHOLE_TEXTS = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)


def check_json(body: bytes, max_elements: int = MAX_ELEMENTS) -> None:
    """Raise TooManyElementsError where parsing `body` would take more than that many elements do.

    What is no JSON is left to whoever parses it. Takes little memory, whatever the body is.
    """
    # What stands in texts is counted as well at first: mostly that is little.
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
    """`body` without its texts, in pieces."""
    at = 0
    while at < len(body):
        end = _end(_WHOLE_TEXTS.match(body, at, at + _STEP))
        if end > at:
            yield _TEXT.sub(b"", body[at:end])
        else:  # a text that is longer than a step
            end = _end(_TEXT.match(body, at))
        at = end


def _end(match: re.Match[bytes] | None) -> int:
    assert match is not None  # noqa: S101 - one pattern takes nothing, too, the other a quote
    return match.end()
