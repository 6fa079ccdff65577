"""The columnar tables as a source and as a target (docs/columns.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from ...core.analysis.run_selection import ALL, LAST
from ...core.columns.extra import require
from ...core.records.check import check_batch
from ...core.records.problems import ReadingProblem
from ...core.translator.codec import Encoded
from ...errors import InputError, TargetError, UsageError
from .formats import PathSpec
from .messages import SizeLimits
from .progress import Progress
from .report import Report
from .sources import BatchSource, NamedBatch, Recall, SourceContext
from .tables import STANDARD, SourceLocation
from .targets import TargetWriter

if TYPE_CHECKING:
    from ...core.columns.layout import BatchGroup
    from ...core.columns.packed import PackedRows
    from ...core.columns.reading import ColumnsReader, StoredBatch


class ParquetSource(BatchSource):
    """Tables in a directory or in a bucket."""

    is_streamed: ClassVar[bool] = True

    def __init__(self, place: PathSpec, context: SourceContext) -> None:
        """Store the path; `batches` reads it. Raises MissingExtraError."""
        require()
        self._path = place.path
        self._run = None if context.run in (ALL, LAST) else context.run

    def batches(
        self,
        report: Report,
        recall: Recall,  # noqa: ARG002 - every batch is complete
        progress: Progress | None = None,
    ) -> Iterator[NamedBatch]:
        """Yield the batches in the order of their groups.

        A batch whose name another batch has gets another name. Raises InputError if no batch can be
        read.
        """
        from ...core.columns.reading import ColumnsReader  # noqa: PLC0415 - pyarrow

        yield from named_batches(
            self._stored(ColumnsReader(self._path), report), self._path, report, progress
        )

    def _stored(self, reader: ColumnsReader, report: Report) -> Iterator[StoredBatch]:
        """Yield each batch once, and report what is damaged."""
        keys: set[bytes] = set()
        done: set[BatchGroup] = set()
        while new := [g for g in reader.groups_of_run(self._run) if g not in done]:
            done.update(new)
            for group in new:
                try:
                    for batch in reader.batches(group):
                        if isinstance(batch, ReadingProblem):
                            report.skip(batch)
                        elif (key := bytes.fromhex(batch.key)) not in keys:
                            keys.add(key)
                            yield batch
                except InputError as error:
                    if reader.counts(group):
                        report.skip(
                            ReadingProblem(self._path, "unreadable", str(error), path=group.path)
                        )


def named_batches(
    stored: Iterable[StoredBatch], shown: str, report: Report, progress: Progress | None
) -> Iterator[NamedBatch]:
    """Check batches, and give each a name of its own. Raises InputError if no batch can be read."""
    from ...core.columns.reading import named_apart  # noqa: PLC0415 - pyarrow

    names: set[int] = set()
    count = 0
    for batch in stored:
        problem = check_batch(batch.data)
        if problem is not None:
            report.skip(ReadingProblem(shown, problem.code, problem.message, path=batch.name))
            continue
        name = batch.name
        if hash(name) in names:
            name = named_apart(name, batch.key)
        names.add(hash(name))
        count += 1
        report.bytes_read += len(batch.data)
        yield NamedBatch(name, batch.data, batch.spans, batch.marks, batch.snapshots)
        if progress is not None:
            progress(report.bytes_read, None)
    if report.skipped and not count:
        raise InputError(f"{shown} contains no batch: {report.skipped[0].message}")


class RowWriter(Protocol):
    """Adds batches to tables."""

    def add(self, rows: PackedRows) -> bool:
        """Add a batch; return False if the tables contain it already."""


class ParquetTarget(TargetWriter):
    """Adds batches to tables."""

    def __init__(self, writer: RowWriter, report: Report) -> None:
        """Write through `writer`."""
        self._writer, self._report = writer, report

    def write(self, name: str, data: bytes) -> None:
        """Add a batch; one that is nested too deep is reported."""
        from ...core.columns.batch_rows import rows_of  # noqa: PLC0415
        from ...core.columns.packed import arrow_rows  # noqa: PLC0415

        try:
            rows = arrow_rows(rows_of(name, data))
        except InputError as error:
            self._report.skip(ReadingProblem(name, "not-written", str(error)))
        else:
            self._add(rows)

    def take(self, item: Encoded) -> None:
        """Add a batch whose rows a worker process has made; none if it is stored already."""
        from ...core.columns.packed import unpack  # noqa: PLC0415

        if item.data:
            self._add(unpack(item.data))
        else:
            self._report.unchanged += 1

    def _add(self, rows: PackedRows) -> None:
        with undamaged_target():
            is_new = self._writer.add(rows)
        if not is_new:
            self._report.unchanged += 1


@contextlib.contextmanager
def undamaged_target() -> Iterator[None]:
    """Convert an error of reading the tables that batches are added to into a TargetError."""
    try:
        yield
    except InputError as error:
        raise TargetError(
            f"{error}: repair or remove the file, or name another directory"
        ) from None


def locate(source: str) -> SourceLocation:
    """Return the location of tables, from the source with its prefix."""
    place = source.removeprefix("parquet:")
    return SourceLocation(place, None if "://" in place else Path(place))


@contextlib.contextmanager
def open_target(
    place: PathSpec,
    report: Report,
    limits: SizeLimits,  # noqa: ARG001 - a source yields no larger batches
) -> Iterator[ParquetTarget]:
    """Open tables for adding batches. Raises UsageError for standard output."""
    if place.path == STANDARD:
        raise UsageError("tables cannot be written to -: name a directory or s3://BUCKET/PREFIX")
    require()
    from ...core.columns.writing import ColumnsWriter  # noqa: PLC0415 - pyarrow

    with undamaged_target():
        writer = ColumnsWriter(place.path)
    with writer:
        yield ParquetTarget(writer, report)
        with undamaged_target():
            writer.flush()
    report.written += writer.files
    report.bytes_written += writer.bytes_written
