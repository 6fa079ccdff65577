"""Files of records, cut into pieces in bounded memory: JSON lines, arrays, and objects.

A file is the concatenation of `before + raw` of all its pieces, so that it can be written again
byte for byte. A piece that is longer than the limit keeps no bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson

MAX_RECORD_BYTES = 16 * 2**20
"""The longest record that is read; Stormlog's own have about 1,000 bytes."""
_CHUNK = 2**18
_SPACE = b" \t\r\n"
_STRUCTURE = re.compile(rb'["\[\]{}]')
_STRING_END = re.compile(rb'["\\]')
_LIKELY_END = re.compile(rb"\}(?=\s*,\s*\{|\s*\])")
_SCALAR_END = re.compile(rb"[\s,\]}]")
_OPEN = ord("{")
_END = re.compile(rb"(?!)")
"""Matches nothing: a search for it moves to the end of the stream."""
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")


@dataclass(slots=True)
class Piece:
    """One record's text, or the text that ends a file."""

    position: int
    """The number of the line, from 1; in an array, the index, from 0."""
    before: bytes
    """The bytes between the previous piece and this one: spaces, line breaks, commas."""
    raw: bytes
    """The record's text; empty for the last piece of a file, and for one that is too long."""
    size: int
    """The length of the record's text in the file, bytes."""
    problem: str = ""
    """`""`, `"torn"` (the last line has no line break), `"too-long"`, or what is wrong with the
    structure of the file at this place, which ends it.
    """
    value: Any = None
    """`raw` as parsed by orjson, if the record's end was found by parsing it."""

    @property
    def is_record(self) -> bool:
        """Whether the piece contains a record's text."""
        return bool(self.raw)


def lines(stream: BinaryIO, limit: int = MAX_RECORD_BYTES) -> Iterator[Piece]:
    """Yield the lines of a file as pieces; lines end with LF only. Blank lines are no pieces.

    The last line is `"torn"` if it has no line break: whether it is complete is for its parser.
    """
    before = b""
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            size = len(line)
            while rest := stream.readline(_CHUNK):
                size += len(rest)
                if rest.endswith(b"\n"):
                    size -= 1
                    break
            yield Piece(number, before, b"", size, "too-long")
            before = b""
            continue
        if line[0] == _OPEN and line.endswith(b"}\n"):  # as Stormlog writes a record
            yield Piece(number, before, line[:-1], len(line) - 1)
            before = b"\n"
            continue
        raw = line.strip(_SPACE)
        if not raw:
            before += line
            if len(before) > limit:
                yield Piece(number, b"", b"", len(before), "too-long")
                before = b""
            continue
        start = line.index(raw)
        torn = "" if line.endswith(b"\n") else "torn"
        yield Piece(number, before + line[:start], raw, len(raw), torn)
        before = line[start + len(raw) :]
    if before:
        yield Piece(number + 1, before, b"", 0)


