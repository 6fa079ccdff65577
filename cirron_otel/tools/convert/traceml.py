"""TraceML's recordings as a source (docs/traceml.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ...core.importers.traceml.reading import TraceMLImport
from .formats import PathSpec
from .report import Report
from .sources import BatchSource, NamedBatch, Progress, Recall, SourceContext


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

        for batch in recording.batches(step):
            yield NamedBatch(batch.name, batch.data, batch.spans, batch.marks)
        report.bytes_read += recording.bytes_read
