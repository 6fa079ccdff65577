"""The common part of targets that collect all batches before they write a tool's files."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any, Protocol

from ... import exactjson
from ...core.records.problems import ReadingProblem
from ...errors import InputError, TargetError
from .report import Report
from .targets import TargetWriter


class BatchCollector(Protocol):
    """Collects the batches of a tool's files."""

    def add(self, batch: Any, /) -> None:
        """Add a batch. Raises InputError if the files cannot contain it."""


class CollectingTarget(TargetWriter):
    """Collects batches; its opener writes the files at the end."""

    def __init__(self, collector: BatchCollector, report: Report) -> None:
        """Collect in `collector`."""
        self._collector, self._report = collector, report

    def write(self, name: str, data: bytes) -> None:
        """Add a batch; one that cannot be written is reported."""
        try:
            self._collector.add(exactjson.loads(data))
        except InputError as error:
            self._report.skip(ReadingProblem(name, "not-written", str(error)))


@contextlib.contextmanager
def temporary_databases() -> Iterator[None]:
    """Convert a failure of a temporary database to a TargetError."""
    try:
        yield
    except sqlite3.Error as error:
        raise TargetError(
            f"temporary files cannot be used: {error};"
            " free some space, or set TMPDIR to a directory with enough space"
        ) from None