class _Window:
    """A part of a stream: the bytes from `start` on are kept, up to `limit`."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self.stream = stream
        self.limit = limit
        self.data = b""
        self.start = 0
        self.at = 0
        self.dropped = 0
        """How many bytes after `start` were not kept."""

    def more(self) -> bool:
        """Read on; return whether there was more."""
        chunk = self.stream.read(_CHUNK)
        if self.at - self.start > self.limit:
            self.dropped += self.at - self.start
            self.start = self.at
        if self.start:
            self.data = self.data[self.start :]
            self.at -= self.start
            self.start = 0
        self.data += chunk
        return bool(chunk)

    def find(self, pattern: re.Pattern[bytes]) -> int:
        """Move to the next match and return its byte; -1, at the end, if there is none."""
        while True:
            match = pattern.search(self.data, self.at)
            if match is not None:
                self.at = match.start()
                return self.data[self.at]
            self.at = len(self.data)
            if not self.more():
                return -1

    def take(self) -> tuple[bytes, int]:
        """Return the bytes since the last call, and their number; no bytes if too many."""
        size = self.dropped + self.at - self.start
        data = self.data[self.start : self.at] if size <= self.limit else b""
        self.start, self.dropped = self.at, 0
        return data, size

    def likely_object(self) -> Any:
        """Move past the object that starts here, and return its value; None if that is unsure.

        An object's text is not the start of another one's, so a text that parses is complete.
        """
        match = _LIKELY_END.search(self.data, self.at)
        if match is None:
            return None
        try:
            value = orjson.loads(self.data[self.at : match.end()])
        except orjson.JSONDecodeError:
            return None
        self.at = match.end()
        return value

    def skip_value(self) -> bool:
        """Move past one value; return False if the stream ends within it."""
        first = self.find(_NOT_SPACE)
        if first == ord('"'):
            return self._skip_string()
        if first not in b"[{":
            self.find(_SCALAR_END)
            return True
        depth = 0
        while (byte := self.find(_STRUCTURE)) != -1:
            if byte == ord('"'):
                if not self._skip_string():
                    return False
                continue
            self.at += 1
            depth += 1 if byte in b"[{" else -1
            if depth == 0:
                return True
        return False

    def _skip_string(self) -> bool:
        self.at += 1
        while (byte := self.find(_STRING_END)) != -1:
            self.at += 1
            if byte == ord('"'):
                return True
            if self.at == len(self.data) and not self.more():
                return False
            self.at += 1
        return False


def array(stream: BinaryIO, limit: int = MAX_RECORD_BYTES) -> Iterator[Piece]:
    """Yield the elements of a JSON array, which is the content of a file."""
    window = _Window(stream, limit)
    if window.find(_NOT_SPACE) != ord("["):
        window.find(_END)
        rest, size = window.take()
        yield Piece(0, rest, b"", size, "expected a JSON array")
        return
    window.at += 1
    yield from _elements(window)


def events_of(stream: BinaryIO, key: str, limit: int = MAX_RECORD_BYTES) -> Iterator[Piece]:
    """Yield the elements of the array that an object, the content of a file, has as `key`."""
    window = _Window(stream, limit)
    if _enter(window, key):
        yield from _elements(window)
    else:
        yield Piece(0, b"", b"", 0, f"expected an object with an array {key!a}")


def has_events(stream: BinaryIO, key: str) -> bool:
    """Return whether a file starts with an object that has an array as `key`."""
    return _enter(_Window(stream, _CHUNK), key)


def object_end(stream: BinaryIO) -> int | None:
    """Return the length of the value that a file starts with; None if it does not end."""
    window = _Window(stream, _CHUNK)
    if not window.skip_value():
        return None
    return window.take()[1]


def _enter(window: _Window, key: str) -> bool:
    """Move past the `[` of the array that an object has as `key`; return whether there is one."""
    if window.find(_NOT_SPACE) != ord("{"):
        return False
    window.at += 1
    wanted = f'"{key}"'.encode()
    while window.find(_NOT_SPACE) == ord('"'):
        name = window.at - window.start + window.dropped
        if not window.skip_value():
            return False
        text = window.data[max(0, window.at - len(wanted)) : window.at]
        size = window.at - window.start + window.dropped - name
        is_wanted = size == len(wanted) and text == wanted
        if window.find(_NOT_SPACE) != ord(":"):
            return False
        window.at += 1
        if window.find(_NOT_SPACE) == ord("[") and is_wanted:
            window.at += 1
            return True
        if not window.skip_value() or window.find(_NOT_SPACE) != ord(","):
            return False
        window.at += 1
    return False


def _elements(window: _Window) -> Iterator[Piece]:
    """Yield the elements after a `[`, then the rest of the file."""
    index = 0
    byte = window.find(_NOT_SPACE)
    while byte not in (ord("]"), -1):
        before, _ = window.take()
        value = window.likely_object() if byte == ord("{") else None
        complete = value is not None or window.skip_value()
        raw, size = window.take()
        if not complete:
            yield Piece(index, before, raw, size, "the file ends within an array")
            return
        yield Piece(index, before, raw, size, "" if size <= window.limit else "too-long", value)
        index += 1
        byte = window.find(_NOT_SPACE)
        if byte == ord(","):
            window.at += 1
            byte = window.find(_NOT_SPACE)
            if byte == ord("]"):
                byte = -2
        elif byte not in (ord("]"), -1):
            byte = -2
        if byte == -2:
            break
    problem = ""
    if byte == -2:
        problem = "expected a comma and the next element of an array"
    elif byte == -1:
        problem = "the file ends within an array"
    window.find(_END)
    rest, size = window.take()
    yield Piece(index, rest, b"", 0 if rest else size, problem)
