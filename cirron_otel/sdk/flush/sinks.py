"""`output="log"` and `output="stdout"`: one line for each ended scope, after each flush."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..session.tree_text import is_users, scope_line, value_of, write_text
from .flush_result import FlushResult
from .rows import MarkRow, SpanRow

LOG, STDOUT = "log", "stdout"
MOST_WAITING = 10_000
"""Maximum number of marks that are retained for scopes that have not ended."""

logger = logging.getLogger("cirron_otel.trace")

Sink = Callable[[FlushResult], None]


def sinks_of(output: Iterable[str]) -> tuple[Sink, ...]:
    """Return the sinks for the values `log` and `stdout` of the option `output`."""
    writers = {LOG: _log, STDOUT: _print}
    return tuple(Lines(writers[each]) for each in dict.fromkeys(output) if each in writers)


class Lines:
    """Formats the ended scopes of each flush, like `[cirron] forward — 36us {loss=0.5000}`."""

    def __init__(self, write: Callable[[list[str]], None]) -> None:
        """`write` is called with the lines of a flush, in the order in which the scopes ended."""
        self._write = write
        self._marks: dict[str, list[tuple[Any, Any]]] = {}
        self._waiting = 0

    def __call__(self, result: FlushResult) -> None:
        """Write the lines of the scopes in a flush."""
        lines = []
        batches = [batch.rows() for batch in result.batches]
        for _, marks in batches:
            for mark in marks:
                if is_users(mark):
                    self._keep(mark)
        for spans, _ in batches:
            lines += [self._line(span) for span in spans]
        if lines:
            self._write(lines)

    def _keep(self, mark: MarkRow) -> None:
        if self._waiting >= MOST_WAITING:
            oldest = next(iter(self._marks))
            self._waiting -= len(self._marks.pop(oldest))
        self._marks.setdefault(mark.span_id, []).append((mark.name, value_of(mark)))
        self._waiting += 1

    def _line(self, span: SpanRow) -> str:
        marks = self._marks.pop(span.id, [])
        self._waiting -= len(marks)
        wall_us = max(span.end_ns - span.start_ns, 0) // 1000
        return "[cirron] " + scope_line(span.name, span.index, wall_us, marks)


def _log(lines: list[str]) -> None:
    if logger.isEnabledFor(logging.INFO):
        for line in lines:
            logger.info("%s", line)


def _print(lines: list[str]) -> None:
    write_text(sys.stdout, "".join(line + "\n" for line in lines))
