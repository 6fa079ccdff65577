"""The targets of a conversion: a spool, one batch file, an OTLP file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from ..errors import InputError, RefusedNameError, TargetError, UsageError
from ..otlp.files import TracesWriter
from ..otlp.replacing import replacing
from ..spool.findings import Finding
from ..spool.reader import stored_batch
from ..spool.writer import SpoolWriter
from .formats import STANDARD, Kind, Place
from .report import Report


class BatchTarget(Protocol):
    """Takes batches."""

    def write(self, name: str, data: bytes) -> None:
        """Write the bytes of a batch under its file name."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a batch that was written under this name; None if it is missing."""


class SpoolTarget:
    """Adds batches to a spool; one of the same name with other content is refused."""

    def __init__(self, path: str, report: Report, max_bytes: int) -> None:
        """Open the spool at `path`; a batch of more than `max_bytes` is refused."""
        self._max_bytes = max_bytes
        self._writer = SpoolWriter(path, max_bytes=None, durable=False)
        self._report = report

    def write(self, name: str, data: bytes) -> None:
        """Write a batch. A refused batch is reported; raises TargetError if writing fails."""
        report = self._report
        if not _fits(name, data, self._max_bytes, report):
            return
        try:
            written = self._writer.write(data, name)
        except RefusedNameError as error:
            report.skip(Finding(name, "refused", str(error)))
            return
        if written.is_new:
            report.written += 1
            report.bytes_written += len(data)
        else:
            report.unchanged += 1

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the batch of this name in the spool."""
        return stored_batch(self._writer.paths.spool, name, self._max_bytes)

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._writer.sync()


class FileTarget:
    """One batch file."""

    def __init__(self, stream: BinaryIO, report: Report, max_bytes: int) -> None:
        """Write to `stream`; a batch of more than `max_bytes` is refused."""
        self._max_bytes = max_bytes
        self._stream = stream
        self._report = report
        self._written: tuple[str, bytes] | None = None

    def write(self, name: str, data: bytes) -> None:
        """Write the batch. Raises UsageError for a second one."""
        if not _fits(name, data, self._max_bytes, self._report):
            return
        if self._report.written:
            raise UsageError(f"more than one batch ({name}): write to a spool, or select less")
        try:
            self._stream.write(data)
        except OSError as error:
            raise TargetError(f"cannot write: {error.strerror or error}") from error
        self._written = (name, data)
        self._report.written += 1
        self._report.bytes_written += len(data)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the batch, if it has this name."""
        return self._written[1] if self._written and self._written[0] == name else None


def _fits(name: str, data: bytes, max_bytes: int, report: Report) -> bool:
    """Whether readers accept a batch of that size; a larger one is reported."""
    if len(data) <= max_bytes:
        return True
    report.skip(Finding(name, "too-large", f"longer than {max_bytes} bytes, the most that is read"))
    return False


@contextlib.contextmanager
def open_stream(place: Place) -> Iterator[BinaryIO]:
    """Open the file to write. It appears, complete, when the block ends, or not at all."""
    if place.path == STANDARD:
        if sys.stdout is None:
            raise TargetError("standard output is closed: expected a file, a pipe or a terminal")
        yield sys.stdout.buffer
        try:
            sys.stdout.buffer.flush()
        except OSError as error:
            raise TargetError(f"cannot write: {error.strerror or error}") from error
        return
    with replacing(place.path) as file:
        yield file


@contextlib.contextmanager
def open_batches(place: Place, report: Report, max_bytes: int) -> Iterator[BatchTarget]:
    """A target for batches of at most `max_bytes` each; larger ones are reported."""
    if place.kind is Kind.SPOOL:
        target = SpoolTarget(place.path, report, max_bytes)
        yield target
        target.close()
        return
    with open_stream(place) as stream:
        yield FileTarget(stream, report, max_bytes)
        if not report.written:
            raise InputError("no batch to write: the source has none, or nothing was selected")


@contextlib.contextmanager
def open_traces(place: Place) -> Iterator[TracesWriter]:
    """A target for OTLP messages."""
    with open_stream(place) as stream, TracesWriter(stream, place.form) as writer:
        yield writer
