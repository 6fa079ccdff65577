"""Files of batches as protobuf: `cirron.v1.Batch` messages, each preceded by its length.

proto/cirron/v1/trace.proto defines the messages; docs/spool-format.md contains the rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ... import exactjson
from ...core.otlp.files import TracesWriter
from ...core.otlp.wire import encode_varint
from ...core.records.canonical import batch_bytes
from ...core.records.check import check_batch
from ...core.records.problems import ReadingProblem
from ...core.spool.paths import checked_name
from ...core.translator.own.assembly import content_name
from ...core.translator.own.batch_fields import file_name
from ...core.translator.own.wire_proto import from_proto, parse, to_proto
from ...errors import InputError, TargetError
from .formats import PathSpec
from .messages import SizeLimits
from .progress import Progress
from .report import Report
from .sources import BatchSource, NamedBatch, Recall, SourceContext, messages_of
from .targets import TargetWriter, open_stream

Record = dict[str, Any]

_FILE_NAME = "the file name of a batch, if it does not follow from its id and time"
_UNKNOWN_FIELDS = "unknown protobuf fields of a batch"
_RECORD_BYTES, _BYTES_PER_BYTE, _ALWAYS = 3_000, 130, 32 << 20
"""Memory in bytes: used by a decoded record, allowed per byte of a message, and always allowed."""


class WireTarget(TargetWriter):
    """Writes batches as messages."""

    def __init__(self, writer: TracesWriter, report: Report, limits: SizeLimits) -> None:
        """Write through `writer`; a message that readers would refuse is reported."""
        self._writer, self._report, self._most = writer, report, limits.batch_bytes

    def write(self, name: str, data: bytes) -> None:
        """Write a batch; `name` is the name of its file. Raises TargetError."""
        report = self._report
        try:
            batch = exactjson.loads(data)
            traces = to_proto(batch)
            message = traces.SerializeToString()
            _check_density(traces, len(message))
        except InputError as error:
            report.skip(ReadingProblem(name, "untranslatable", str(error)))
            return
        if len(message) > self._most:
            what = f"longer than {self._most} bytes, the maximum that is read"
            report.skip(ReadingProblem(name, "too-large", what))
            return
        if name != _name_of(batch):
            report.lose([f"{_FILE_NAME}: {name!a}"])
        framed = encode_varint(len(message)) + message
        self._writer.write_encoded(framed)
        report.written += 1
        report.bytes_written += len(framed)


@contextlib.contextmanager
def open_wire_file(place: PathSpec, report: Report, limits: SizeLimits) -> Iterator[WireTarget]:
    """Open a file of messages for writing."""
    with open_stream(place) as stream, TracesWriter(stream, place.form) as writer:
        yield WireTarget(writer, report, limits)


class WireSource(BatchSource):
    """A file of messages."""

    def __init__(self, place: PathSpec, context: SourceContext) -> None:
        """Store the arguments; `batches` reads the file."""
        self._place, self._limit = place, context.limits.batch_bytes

    def batches(
        self,
        report: Report,
        recall: Recall,  # noqa: ARG002 - the interface of a source
        progress: Progress | None = None,
    ) -> Iterator[NamedBatch]:
        """Yield the batches, and report each message that cannot be read.

        Raises InputError if no batch can be read.
        """
        path, count = self._place.path, 0
        try:
            for message in messages_of(self._place, report, progress, self._limit):
                try:
                    batch = _batch(message.data, report)
                    data = batch_bytes(batch)
                    # Readers of a spool would skip an invalid batch, and its file would occupy the
                    # name of a valid batch.
                    if problem := check_batch(data):
                        raise InputError(problem.message)
                except InputError as error:
                    where = str(message.position)
                    report.skip(ReadingProblem(path, "unreadable", str(error), path=where))
                    continue
                count += 1
                yield NamedBatch(_name_of(batch), data)
        except InputError as error:
            if not count:
                raise
            report.skip(ReadingProblem(path, "unreadable", f"{error}; {count} batches precede it"))
        if report.skipped and not count:
            raise InputError(f"{path} contains no batch: {report.skipped[0].message}")


def _batch(data: bytes, report: Report) -> Record:
    """Decode a message. Raises InputError if it is not valid, or needs too much memory."""
    message = parse(data)
    _check_density(message, len(data))
    known = message.ByteSize()
    batch = from_proto(message)
    message.DiscardUnknownFields()
    if message.ByteSize() != known:
        report.lose([_UNKNOWN_FIELDS])
    if not isinstance(batch, dict):
        raise InputError("the message contains a JSON value that is not a batch")
    return batch


def _check_density(message: Any, size: int) -> None:
    """Raise InputError if the records of a message of `size` bytes need too much memory."""
    records = len(message.spans) + len(message.marks) + len(message.snapshots)
    if records * _RECORD_BYTES > _ALWAYS + size * _BYTES_PER_BYTE:
        raise InputError(f"{records} records in {size} bytes, nearly all of them empty")


def _name_of(batch: Record) -> str:
    """Return the file name of a batch, derived from its id and time, or else from its content."""
    with contextlib.suppress(TargetError):
        return checked_name(file_name(batch) or "")
    return content_name(batch)
