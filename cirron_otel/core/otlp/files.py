"""OTLP files: streams of TracesData messages, read and written in bounded memory.

JSON: one TracesData per line (OTLP File Exporter specification), or documents that span several
lines. Protobuf: each message preceded by its length as a varint.

A stream that is evidently in another format is refused with a hint about that format.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO, Self

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ...errors import InputError, TargetError
from .compression import chunks, collector_hint, compression_of_data, compressor, with_head
from .formats import Compression, Encoding, Format
from .framing import Lines, StreamError, messages
from .json_codec import json_losses
from .json_decode import traces_from_value
from .json_documents import DocumentLines
from .json_encode import traces_to_json
from .json_parse import NotJsonError, parse_into
from .wire import encode_varint

HEAD = 64
"""The number of bytes at the start of a stream that the format checks examine."""

_BOM = b"\xef\xbb\xbf"
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_TRACES_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"resource')
_JSON = re.compile(rb"(\xef\xbb\xbf)?\s*[\[{]")


def check_json_head(head: bytes) -> None:
    """Raise StreamError if `head` cannot be the start of JSON lines."""
    _check_compression(head)
    start = head[:HEAD].removeprefix(_BOM).lstrip(b" \t\r\n")
    if start and not start.startswith(b"{") and (_CONTROL.search(start) or not _is_utf8(start)):
        raise StreamError(
            f"expected OTLP/JSON, found binary data ({start[:8].hex(' ')}):"
            " if it is protobuf, read it as .binpb (otlp-proto)"
        )


def check_proto_head(head: bytes) -> None:
    """Raise StreamError if `head` is certainly not length-delimited protobuf."""
    _check_compression(head)
    if _TRACES_JSON.match(head):
        raise StreamError(
            "expected length-delimited protobuf, found OTLP/JSON: read it as .jsonl (otlp-json)"
        )


def proto_hint(head: bytes) -> str:
    """Return a hint about the format of a stream that is not length-delimited protobuf; or ""."""
    if _JSON.match(head):
        return "; it looks like JSON"
    if head[:1] == b"\n":
        return "; it looks like a TracesData without a length: put its length, a varint, before it"
    if head[:1] == b"\0" and head[4:5] == b"\n":
        return (
            "; it looks like proto output of the Collector's file exporter, with lengths of"
            " 4 bytes: set its format to json"
        )
    return ""


def _check_compression(head: bytes) -> None:
    compression = compression_of_data(head)
    if compression is not Compression.NONE:
        suffix = ".gz" if compression is Compression.GZIP else ".zst"
        raise StreamError(f"found {compression} data: give the file the second suffix {suffix}")
    if hint := collector_hint(head):
        raise StreamError(f"found the bytes {head[:8].hex(' ')}{hint}")


def _is_utf8(start: bytes) -> bool:
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"  # the head ends within a character
    return True


MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""The longest line or message that is read, in bytes."""

OnError = Callable[[int, str], None]
"""(position, problem): called for each line or message that is skipped."""

_OTHER_SIGNALS = frozenset(
    ("resourceMetrics", "resource_metrics", "resourceLogs", "resource_logs", "resourceProfiles")
)
_RESPONSE = frozenset(("partialSuccess", "partial_success"))
_HINTED_MESSAGES = 5
"""If a message with a number below this limit is bad, the stream may have another format: for
example, a Collector's 4-byte lengths start with zero bytes, which are read as empty messages. A bad
message further on means that the file is damaged.
"""


@dataclass(slots=True)
class Message:
    """One TracesData of a file."""

    data: bytes
    """The message in protobuf; the exact bytes of the file if it contains protobuf."""
    position: int
    """The number of the message's first line or, in a protobuf file, of the message itself; from 1.
    """
    size: int
    """The size of the message in the file, bytes, decompressed; without white space around it, and
    without the length before it."""
    warnings: list[str] = field(default_factory=list)
    """Content of the message that was ignored, one line each."""


class _OtherSignalError(InputError):
    """A line with metrics or logs: valid, but not traces."""


def read_messages(
    stream: BinaryIO,
    form: Format,
    *,
    max_bytes: int = MAX_MESSAGE_BYTES,
    on_error: OnError | None = None,
    validate: bool = True,
) -> Iterator[Message]:
    """Yield the messages of `stream`, in order, each as soon as it is read.

    A bad line, or a bad protobuf message after a valid length, raises InputError with its position;
    with `on_error` it is reported and skipped instead. Lines of other signals (metrics, logs),
    which a Collector's file may contain, are also reported and skipped with `on_error`; without it,
    they are yielded as empty messages with a warning. If the stream itself is broken (truncated,
    damaged, of another format), InputError is raised after everything before the fault was yielded.

    With `validate=False`, the caller must check that protobuf messages parse.
    """
    pieces = chunks(stream, form.compression)
    if form.encoding is Encoding.JSON:
        return _read_json(pieces, max_bytes, on_error)
    return _read_proto(pieces, max_bytes, on_error, validate)


