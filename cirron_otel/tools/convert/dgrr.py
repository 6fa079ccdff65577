"""DGRR traces as a source and as a target (docs/dgrr.md)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from typing import ClassVar

from ...core.analysis.run_selection import choose_run
from ...core.importers.dgrr.importing import TraceImport
from ...core.importers.dgrr.layout import TraceFinding, require_header
from ...core.importers.dgrr.restoring import CollectedTrace
from ...core.placement.joined_steps import JoinedSteps
from ...core.records.problems import ReadingProblem
from ...core.spool.reader import SpoolReader
from ...core.temporary import temporary_folder
from .collecting import CollectingTarget, temporary_databases
from .formats import PathSpec
from .input_files import repeatable_path
from .messages import SizeLimits
from .progress import Progress
from .report import Report
from .sources import BatchSource, NamedBatch, Recall, SourceContext
from .tables import STANDARD
from .targets import open_stream
from .trace_files import TraceFile, open_trace, refuse_terminal

LOST = "records that a DGRR trace cannot store"


class TraceSource(BatchSource):
    """A trace."""

    is_streamed: ClassVar[bool] = True

    def __init__(self, place: PathSpec, context: SourceContext) -> None:
        """Copy standard input, or a pipe, into a file, because a trace is read several times."""
        self._shown = place.path
        self._path = context.stack.enter_context(repeatable_path(place.path))
        self._join, self._rank = context.join, context.rank

    def batches(
        self,
        report: Report,
        recall: Recall,  # noqa: ARG002 - every batch is complete
        progress: Progress | None = None,
    ) -> Iterator[NamedBatch]:
        """Yield the batches; failed checks are findings. Raises InputError for other files."""
        with open_trace(self._path, self._shown) as trace, contextlib.ExitStack() as stack:
            require_header(self._shown, trace.head)

            def on_finding(finding: TraceFinding) -> None:
                if not finding.is_note:
                    where = "" if finding.record is None else f"record {finding.record}"
                    report.skip(
                        ReadingProblem(self._shown, finding.check, finding.message, path=where)
                    )

            steps = None
            if self._join is not None:
                steps = stack.enter_context(_joined(self._join, self._rank))
            recording = TraceImport(
                trace, _digest(trace), on_finding, None if steps is None else iter(steps)
            )
            done = 0
            for batch in recording.batches():
                yield NamedBatch(batch.name, batch.data, batch.spans, batch.marks)
                done += batch.marks
                if progress is not None:
                    progress(trace.size * done // max(trace.records, 1), trace.size)
            report.bytes_read += trace.size
            if recording.unplaced:
                found = f"{recording.unplaced} records have no step in {self._join}"
                report.skip(ReadingProblem(self._shown, "no-step", f"{found}: kept on a session"))


@contextlib.contextmanager
def _joined(spool: str, rank: int) -> Iterator[JoinedSteps]:
    """Yield the steps of a rank of the last run of a spool."""
    with temporary_folder() as folder, temporary_databases():
        reader = SpoolReader(spool)
        choose_run(reader, None)
        steps = JoinedSteps(reader, rank, folder)
        try:
            yield steps
        finally:
            steps.close()


def _digest(trace: TraceFile) -> bytes:
    hashed = hashlib.sha256()
    for part in itertools.chain((trace.head,), trace.chunks(), (trace.tail,)):
        hashed.update(part)
    return hashed.digest()


@contextlib.contextmanager
def open_target(
    place: PathSpec,
    report: Report,
    limits: SizeLimits,  # noqa: ARG001 - a trace has no limit
) -> Iterator[CollectingTarget]:
    """Open a target, a file. Raises InputError at the end if there is not exactly one trace.

    Raises UsageError if it is standard output, and that is a terminal.
    """
    if place.path == STANDARD:
        refuse_terminal()
    with temporary_folder() as folder, temporary_databases():
        collected = CollectedTrace(folder)
        try:
            yield CollectingTarget(collected, report)
            with open_stream(place) as stream:
                for piece in collected.pieces():
                    report.bytes_written += stream.write(piece)
        finally:
            collected.close()
    report.written += 1
    report.incomplete += collected.incomplete
    if collected.others:
        report.lose_many({LOST: collected.others})
