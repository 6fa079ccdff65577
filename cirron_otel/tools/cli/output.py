"""Output: results on stdout, messages on stderr, and a status line on a terminal.

Names come from recordings and may contain anything, so control characters are escaped.
"""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ...errors import TargetError
from ..present.formatting import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...core.records.problems import ReadingProblem
    from ..convert.report import Report

_PREFIX = "cirron-otel: "
_MAX_LISTED = 20
_PIPE_WIDTH = 100_000
_TABLE_WIDTH = 80
_LAST_STANDARD = 2
"""The descriptor of standard error."""


_ERASE = "\x1b[K"
"""Erases the rest of the line."""


class _StatusLine:
    """The last line of a terminal while it shows progress; other output clears it first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_drawn = False

    def draw(self, text: str) -> None:
        """Draw the line on stderr, in place of the one before."""
        with self._lock:
            self._is_drawn = True
            _to_stderr(f"\r{text}{_ERASE}")

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Clear the line; it is not drawn within the block, which writes other output."""
        with self._lock:
            if self._is_drawn:
                self._is_drawn = False
                _to_stderr(f"\r{_ERASE}")
            yield


status_line = _StatusLine()


def prepare() -> None:
    """Let stdout and stderr accept every character, even if the locale cannot encode it.

    Also open /dev/null for each standard descriptor that is closed. Otherwise the next file that is
    opened would get that descriptor, and messages for stderr would be written into the file.
    """
    with contextlib.suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
            pass
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def result(text: str) -> None:
    """Write one line or several to stdout. Raises TargetError if that fails."""
    _write(text + "\n")


def document(value: Any) -> None:
    """Write the JSON document for `--json` to stdout, as one line of ASCII."""
    result(json.dumps(value))


def data(pieces: Iterable[bytes]) -> None:
    """Write bytes to stdout, and flush it. Raises TargetError if that fails."""
    with _standard_output() as stream:
        for piece in pieces:
            stream.buffer.write(piece)
        stream.buffer.flush()


def flush() -> None:
    """Flush stdout. Raises TargetError if that fails."""
    if sys.stdout is not None:  # if it is None, stdout was closed and nothing was written
        _write("")


def give_up() -> None:
    """Discard stdout's buffered text, whose reader is gone, so that no later flush fails."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(text: str) -> None:
    with _standard_output() as stream:
        stream.write(text)
        if not text:
            stream.flush()


@contextlib.contextmanager
def _standard_output() -> Iterator[TextIO]:
    """Yield stdout, and convert an OSError in the block to a TargetError."""
    if sys.stdout is None:
        raise TargetError("standard output is closed: expected a file, a pipe or a terminal")
    try:
        with status_line.cleared():
            yield sys.stdout
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            give_up()
        reason = error.strerror or str(error)
        raise TargetError(f"standard output cannot be written: {reason}") from error


def message(text: str) -> None:
    """Write one line to stderr."""
    message_block(_PREFIX + printable(" ".join(text.splitlines())))


def message_block(text: str) -> None:
    """Write lines to stderr unchanged; errors are ignored, because nothing depends on them."""
    with status_line.cleared():
        _to_stderr(text + "\n")


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def error(text: str) -> None:
    """Write a one-line error message to stderr."""
    message(f"error: {text}")


def skipped(findings: Sequence[ReadingProblem], count: int | None = None) -> None:
    """Report skipped items: the first ones, one per line, and the total number, `count`."""
    total = len(findings) if count is None else count
    for finding in findings[:_MAX_LISTED]:
        place = f"{finding.name} {finding.path}".strip()
        message(f"skipped: {place + ': ' if place else ''}{finding.message} [{finding.code}]")
    if total > _MAX_LISTED:
        message(f"skipped: {total - _MAX_LISTED} more, {total} in all")


def shortfalls(report: Report) -> None:
    """Report what a conversion skipped, could not complete, or could not represent."""
    skipped(report.skipped, report.skipped_count)
    for text in report.incomplete[:_MAX_LISTED]:
        message(f"incomplete: {text}")
    if len(report.incomplete) > _MAX_LISTED:
        message(f"incomplete: {len(report.incomplete) - _MAX_LISTED} more")
    if report.backend is not None:
        missing = report.backend.missing
        for text in missing[:_MAX_LISTED]:
            message(f"missing: {text}")
        if report.backend.missing_count > _MAX_LISTED:
            message(f"missing: {report.backend.missing_count - _MAX_LISTED} more")
    for text, often in report.losses.items():
        message(f"not kept: {text}" + (f" ({often:,} times)" if often > 1 else ""))


class _Terminal:
    """The state of the terminal to which a pager writes."""

    width: int | None = None
    """The number of columns; None if stdout is not sent to a pager."""


terminal = _Terminal()


def show(*renderables: RenderableType) -> None:
    """Render objects with rich and write them to stdout; in a pipe, lines may have any length.

    On a terminal, tables are at least 80 columns wide: in a narrower table, figures would be cut.
    """
    from rich.console import Console

    if terminal.width is not None:
        for each in renderables:
            Console(
                highlight=False, markup=False, emoji=False, force_terminal=True,
                width=_width(each, terminal.width),
            ).print(each)  # fmt: skip
        return
    if sys.stdout is not None and sys.stdout.isatty():
        columns = Console().width
        with _standard_output():
            for each in renderables:
                Console(
                    highlight=False, markup=False, emoji=False, width=_width(each, columns)
                ).print(each)
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    buffer = io.TextIOWrapper(io.BytesIO(), encoding, errors="backslashreplace")
    console = Console(
        file=buffer, width=_PIPE_WIDTH, highlight=False, markup=False, emoji=False, no_color=True
    )
    for each in renderables:
        console.print(each)
    buffer.seek(0)
    for line in buffer:
        _write(line.rstrip() + "\n")


def show_parts(parts: Iterable[RenderableType]) -> None:
    """Write lines and tables to stdout. Raises TargetError if that fails."""
    for part in parts:
        if isinstance(part, str):
            result(part)
        else:
            show(part)


def message_parts(parts: Iterable[RenderableType], width: int) -> None:
    """Write lines and tables to stderr, in colour on a terminal.

    Without a terminal, they are `width` columns wide. Errors are ignored.
    """
    from rich.console import Console

    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    console = Console(
        stderr=True, highlight=False, markup=False, emoji=False,
        width=None if is_terminal else width,
    )  # fmt: skip
    with console.capture() as drawn:
        for part in parts:
            console.print(part, soft_wrap=True)
    message_block("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def _width(renderable: RenderableType, columns: int) -> int:
    from rich.table import Table
    from rich.text import Text

    if isinstance(renderable, Text):  # its lines are wrapped already
        return _PIPE_WIDTH
    return max(columns, _TABLE_WIDTH) if isinstance(renderable, Table) else columns
