"""OTLP as a source: files, standard input, and the query APIs of backends.

An element of OTLP may need two bytes on the wire and thousands of bytes as an object. Requests to a
collector may contain a limited number of elements (collector/receiver/measure.py). A message in a
file may have any size, so only messages that consist almost entirely of empty elements are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ...core.otlp.files import Message
from ...core.records.canonical import batch_bytes
from ...core.records.problems import ReadingProblem
from ...core.temporary import temporary_folder, writing_temporary_files
from ...core.translator.own.decode import Decoded
from ...core.translator.translate import FromOtlp
from ...errors import CirronOtelError, InputError
from .formats import OTLP_PROTO, PathSpec
from .progress import BYTES, Progress, begin_stage
from .report import Report
from .sources import BatchSource, NamedBatch, Recall, SourceContext, messages_of

_RESOURCE_SPANS, _SCOPE_SPANS, _SPAN, _EVENT_OR_LINK = 1200, 600, 4400, 550
"""The memory that an empty element takes, bytes, measured with CPython 3.11. A span needs the most
memory when it is converted to JSON."""
_PER_BYTE = 130
"""The memory allowed for elements per byte of the message, bytes. Attributes add at most 70 per
byte."""
_ALWAYS = 32 << 20
_SMALL = _ALWAYS // (_SPAN // 2)
"""A message of at most this many bytes never needs more than `_ALWAYS` bytes of memory: an element
has at least two bytes."""


def dense_problem(message: TracesData, size: int) -> str | None:
    """Describe the problem if a message of `size` bytes needs too much memory; else return None."""
    if size <= _SMALL:
        return None
    scopes = spans = others = 0
    for resource_spans in message.resource_spans:
        scopes += len(resource_spans.scope_spans)
        for scope_spans in resource_spans.scope_spans:
            spans += len(scope_spans.spans)
            for span in scope_spans.spans:
                others += len(span.events) + len(span.links)
    resources = len(message.resource_spans)
    needed = resources * _RESOURCE_SPANS + scopes * _SCOPE_SPANS
    needed += spans * _SPAN + others * _EVENT_OR_LINK
    if needed <= _ALWAYS + size * _PER_BYTE:
        return None
    return (
        f"{resources + scopes + spans + others} elements (spans, events, …) in {size} bytes, nearly"
        f" all of them empty: they need about {needed >> 20} MiB of memory"
    )


_HEADER_ALONE = (
    "the id and time of a batch from OTLP: its messages were changed or separated from them"
)
_ADDED = "an attribute that was added in transit to a record whose attrs is not an object"
_UNKNOWN_FIELDS = "unknown protobuf fields of TracesData itself"


def open_backend(place: PathSpec, context: SourceContext) -> OtlpSource:
    """Copy the traces of Jaeger or Tempo into a temporary OTLP file.

    `context.report` lists the data that the backend does not have.
    """
    from ..query.address import parse_address  # noqa: PLC0415 - needs an extra
    from ..query.fetch import fetch  # noqa: PLC0415

    address = parse_address(place.path, os.environ)
    path = context.stack.enter_context(temporary_folder()) / "traces.binpb"
    begin_stage(context.progress, "fetching", BYTES)
    with writing_temporary_files(), path.open("wb") as file:
        context.report.backend = fetch(address, file, context.progress)
    begin_stage(context.progress, "reading", BYTES)
    return OtlpSource(PathSpec(str(path), OTLP_PROTO), context)


class OtlpSource(BatchSource):
    """A source of OTLP messages, which contain Cirron's batches or foreign traces."""

    is_streamed = True
    has_messages = True

    def __init__(self, place: PathSpec, context: SourceContext) -> None:
        """Store the arguments; `messages` and `batches` read the file."""
        self._place, self._limit = place, context.limits.message_bytes

    def messages(
        self, report: Report, progress: Progress | None = None
    ) -> Iterator[tuple[Message, TracesData]]:
        """Yield the valid messages, and report the invalid ones.

        Raises InputError if the rest of the file cannot be read.
        """
        for message in messages_of(self._place, report, progress, self._limit):
            traces = _parsed(message, report, self._place)
            if traces is not None:
                yield message, traces

    def batches(
        self, report: Report, recall: Recall, progress: Progress | None = None
    ) -> Iterator[NamedBatch]:
        """Yield the batches; some are complete only when all messages have been read.

        If the rest of the file cannot be read, yields the batches that precede the damage, and
        then raises InputError.
        """
        reader = FromOtlp(recall=recall)
        failure: InputError | None = None
        count = 0
        try:
            for message in messages_of(self._place, report, progress, self._limit):
                for batch in self._translated(message, reader, report):
                    count += 1
                    yield batch
        except InputError as error:
            failure = error
        if failure is not None and not count and not reader.regrouper.open:
            raise failure
        for decoded in reader.finish():
            count += 1
            yield _checked(decoded, report)
        report.duplicates = reader.regrouper.duplicates
        report.lose([_HEADER_ALONE] * reader.headers_alone)
        report.lose(reader.altered.losses())
        if failure is not None:
            raise InputError(f"{failure}; the {count} batches before it were converted") from None

    def _translated(
        self, message: Message, reader: FromOtlp, report: Report
    ) -> Iterator[NamedBatch]:
        try:
            yield from _batches_of(message, reader, report, self._place)
        except (CirronOtelError, OSError):
            raise  # an error of the target: the reader recalls stored batches from it
        except Exception as error:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            problem = f"cannot be translated, please report it: {what}"
            where = str(message.position)
            report.skip(ReadingProblem(self._place.path, "untranslatable", problem, path=where))


