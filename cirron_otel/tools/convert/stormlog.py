"""Stormlog's recordings as a source, and its files as a target (docs/stormlog.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from ...core.importers.stormlog.importing import StormlogImport
from ...core.importers.stormlog.writing import StormlogWriter
from ...core.otlp.replacing import replacing
from ...core.placement.joined_scopes import ScopeTimes
from ...core.records.problems import ReadingProblem
from ...core.temporary import temporary_folder
from .collecting import CollectingTarget, temporary_databases
from .formats import PathSpec
from .input_files import repeatable_path
from .messages import SizeLimits
from .progress import Progress
from .report import Report
from .sources import BatchSource, NamedBatch, Recall, SourceContext, size_of
from .tables import STANDARD
from .targets import open_stream

_ARRAY, _LINES = ".json", ".jsonl"


class StormlogSource(BatchSource):
    """A recording of Stormlog's."""

    is_streamed: ClassVar[bool] = True

    def __init__(self, place: PathSpec, context: SourceContext) -> None:
        """Copy standard input, or a pipe, into a file, because a recording is read twice."""
        self._path = context.stack.enter_context(repeatable_path(place.path))
        self._join = context.join

    def batches(
        self,
        report: Report,
        recall: Recall,  # noqa: ARG002 - every batch is complete
        progress: Progress | None = None,
    ) -> Iterator[NamedBatch]:
        """Yield the batches. Raises InputError if there is no recording."""
        with temporary_folder() as folder, temporary_databases():
            joined = None if self._join is None else ScopeTimes(self._join, folder)
            recording = StormlogImport(
                self._path, folder=folder, on_finding=report.skip, joined=joined
            )
            step = (lambda done: progress(done, None)) if progress is not None else _ignore
            try:
                for batch in recording.batches(step):
                    yield NamedBatch(batch.name, batch.data, batch.spans, batch.marks)
            finally:
                if joined is not None:
                    joined.close()
            report.bytes_read += recording.bytes_read
            report.duplicates += recording.duplicates


def _ignore(_done: int) -> None:
    """Report no progress."""


class StormlogTarget(CollectingTarget):
    """Collects batches, and writes Stormlog's files at the end."""

    def __init__(self, writer: StormlogWriter, report: Report) -> None:
        """Collect in `writer`."""
        super().__init__(writer, report)
        self._writer = writer

    def use_spool(self, root: Path) -> None:
        """Copy the bundles beside the spool."""
        self._writer.spool = root


@contextlib.contextmanager
def open_target(
    place: PathSpec,
    report: Report,
    limits: SizeLimits,  # noqa: ARG001 - Stormlog has no limit
) -> Iterator[StormlogTarget]:
    """Open a target: `.json` is an array, `.jsonl` a segment, and anything else a directory.

    Raises InputError at the end if a run of our own has no sample of its memory.
    """
    with temporary_folder() as folder, temporary_databases():
        writer = StormlogWriter(folder)
        try:
            yield StormlogTarget(writer, report)
            _write(writer, place)
        finally:
            writer.close()
        report.written += 1
        report.bytes_written += _size_of(place.path)
        report.incomplete += [
            f"{name}: parts of the file are not in the source" for name in writer.incomplete
        ]
        for session in writer.without_samples:
            message = "not written: the session has no sample of its memory"
            report.skip(ReadingProblem(session, "no-samples", message))


def _write(writer: StormlogWriter, place: PathSpec) -> None:
    suffix = Path(place.path).suffix.lower()
    if place.path == STANDARD or suffix == _ARRAY:
        with open_stream(place) as stream:
            writer.write_array(stream)
    elif suffix == _LINES:
        with replacing(place.path) as stream:
            writer.write_lines(stream)
    else:
        writer.write_directory(Path(place.path))


def _size_of(path: str) -> int:
    """Return the size of a file, or of all files below a directory, bytes."""
    if path == STANDARD:
        return 0
    root = Path(path)
    return (
        size_of(root)
        if root.is_file()
        else sum(map(size_of, filter(Path.is_file, root.rglob("*"))))
    )
