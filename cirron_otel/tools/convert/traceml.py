"""TraceML's recordings as a source, and its frames as a target (docs/traceml.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from ...core.importers.traceml.reading import TraceMLImport
from ...core.importers.traceml.writing import TraceMLWriter
from ...core.temporary import temporary_folder
from ...errors import UsageError
from .collecting import CollectingTarget, temporary_databases
from .formats import PathSpec
from .messages import SizeLimits
from .progress import Progress
from .report import Report
from .sources import BatchSource, NamedBatch, Recall, SourceContext
from .tables import STANDARD


class TraceMLSource(BatchSource):
    """A recording of TraceML's."""

    is_streamed: ClassVar[bool] = True

    def __init__(self, place: PathSpec, context: SourceContext) -> None:  # noqa: ARG002 - an opener
        """Store the path; `batches` reads it."""
        self._path = place.path

    def batches(
        self,
        report: Report,
        recall: Recall,  # noqa: ARG002 - every batch is complete
        progress: Progress | None = None,
    ) -> Iterator[NamedBatch]:
        """Yield the batches. Raises InputError if there is no recording."""
        recording = TraceMLImport(self._path, on_finding=report.skip)

        def step(done: int) -> None:
            if progress is not None:
                progress(done, None)

        with temporary_databases():
            for batch in recording.batches(step):
                yield NamedBatch(batch.name, batch.data, batch.spans, batch.marks)
        report.bytes_read += recording.bytes_read
        report.duplicates += recording.duplicates


@contextlib.contextmanager
def open_target(
    place: PathSpec,
    report: Report,
    limits: SizeLimits,  # noqa: ARG001 - a stream of frames has no limit
) -> Iterator[CollectingTarget]:
    """Open a target, a directory. Raises UsageError for standard output."""
    if place.path == STANDARD:
        raise UsageError("frames of several processes cannot be written to -: name a directory")
    with temporary_folder() as folder, temporary_databases():
        writer = TraceMLWriter(folder)
        try:
            yield CollectingTarget(writer, report)
            writer.write_directory(Path(place.path))
        finally:
            writer.close()
    report.written += writer.files
    report.bytes_written += writer.bytes_written
    report.incomplete += writer.incomplete
    report.lose_many(writer.losses)
