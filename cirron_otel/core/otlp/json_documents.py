"""JSON documents in a stream of lines: one per line, over several lines, or several in a line.

The end of a document is where its brackets are closed. Strings contain no line breaks, so a line
that ends within a string is damaged.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterator

from .framing import Lines, StreamError

Line = tuple[int, bytes | None]
"""The number of a line, from 1, and its text; None if it is too long."""

_TOKEN = re.compile(rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|("[^\n]*+)|[\[\]{}]')
"""Matches a bracket or a string. The group matches a string that does not end in its line."""
_STARTS_OVER = re.compile(rb'\{\s*"resource_?(?:[sS]pans|[mM]etrics|[lL]ogs|[pP]rofiles)"')
"""Matches the start of a document: its keys are not the keys of any object in a document."""
_INDENT = (b" ", b"\t", b"")
"""The starts of lines in an indented document that do not end it; some are empty."""
_ANOTHER = re.compile(rb"\s*\{")


class DocumentLines:
    """The lines of a stream; `document` finds the document that starts in a line."""

    def __init__(self, lines: Lines, max_bytes: int) -> None:
        """Read `lines`; a document may have at most `max_bytes` bytes."""
        self._lines, self._max_bytes = lines, max_bytes
        self._waiting: deque[Line] = deque()

    def __iter__(self) -> Iterator[Line]:
        """Yield each line, or the rest of a line after a document."""
        while True:
            line = self._waiting.popleft() if self._waiting else next(self._lines, None)
            if line is None:
                return
            yield line

    def _following(self) -> Iterator[Line]:
        """Return the next lines; the caller takes no more of them once it has put one back."""
        waiting = iter(lambda: self._waiting.popleft() if self._waiting else None, None)
        return itertools.chain(waiting, self._lines)

    def document(self, number: int, text: bytes) -> bytes | None:
        """Return another text to parse in place of `text`, which is not a document; None if none.

        `text` starts in the line `number`. If a document ends in it, and another one follows, the
        result is the first one, and the rest becomes the next line. If brackets are open at its
        end, the result also has the following lines, up to the end of the document or the start of
        another one. Raises StreamError if it is too long.
        """
        depth, end = _scan(text, 0)
        if end is None:
            return self._extended(text, depth) if depth else None
        if not _ANOTHER.match(text, end):
            return None
        pieces = list[Line]()
        for piece in _documents(text):
            content = piece.lstrip()
            number += piece.count(b"\n", 0, len(piece) - len(content))
            pieces.append((number, content))
            number += content.count(b"\n")
        self._waiting.extendleft(reversed(pieces[1:]))
        return pieces[0][1]

    def _extended(self, text: bytes, depth: int) -> bytes | None:
        """Return `text`, in which `depth` brackets are open, and the lines that close them.

        If the document is indented, the first line that is not indented is taken for its end,
        without a look at the brackets: that is much faster. If it is not, the caller calls again.
        """
        whole = bytearray(text)
        second_line = text.partition(b"\n")[2]
        is_indented = bool(second_line) and second_line[:1] in _INDENT
        is_fast = False
        open_brackets: int | None = depth
        for number, line in self._following():
            if line is None or len(whole) + len(line) >= self._max_bytes:
                raise self._too_long()
            if line[:1] in _INDENT:
                if not second_line and len(whole) == len(text):
                    is_indented = is_fast = True
            elif line[:1] == b"{" and (
                is_indented or whole.endswith(b"{") or _STARTS_OVER.match(line)
            ):
                self._waiting.appendleft((number, line))
                break
            elif is_fast:
                whole += b"\n"
                whole += line
                break
            whole += b"\n"
            whole += line
            if is_fast:
                if not self._waiting:
                    self._add_indented(whole)
                continue
            if open_brackets is None:
                continue  # damaged: find the next document
            open_brackets, end = _scan(line, open_brackets)
            if end is not None:
                if rest := line[end:].strip():
                    self._waiting.appendleft((number, rest))
                    del whole[end - len(line) :]
                break
        return bytes(whole) if len(whole) > len(text) else None

    def _add_indented(self, document: bytearray) -> None:
        """Add the next lines that are indented to `document`."""
        indented = self._lines.indented(self._max_bytes - len(document))
        if indented is None:
            raise self._too_long()
        if indented:
            document += b"\n"
            document += indented.removesuffix(b"\n")

    def _too_long(self) -> StreamError:
        return StreamError(
            f"one document longer than the limit of {self._max_bytes} bytes:"
            " write one TracesData per line"
        )


def _documents(text: bytes) -> list[bytes]:
    """Split `text` after each document; the last piece may be incomplete, or white space."""
    pieces, start, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth <= 0:
                    pieces.append(text[start : token.end()])
                    start, depth = token.end(), 0
    return [*pieces, text[start:]]


def _scan(text: bytes, depth: int) -> tuple[int | None, int | None]:
    """Return the number of brackets that are open after `text`, if `depth` are open before it.

    It is None if a line ends within a string. The second result is the position after the bracket
    that closes the outermost one; None if there is none.
    """
    for token in _TOKEN.finditer(text):
        if token.lastindex:
            return None, None
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth <= 0:
                    return depth, token.end()
    return depth, None
