"""Targets of a conversion: their interface, a spool, one batch file, a file of OTLP messages.

The table of all targets is in tables.py. The target for batches as protobuf is in wire_files.py.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ...core.otlp.files import TracesWriter
from ...core.otlp.replacing import replacing
from ...core.records.problems import ReadingProblem
from ...core.spool.reader import stored_batch
from ...core.spool.writer import SpoolWriter
from ...core.translator.codec import Encoded
from ...errors import InputError, RefusedNameError, TargetError, UsageError
from .formats import PathSpec
from .messages import SizeLimits
from .report import Report
from .tables import STANDARD


class TargetWriter(ABC):
    """An open target.

    It counts the written batches in a report, and lists the refused batches there as findings. When
    its context manager ends, the target is complete. If the block raises, a file is not created or
    replaced, and a spool keeps the batches that were added.

    Openers and methods raise TargetError if writing fails, and UsageError if the target cannot
    store the given batches.
    """

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write the bytes of a batch under its file name; an existing batch stays unchanged."""

    def use_spool(self, root: Path) -> None:  # noqa: B027 - most targets need batches only
        """Take notice of the directory whose spool contains the batches, before the first one.

        Bundles and snapshots are beside the spool.
        """

    def take(self, item: Encoded) -> None:
        """Write a batch that was encoded for the target (`TargetRow.encoding`)."""
        self.write(item.name, item.data)

    def read(self, name: str) -> bytes | None:  # noqa: ARG002 - for targets that can recall
        """Return the bytes of a batch that the target contains under this name, or None.

        Only targets with `TargetRow.can_recall` implement this.
        """
        return None


class SpoolTarget(TargetWriter):
    """Adds batches to a spool; a batch is refused if its name is taken by a batch with other
    content.
    """

    def __init__(
        self, path: str, report: Report, max_bytes: int, *, is_temporary: bool = False
    ) -> None:
        """Open the spool at `path`; a batch of more than `max_bytes` is refused."""
        self._max_bytes, self._is_temporary = max_bytes, is_temporary
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
            report.skip(ReadingProblem(name, "refused", str(error)))
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
        """Wait until all written batches are on disk, unless the spool is temporary."""
        if not self._is_temporary:
            self._writer.sync()


class _BatchFileTarget(TargetWriter):
    """One batch file."""

    def __init__(self, stream: BinaryIO, report: Report, max_bytes: int) -> None:
        """Write to `stream`; a batch of more than `max_bytes` is refused."""
        self._max_bytes = max_bytes
        self._stream = stream
        self._report = report
        self._written: tuple[str, bytes] | None = None

    def write(self, name: str, data: bytes) -> None:
        """Write the batch. Raises UsageError for a second batch."""
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


class MessageTarget(TargetWriter):
    """A file of OTLP messages, which are encoded from batches or read from an OTLP source."""

    def __init__(self, writer: TracesWriter, report: Report) -> None:
        """Write through `writer`."""
        self._writer, self._report = writer, report

    def write(self, name: str, data: bytes) -> None:
        """Not supported, because batches are first encoded, and then passed to `take`."""
        raise NotImplementedError

    def take(self, item: Encoded) -> None:
        """Write the messages of a batch."""
        self._writer.write_encoded(item.data)
        self._report.written += item.messages
        self._report.messages += item.messages
        self._report.bytes_written += len(item.data)

    def write_messages(self, framed: Iterable[bytes]) -> None:
        """Write framed messages unchanged."""
        for data in framed:
            self._writer.write_encoded(data)
            self._report.written += 1


def _fits(name: str, data: bytes, max_bytes: int, report: Report) -> bool:
    """Return whether readers accept a batch of this size; a larger batch is reported."""
    if len(data) <= max_bytes:
        return True
    report.skip(
        ReadingProblem(
            name, "too-large", f"longer than {max_bytes} bytes, the maximum that is read"
        )
    )
    return False


@contextlib.contextmanager
def open_stream(place: PathSpec) -> Iterator[BinaryIO]:
    """Open a file for writing. It is created when the block ends, or not at all if the block
    raises.
    """
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
def open_spool(
    place: PathSpec, report: Report, limits: SizeLimits, *, is_temporary: bool = False
) -> Iterator[SpoolTarget]:
    """Open a spool for adding batches."""
    target = SpoolTarget(place.path, report, limits.batch_bytes, is_temporary=is_temporary)
    yield target
    target.close()


@contextlib.contextmanager
def open_batch_file(place: PathSpec, report: Report, limits: SizeLimits) -> Iterator[TargetWriter]:
    """Open a file for one batch. Raises InputError at the end if no batch was written."""
    with open_stream(place) as stream:
        yield _BatchFileTarget(stream, report, limits.batch_bytes)
        if not report.written:
            raise InputError("no batch to write: the source has none, or nothing was selected")


@contextlib.contextmanager
def open_messages(
    place: PathSpec,
    report: Report,
    limits: SizeLimits,  # noqa: ARG001 - messages have already been split
) -> Iterator[MessageTarget]:
    """Open a file of OTLP messages."""
    with open_stream(place) as stream, TracesWriter(stream, place.form) as writer:
        yield MessageTarget(writer, report)