def _batches_of(
    message: Message, reader: FromOtlp, report: Report, place: PathSpec
) -> Iterator[NamedBatch]:
    whole = reader.feed_whole(message.data)
    if whole is not None:
        if whole.data:
            yield NamedBatch(whole.name, whole.data, whole.spans, whole.marks, whole.snapshots)
        return
    traces = _parsed(message, report, place)
    if traces is not None:
        if len(UnknownFieldSet(traces)):
            report.lose([_UNKNOWN_FIELDS])
        for decoded in reader.feed(traces.resource_spans):
            yield _checked(decoded, report)


def _checked(decoded: Decoded, report: Report) -> NamedBatch:
    """Return a decoded batch, and report records and attributes that it does not contain."""
    if not decoded.complete:
        actual, whole = decoded.found, decoded.expected
        line = (
            f"{decoded.name}: {actual.spans} of {whole.spans} spans, {actual.marks} of"
            f" {whole.marks} marks, {actual.snapshots} of {whole.snapshots} snapshots"
        )
        if actual.synthetic != whole.synthetic:
            line += f", {actual.synthetic} of {whole.synthetic} synthetic spans"
        report.incomplete.append(line)
    if decoded.namesake is not None:
        what = f"another batch has this name but different content: stored as {decoded.name}"
        report.skip(ReadingProblem(decoded.namesake, "namesake", what))
    report.lose([f"{_ADDED}: {key!a}" for key in decoded.dropped])
    counts = (
        len(records) if isinstance(records := decoded.batch.get(key), list) else 0
        for key in ("spans", "marks", "snapshots")
    )
    return NamedBatch(decoded.name, batch_bytes(decoded.batch), *counts)


def _parsed(message: Message, report: Report, place: PathSpec) -> TracesData | None:
    """Parse a message. Reports an invalid or too dense message, and returns None for it."""
    problem: str | None
    try:
        traces = TracesData.FromString(message.data)
        problem = dense_problem(traces, len(message.data))
    except DecodeError:
        problem = "not a TracesData message in protobuf"
    if problem is None:
        return traces
    report.skip(ReadingProblem(place.path, "unreadable", problem, path=str(message.position)))
    return None
