"""Iceberg tables as a source and as a target (docs/columns.md, "Iceberg")."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from ...core.columns.extra import require
from ...core.records.problems import ReadingProblem
from ...errors import InputError, TargetError, UsageError
from .formats import PathSpec
from .messages import SizeLimits
from .parquet import ParquetTarget, named_batches
from .progress import Progress
from .report import Report
from .sources import BatchSource, NamedBatch, Recall, SourceContext
from .tables import STANDARD, SourceLocation

if TYPE_CHECKING:
    from ...core.columns.iceberg_reading import IcebergReader
    from ...core.columns.reading import StoredBatch


class IcebergSource(BatchSource):
    """Tables in a catalog."""

    is_streamed: ClassVar[bool] = True

    def __init__(self, place: PathSpec, context: SourceContext) -> None:  # noqa: ARG002
        """Store the URL; `batches` connects. Raises MissingExtraError."""
        require()
        self._url = place.path

    def batches(
        self,
        report: Report,
        recall: Recall,  # noqa: ARG002 - every batch is complete
        progress: Progress | None = None,
    ) -> Iterator[NamedBatch]:
        """Yield the batches in the order of time. Raises InputError if no batch can be read."""
        from ...core.columns.iceberg_reading import IcebergReader  # noqa: PLC0415 - pyarrow

        with contextlib.closing(IcebergReader(self._url)) as reader:
            shown = locate(self._url).shown
            yield from named_batches(_undamaged(reader, report), shown, report, progress)


def _undamaged(reader: IcebergReader, report: Report) -> Iterator[StoredBatch]:
    for batch in reader.batches():
        if isinstance(batch, ReadingProblem):
            report.skip(batch)
        else:
            yield batch


def locate(source: str) -> SourceLocation:
    """Return the location of the catalog. Raises UsageError."""
    from ...core.columns.iceberg_catalog import parse_catalog  # noqa: PLC0415

    place = parse_catalog(source.removeprefix("iceberg:"))
    return SourceLocation(place.shown, place.file)


@contextlib.contextmanager
def open_target(
    place: PathSpec,
    report: Report,
    limits: SizeLimits,  # noqa: ARG001 - a source yields no larger batches
) -> Iterator[ParquetTarget]:
    """Open tables for adding batches. Raises UsageError for standard output."""
    if place.path == STANDARD:
        raise UsageError("tables cannot be written to -: name a catalog, as sqlite:///FILE")
    require()
    from ...core.columns.iceberg_writing import IcebergWriter  # noqa: PLC0415 - pyarrow

    report.target = locate(place.path).shown
    try:
        writer = IcebergWriter(place.path)
    except InputError as error:  # tables of another version
        raise TargetError(f"{error}; name another namespace") from None
    with writer:
        yield ParquetTarget(writer, report)
    report.written += writer.files
    report.bytes_written += writer.bytes_written