def _read_json(
    pieces: Iterator[bytes], max_bytes: int, on_error: OnError | None
) -> Iterator[Message]:
    head, pieces = with_head(pieces, HEAD)
    check_json_head(head)
    numbered = DocumentLines(Lines(pieces, max_bytes), max_bytes)
    first = True
    for number, line in numbered:
        try:
            if line is None:
                raise InputError(f"longer than the limit of {max_bytes} bytes")
            text = line.removeprefix(b"\xef\xbb\xbf").strip() if first else line.strip()
            if not text:
                continue
            first = False
            message = _next_message(text, number, numbered)
        except StreamError:
            raise
        except InputError as error:
            first = False
            if on_error is not None:
                on_error(number, str(error))
                continue
            if not isinstance(error, _OtherSignalError):
                raise InputError(f"line {number}: {error}") from None
            message = Message(b"", number, 0, [str(error)])
        yield message


def _next_message(text: bytes, number: int, numbered: DocumentLines) -> Message:
    while True:
        try:
            return _json_message(text, number)
        except NotJsonError:
            other = numbered.document(number, text)
            if other is None:
                raise
            text = other


def _json_message(text: bytes, number: int) -> Message:
    try:
        (traces, warnings), replaced = parse_into(text, _checked_traces)
        data = traces.SerializeToString()
    except MemoryError:
        raise InputError(
            f"not enough memory to read its {len(text)} bytes: free some, or write a TracesData of"
            " fewer spans per line"
        ) from None
    return Message(data, number, len(text), [*replaced, *warnings])


def _checked_traces(document: Any) -> tuple[TracesData, list[str]]:
    if isinstance(document, dict) and document:
        _check_keys(document)
    return traces_from_value(document)


def _check_keys(document: dict[str, Any]) -> None:
    """Reject a non-empty object without `resourceSpans`.

    A proto3 reader would ignore all its keys and accept it as empty. That is right only for a
    server's response, and for other signals without content.
    """
    if "resourceSpans" in document or "resource_spans" in document:
        return
    others = _OTHER_SIGNALS.intersection(document)
    if found := sorted(key for key in others if document[key]):
        raise _OtherSignalError(f"contains {', '.join(found)}, not traces: skipped")
    if document.keys() <= others | _RESPONSE:
        return
    keys = ", ".join(ascii(key[:40]) for key in list(document)[:4])
    batch = "schema_version" in document and "batch_id" in document
    raise InputError(
        f"expected a TracesData object with the key 'resourceSpans', found {keys}"
        + (": this is a Cirron batch, not OTLP" if batch else "")
    )


def _read_proto(
    pieces: Iterator[bytes], max_bytes: int, on_error: OnError | None, validate: bool
) -> Iterator[Message]:
    head, pieces = with_head(pieces, HEAD)
    check_proto_head(head)
    number = 0
    try:
        for number, start, data in messages(pieces, max_bytes):
            problem = _problem(data) if validate else None
            if problem is None:
                yield Message(data, number, len(data))
            elif on_error is None or number == 1 or _hint(number, head):
                raise StreamError(f"message {number} at byte {start}: {problem}")
            else:
                on_error(number, problem)
    except StreamError as error:
        raise StreamError(f"{error}{_hint(number, head)}") from None


def _hint(number: int, head: bytes) -> str:
    return proto_hint(head) if number < _HINTED_MESSAGES else ""


def _problem(data: bytes) -> str | None:
    try:
        TracesData.FromString(data)
    except DecodeError:
        return f"the {len(data)} bytes are not a protobuf TracesData"
    return None


class TracesWriter:
    """Writes TracesData messages into a binary file object, which stays open.

    It is a context manager. Leaving the block normally ends the compressed data; leaving it with an
    exception does not, so that a truncated file cannot be mistaken for a complete one.
    """

    def __init__(self, stream: BinaryIO, form: Format) -> None:
        """Write into `stream` in the format `form`."""
        self._stream = stream
        try:
            self._sink = compressor(stream, form.compression)
        except OSError as error:  # a gzip header is written at once
            raise _target_error(error) from error
        self._json = form.encoding is Encoding.JSON

    def write(self, data: bytes) -> list[str]:
        """Write one serialized TracesData; return a line for each kind of loss in JSON.

        Raises TargetError if the file cannot be written; for JSON, InputError if `data` does not
        parse.
        """
        if not self._json:
            self._put(encode_varint(len(data)) + data)
            return []
        try:
            message = TracesData.FromString(data)
        except DecodeError:
            raise InputError(f"{len(data)} bytes are not a protobuf TracesData") from None
        return self.write_message(message)

    def write_message(self, message: TracesData) -> list[str]:
        """Write one TracesData object; the result and the errors are those of `write`."""
        if not self._json:
            return self.write(message.SerializeToString())
        line = traces_to_json(message)
        self._put(line + b"\n")
        return json_losses(message, line)

    def write_encoded(self, data: bytes) -> None:
        """Write encoded data: complete lines, or messages preceded by their lengths."""
        self._put(data)

    def close(self) -> None:
        """End the compressed data and flush; the file object stays open."""
        try:
            if self._sink is not self._stream:
                self._sink.close()
            self._stream.flush()
        except OSError as error:
            raise _target_error(error) from error

    def _put(self, data: bytes) -> None:
        try:
            self._sink.write(data)
        except OSError as error:
            raise _target_error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif isinstance(self._sink, gzip.GzipFile):
            # Otherwise the finalizer of GzipFile would write the end of the gzip member.
            self._sink.fileobj = None  # type: ignore[assignment]


def _target_error(error: OSError) -> TargetError:
    return TargetError(f"cannot write: {error.strerror or error}")
