from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.errors import InputError, TargetError
from cirron_otel.otlp.files import Message, TracesWriter, read_messages
from cirron_otel.otlp.formats import Compression, Encoding, Format
from cirron_otel.otlp.json_codec import traces_to_json
from cirron_otel.otlp.wire import encode_varint

from . import generated

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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(generated.traces(), max_size=4),
    st.sampled_from(FORMATS),
    st.integers(1, 70),
)
def test_what_is_written_is_read(messages: list[TracesData], form: Format, step: int) -> None:
    data = written(messages, form)
    for stream in (io.BytesIO(data), buffered(Dripping(data, step), 16)):
        back = list(read_messages(stream, form))
        assert [
            TracesData.FromString(m.data).SerializeToString(deterministic=True) for m in back
        ] == [m.SerializeToString(deterministic=True) for m in messages]
        assert [m.position for m in back] == list(range(1, len(messages) + 1))
        assert all(m.warnings == [] for m in back)
    assert written(messages, form) == data  # the same input, the same bytes


def test_protobuf_messages_are_the_very_bytes_of_the_file() -> None:
    odd = b"\xa0\x06\x01" + traces("a").SerializeToString() + b"\xa2\x06\x00"
    out = io.BytesIO()
    with TracesWriter(out, PROTO) as writer:
        assert writer.write(odd) == []
        assert writer.write(b"") == []
    assert out.getvalue() == framed(odd) + b"\0"
    assert [m.data for m in read_messages(io.BytesIO(out.getvalue()), PROTO)] == [odd, b""]


def test_the_json_writer_reports_what_json_cannot_say() -> None:
    with TracesWriter(io.BytesIO(), JSON) as writer:
        assert writer.write(traces("a").SerializeToString()) == []
        assert writer.write(b"\xa0\x06\x01") == ["unknown protobuf fields cannot be said in JSON"]
        with pytest.raises(InputError, match="2 bytes are no TracesData"):
            writer.write(b"\x0a\x05")


def test_json_lines_as_other_programs_write_them() -> None:
    text = b"\xef\xbb\xbf" + line("a") + b"\r\n  \n" + line("b").replace(b"\n", b"\r\n") + b"{}\n"
    found = list(read_messages(io.BytesIO(text + line("c").rstrip()), JSON))
    assert names(found) == ["a0", "b0", "c0"]
    assert [m.position for m in found] == [1, 4, 5, 6]
    assert found[2].data == b""
    assert list(read_messages(io.BytesIO(b""), JSON)) == []
    assert list(read_messages(io.BytesIO(b"\n \n"), JSON)) == []
    assert list(read_messages(io.BytesIO(b""), PROTO)) == []


@pytest.mark.parametrize("indent", [0, 1, 2, "\t"])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n \n"])
def test_one_document_over_many_lines(indent: int | str, before: bytes) -> None:
    text = json.dumps(json.loads(traces_to_json(traces("a", 50))), indent=indent).encode()
    assert text.count(b"\n") > 100
    (found,) = read_messages(io.BytesIO(before + text + b"\n"), JSON)
    assert TracesData.FromString(found.data) == traces("a", 50)


def test_two_documents_over_many_lines_are_refused() -> None:
    text = json.dumps(json.loads(line("a")), indent=2).encode()
    found, error = read_until_error(text + b"\n" + text, JSON)
    assert found == []
    assert error.startswith("line 1: not JSON: ")


def test_unknown_keys_come_as_warnings() -> None:
    (found,) = read_messages(io.BytesIO(b'{"resourceSpans":[],"x":1}\n'), JSON)
    assert found.warnings == ["unknown key 'x' in TracesData ignored"]


BAD_LINES = {
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"na\n': "line 2: not JSON",
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"kind":[]}]}]}]}\n': (
        "line 2: resourceSpans[0].scopeSpans[0].spans[0].kind: expected int32"
    ),
    b"[]\n": "line 2: expected an object",
    b"\0\0\0\0\n": "line 2: not JSON",
    b'{"schema_version":1,"sdk_version":"0.3.0","batch_id":"ab"}\n': "this is a Cirron batch",
    b'{"hello":1}\n': "line 2: expected a TracesData object with the key 'resourceSpans'",
}


