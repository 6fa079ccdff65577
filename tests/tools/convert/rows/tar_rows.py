"""A source and a target that are not part of the package: batches in a tar archive.

It proves the seam: the commands read and write it although no line of the package names it.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator

from cirron_otel.core.records.check import check_batch
from cirron_otel.core.records.problems import ReadingProblem
from cirron_otel.errors import InputError
from cirron_otel.tools.convert.formats import PathSpec
from cirron_otel.tools.convert.messages import SizeLimits
from cirron_otel.tools.convert.report import Report
from cirron_otel.tools.convert.sources import (
    BatchSource,
    NamedBatch,
    Progress,
    Recall,
    SourceContext,
)
from cirron_otel.tools.convert.tables import SourceRow, TargetRow
from cirron_otel.tools.convert.targets import TargetWriter, open_stream

NAME = "tar"


class TarSource(BatchSource):
    """The members of an archive; those that are not batches are findings."""

    def __init__(self, place: PathSpec, context: SourceContext) -> None:
        """Read nothing yet."""
        del context
        self._path = place.path

    def batches(
        self, report: Report, recall: Recall, progress: Progress | None = None
    ) -> Iterator[NamedBatch]:
        """Yield the batches in the order of the archive."""
        del recall, progress
        try:
            with tarfile.open(self._path) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    data = file.read() if file is not None else b""
                    if problem := check_batch(data):
                        report.skip(ReadingProblem(member.name, problem.code, problem.message))
                    else:
                        yield NamedBatch(member.name, data)
        except (OSError, tarfile.TarError) as error:
            raise InputError(f"{self._path} cannot be read: {error}") from None


class TarTarget(TargetWriter):
    """Adds each batch as a member."""

    def __init__(self, archive: tarfile.TarFile, report: Report) -> None:
        """Write into `archive`."""
        self._archive, self._report = archive, report

    def write(self, name: str, data: bytes) -> None:
        """Write a batch."""
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._archive.addfile(member, io.BytesIO(data))
        self._report.written += 1
        self._report.bytes_written += len(data)


@contextlib.contextmanager
def open_target(place: PathSpec, report: Report, limits: SizeLimits) -> Iterator[TarTarget]:
    """Open an archive; it replaces a file when it is complete."""
    del limits
    with open_stream(place) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        yield TarTarget(archive, report)


SOURCE = SourceRow(f"{__name__}:TarSource", "a tar archive of batches", prefixes=("tar:",))
TARGET = TargetRow(f"{__name__}:open_target", "a tar archive of batches", prefixes=("tar:",))
