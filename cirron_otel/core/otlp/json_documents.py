"""JSON documents in a stream of lines: one per line, over several lines, or several in a line.

The end of a document is where its brackets are closed. Strings contain no line breaks, so a line
that ends within a string is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .framing import StreamError

Line = tuple[int, bytes | None]
"""The number of a line, from 1, and its text; None if it is too long."""

_TOKEN = re.compile(rb'"(?:[^"\\]*+(?:\\.[^"\\]*+)*+")?|[\[\]{}]', re.DOTALL)
"""Matches a bracket or a string; only a quote if the string does not end."""
_STARTS_OVER = re.compile(rb'\{\s*"resource_?(?:[sS]pans|[mM]etrics|[lL]ogs|[pP]rofiles)"')
"""Matches the start of a document: its keys are not the keys of any object in a document."""
_INDENT = (b" ", b"\t")


class DocumentLines:
    """The lines of a stream; `document` continues a line that is not a document by itself."""

    def __init__(self, numbered: Iterator[Line], max_bytes: int) -> None:
        """Read `numbered`; a document may have at most `max_bytes` bytes."""
        self._numbered, self._max_bytes = numbered, max_bytes
        self._next: Line | None = None

    def __iter__(self) -> Iterator[Line]:
        """Yield each line, or the rest of a line after a document."""
        while (line := self._advance()) is not None:
            yield line

    def _advance(self) -> Line | None:
        line, self._next = self._next, None
        return line if line is not None else next(self._numbered, None)

    def document(self, number: int, text: bytes) -> bytes | None:
        """Return the document that starts with the line `text`; None if the line is damaged.

        The text after the document becomes the next line. A document that does not end before
        another one starts is returned as far as it goes. Raises StreamError if it is too long.
        """
        depth, end = _scan(text, 0)
        if end is not None:
            return self._split(number, text, end) if text[end:].lstrip()[:1] == b"{" else None
        if depth is None or depth == 0:
            return None
        whole, is_indented, is_first = bytearray(text), False, True
        while (following := self._advance()) is not None:
            at, line = following
            if line is None or len(whole) + len(line) >= self._max_bytes:
                raise StreamError(
                    f"one document longer than the limit of {self._max_bytes} bytes:"
                    " write one TracesData per line"
                )
            if _STARTS_OVER.match(line) or (is_indented and line.startswith(b"{")):
                self._next = following
                break
            if is_first:
                is_first, is_indented = False, line.startswith(_INDENT)
            whole += b"\n"
            if depth is not None:  # else the document is damaged: find the next one
                depth, end = _scan(line, depth)
            if end is not None:
                whole += self._split(at, line, end)
                break
            whole += line
        return bytes(whole)

    def _split(self, number: int, line: bytes, end: int) -> bytes:
        if rest := line[end:].strip():
            self._next = (number, rest)
        return line[:end]


def _scan(line: bytes, depth: int) -> tuple[int | None, int | None]:
    """Return the number of brackets that are open after `line`, if `depth` are open before it.

    It is None if the line ends within a string. The second result is the position after the bracket
    that closes the outermost one; None if there is none.
    """
    for token in _TOKEN.finditer(line):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth <= 0:
                    return depth, token.end()
            case b'"':
                return None, None
    return depth, None
