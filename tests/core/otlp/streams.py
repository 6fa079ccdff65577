"""OTLP files in memory, and how a test reads them."""

from __future__ import annotations

import gzip
import io
import itertools
from typing import BinaryIO

import zstandard
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.files import Message, TracesWriter, read_messages
from cirron_otel.core.otlp.formats import Compression, Encoding, Format
from cirron_otel.core.otlp.json_codec import traces_to_json
from cirron_otel.core.otlp.wire import encode_varint
from cirron_otel.errors import InputError

JSON, PROTO = Format(Encoding.JSON), Format(Encoding.PROTO)


FORMATS = [Format(e, c) for e, c in itertools.product(Encoding, Compression)]


def traces(name: str, spans: int = 1) -> TracesData:
    data = TracesData()
    scope = data.resource_spans.add().scope_spans.add()
    for number in range(spans):
        scope.spans.add(name=f"{name}{number}", span_id=number.to_bytes(8, "big"))
    return data


def line(name: str) -> bytes:
    return traces_to_json(traces(name)) + b"\n"


def framed(data: bytes) -> bytes:
    return encode_varint(len(data)) + data


def compressed(data: bytes, compression: Compression) -> bytes:
    if compression is Compression.GZIP:
        return gzip.compress(data)
    if compression is Compression.ZSTD:
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)
    return data


def written(messages: list[TracesData], form: Format) -> bytes:
    out = io.BytesIO()
    with TracesWriter(out, form) as writer:
        for message in messages:
            writer.write(message.SerializeToString())
    return out.getvalue()


def names(messages: list[Message]) -> list[str]:
    return [
        span.name
        for message in messages
        for rs in TracesData.FromString(message.data).resource_spans
        for scope in rs.scope_spans
        for span in scope.spans
    ]


def read_until_error(
    data: bytes | BinaryIO, form: Format, **options: object
) -> tuple[list[Message], str]:
    """What came before the error, and the error's text; "" where there was none."""
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    found: list[Message] = []
    try:
        for message in read_messages(stream, form, **options):  # type: ignore[arg-type]
            found.append(message)
    except InputError as error:
        text = str(error)
        assert text
        assert "\n" not in text
        return found, text
    return found, ""


class Dripping(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step, self._at = data, step, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        piece = self._data[self._at : self._at + min(self._step, len(buffer))]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def buffered(raw: io.RawIOBase, size: int = io.DEFAULT_BUFFER_SIZE) -> BinaryIO:
    return io.BufferedReader(raw, size)