@pytest.mark.parametrize(("bad", "reason"), BAD_LINES.items())
def test_a_bad_line_in_the_middle(bad: bytes, reason: str) -> None:
    found, error = read_until_error(line("a") + bad + line("b"), JSON)
    assert names(found) == ["a0"]
    assert reason in error
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(
        line("a") + bad + line("b"), JSON, on_error=lambda *problem: problems.append(problem)
    )
    assert error == ""
    assert names(found) == ["a0", "b0"]
    ((position, text),) = problems
    assert position == 2
    assert text in f"line 2: {text}"
    assert reason.removeprefix("line 2: ") in text


def test_the_first_line_may_be_bad_too() -> None:
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(
        b"# a comment\n" + line("b"), JSON, on_error=lambda *p: problems.append(p)
    )
    assert (names(found), error, [p for p, _ in problems]) == (["b0"], "", [1])


def test_lines_of_other_signals_are_skipped_and_told() -> None:
    text = line("a") + b'{"resourceMetrics":[]}\n{"resourceLogs":[{}]}\n' + line("b")
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(text, JSON, on_error=lambda *p: problems.append(p))
    assert (names(found), error) == (["a0", "b0"], "")
    assert problems == [
        (2, "holds resourceMetrics, no traces: skipped"),
        (3, "holds resourceLogs, no traces: skipped"),
    ]
    found, error = read_until_error(text, JSON)
    assert (names(found), error) == (["a0", "b0"], "")
    assert [(m.position, m.data, m.warnings) for m in found[1:3]] == [
        (position, b"", [text]) for position, text in problems
    ]


def test_a_long_line_is_refused_or_skipped() -> None:
    text = line("a") + b'{"x":"' + b"y" * 5000 + b'"}\n' + line("b")
    found, error = read_until_error(text, JSON, max_bytes=1000)
    assert names(found) == ["a0"]
    assert error == "line 2: longer than 1000 bytes, the most that is read"
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(
        text, JSON, max_bytes=1000, on_error=lambda *p: problems.append(p)
    )
    assert (names(found), error) == (["a0", "b0"], "")
    assert problems == [(2, "longer than 1000 bytes, the most that is read")]
    exact = len(line("b")) - 1
    assert names(list(read_messages(io.BytesIO(line("b")), JSON, max_bytes=exact))) == ["b0"]
    assert read_until_error(line("b"), JSON, max_bytes=exact - 1)[1] != ""


class Endless(io.RawIOBase):
    """A stream without end, which counts what was read of it."""

    def __init__(self, start: bytes, rest: bytes) -> None:
        self._start, self._rest, self.given = start, rest, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        piece, self._start = self._start[: len(buffer)], self._start[len(buffer) :]
        filled = (piece or self._rest * (len(buffer) // len(self._rest) + 1))[: len(buffer)]
        buffer[: len(filled)] = filled
        self.given += len(filled)
        return len(filled)


@pytest.mark.parametrize(
    ("start", "rest", "form"),
    [
        (b'{"resourceSpans":"', b"x", JSON),
        (b'{"resourceSpans":[\n', b"{},\n", JSON),  # one document over many lines
        (encode_varint(2**62), b"\n", PROTO),
        (b"\xff" * 64, b"\xff", PROTO),
    ],
)
def test_what_never_ends_is_refused_in_bounded_memory(
    start: bytes, rest: bytes, form: Format
) -> None:
    stream = Endless(start, rest)
    limit = 4 * 1024 * 1024
    tracemalloc.start()
    try:
        found, error = read_until_error(buffered(stream), form, max_bytes=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == []
    assert error
    assert stream.given < limit + 2 * 1024 * 1024
    assert peak < 3 * limit


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.PROTO])
def test_a_bomb_is_refused_in_bounded_memory(compression: Compression, encoding: Encoding) -> None:
    plain = b'{"resourceSpans":"' if encoding is Encoding.JSON else encode_varint(10**9)
    bomb = compressed(plain + b"x" * (1 << 28), compression)
    assert len(bomb) < 1 << 20
    limit = 4 * 1024 * 1024
    tracemalloc.start()
    try:
        found, error = read_until_error(bomb, Format(encoding, compression), max_bytes=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == []
    assert str(limit) in error
    assert peak < 80 * 1024 * 1024


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f"{f.encoding}-{f.compression}")
def test_a_file_cut_off_anywhere(form: Format) -> None:
    """Every prefix gives whole messages only, and says that it is cut off unless it shows not."""
    whole = [traces(name) for name in "abc"]
    data = written(whole, form)
    complete = [m.data for m in read_messages(io.BytesIO(data), form)]
    for cut in range(len(data)):
        found, error = read_until_error(data[:cut], form)
        assert [m.data for m in found] == complete[: len(found)]
        if form.compression is not Compression.NONE:
            assert "cut off" in error, cut
        elif form.encoding is Encoding.PROTO:
            ends = list(itertools.accumulate(len(framed(m)) for m in complete))
            assert len(found) == sum(end <= cut for end in ends)
            assert ("cut off" in error) == (cut not in [0, *ends])
        elif error:
            assert error.startswith(f"line {len(found) + 1}: not JSON")


def _never(position: int, text: str) -> None:
    pytest.fail(f"told of {position}: {text}")


def test_what_came_before_a_cut_is_yielded() -> None:
    text = b"".join(line(f"n{n}-") for n in range(3000))
    for compression in (Compression.GZIP, Compression.ZSTD):
        data = compressed(text, compression)
        found, error = read_until_error(data[:-5], Format(Encoding.JSON, compression))
        # All that gzip has; zstd cannot give a part of a block.
        assert len(found) == 3000 if compression is Compression.GZIP else len(found) > 2000
        assert error.startswith(f"line {len(found) + 1}: the {compression} data is cut off")
        again, error = read_until_error(
            data[:-5], Format(Encoding.JSON, compression), on_error=_never
        )
        assert len(again) == len(found)
        assert "cut off" in error  # nothing to skip to: a broken stream is raised all the same


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_damage_is_noticed(compression: Compression) -> None:
    data = bytearray(compressed(b"".join(line(f"n{n}-") for n in range(200)), compression))
    data[-2] ^= 1  # the size of a gzip member, the checksum of a zstd frame
    found, error = read_until_error(bytes(data), Format(Encoding.JSON, compression))
    assert len(found) <= 200
    assert f"not {compression}, or damaged" in error


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_concatenated_members_and_frames(compression: Compression) -> None:
    half = line("bb")[:20], line("bb")[20:]
    data = b"".join(
        compressed(p, compression) for p in (line("a"), half[0], half[1], b"", line("c"))
    )
    if compression is Compression.GZIP:
        data += bytes(600)  # as tapes pad
    else:
        data = b"\x52\x2a\x4d\x18\x04\0\0\0skip" + data  # a skippable frame
    for step in (1, 7, 1 << 20):
        stream = buffered(Dripping(data, step))
        found = list(read_messages(stream, Format(Encoding.JSON, compression)))
        assert names(found) == ["a0", "bb0", "c0"]
    found, error = read_until_error(data + b"garbage", Format(Encoding.JSON, compression))
    assert names(found) == ["a0", "bb0", "c0"]
    assert f"not {compression}" in error


@pytest.mark.parametrize(
    ("make", "form", "reason"),
    [
        (lambda: framed(traces("a", 9).SerializeToString()), JSON, "found binary data"),
        (lambda: framed(traces("a").SerializeToString()), JSON, "read it as .binpb"),
        (lambda: traces("a").SerializeToString(), JSON, "found binary data"),
        (lambda: line("a").decode().encode("utf-16"), JSON, "found binary data"),
        (lambda: line("a"), PROTO, "found OTLP/JSON: read it as .jsonl"),
        (lambda: json.dumps(json.loads(line("a")), indent=2).encode(), PROTO, "found OTLP/JSON"),
        (lambda: b"\xef\xbb\xbf" + line("a"), PROTO, "found OTLP/JSON"),
        (lambda: b"{}\n", PROTO, "it looks like JSON"),
        (lambda: b'{"schema_version":1}', PROTO, "it looks like JSON"),
        (lambda: traces("abc", 5).SerializeToString(), PROTO, "one bare TracesData"),
        (
            lambda: b"\0\0\1\x2c" + traces("x" * 200, 1).SerializeToString(),
            PROTO,
            "lengths of 4 bytes",
        ),
        (
            lambda: gzip.compress(line("a")),
            JSON,
            "found gzip data: give the file the second suffix",
        ),
        (lambda: compressed(line("a"), Compression.ZSTD), PROTO, "suffix .zst"),
        (lambda: line("a"), Format(Encoding.JSON, Compression.GZIP), "expected gzip data"),
        (lambda: gzip.compress(b"{}"), Format(Encoding.JSON, Compression.ZSTD), "expected zstd"),
        (lambda: b"hello world, this is text", PROTO, "message 1 at byte 0"),
        (lambda: b"hello world, this is text", JSON, "line 1: not JSON"),
        (lambda: b"\x03\x0a\x05\x01", PROTO, "the 3 bytes are no TracesData"),
    ],
)
def test_what_is_not_what_it_claims_to_be(
    make: Callable[[], bytes], form: Format, reason: str
) -> None:
    for on_error in (None, lambda *_: None):
        found, error = read_until_error(make(), form, on_error=on_error)
        if on_error is None or "not JSON" not in reason:
            assert reason in error
            assert found == [] or reason == "lengths of 4 bytes"


def test_a_bad_protobuf_message_between_good_ones() -> None:
    good = framed(traces("a").SerializeToString())
    data = good + framed(b"\x0a\x05\x01") + good
    found, error = read_until_error(data, PROTO)
    assert len(found) == 1
    assert error == f"message 2 at byte {len(good)}: the 3 bytes are no TracesData in protobuf"
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(data, PROTO, on_error=lambda *p: problems.append(p))
    assert ([m.position for m in found], error) == ([1, 3], "")
    assert problems == [(2, "the 3 bytes are no TracesData in protobuf")]
    unchecked, error = read_until_error(data, PROTO, validate=False)
    assert ([m.data for m in unchecked][1], error) == (b"\x0a\x05\x01", "")


def test_a_message_longer_than_the_limit() -> None:
    good = framed(traces("a").SerializeToString())
    found, error = read_until_error(good + framed(bytes(1001)), PROTO, max_bytes=1000)
    assert len(found) == 1
    assert error.startswith(
        f"message 2 at byte {len(good)}: 1001 bytes announced, more than the 1000 that are read"
    )


def test_a_pipe_gives_its_lines_as_they_come() -> None:
    """A reader of `tail -f` must not wait for a whole chunk, nor for the end."""
    reading, writing = os.pipe()
    first = threading.Event()

    def produce() -> None:
        with os.fdopen(writing, "wb", 0) as out:
            out.write(line("a" * 100))
            first.wait(30)
            out.write(line("b"))

    producer = threading.Thread(target=produce)
    producer.start()
    with os.fdopen(reading, "rb") as stream:
        messages = read_messages(stream, JSON)
        assert names([next(messages)]) == ["a" * 100 + "0"]
        first.set()
        assert names(list(messages)) == ["b0"]
    producer.join()


def test_a_source_that_cannot_be_read(tmp_path: Path) -> None:
    with Path("/proc/self/mem").open("rb") as stream:  # page 0 is not mapped: EIO
        assert "cannot be read" in read_until_error(stream, JSON)[1]


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f"{f.encoding}-{f.compression}")
def test_a_full_disk_is_a_target_error(form: Format) -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(TargetError, match="No space left on device"),
        TracesWriter(full, form) as writer,
    ):
        writer.write(traces("a").SerializeToString())


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f"{f.encoding}-{f.compression}")
def test_the_file_stays_open_and_what_is_cut_short_shows(form: Format) -> None:
    out = io.BytesIO()
    with pytest.raises(KeyboardInterrupt), TracesWriter(out, form) as writer:  # noqa: PT012
        writer.write(traces("a").SerializeToString())
        raise KeyboardInterrupt
    del writer
    assert not out.closed
    if form.compression is not Compression.NONE:
        assert "cut off" in read_until_error(out.getvalue(), form)[1]


def test_messages_are_written_from_objects_too() -> None:
    for form in FORMATS:
        out = io.BytesIO()
        with TracesWriter(out, form) as writer:
            writer.write_message(traces("a"))
        assert out.getvalue() == written([traces("a")], form)
