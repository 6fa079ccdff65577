from __future__ import annotations

import gzip
import io
import itertools
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import Compression, Encoding, Format
from cirron_otel.core.otlp.wire import encode_varint

from .streams import (
    FORMATS,
    JSON,
    PROTO,
    buffered,
    compressed,
    framed,
    line,
    names,
    read_until_error,
    traces,
    written,
)


def test_a_long_line_is_refused_or_skipped() -> None:
    text = line("a") + b'{"x":"' + b"y" * 5000 + b'"}\n' + line("b")
    found, error = read_until_error(text, JSON, max_bytes=1000)
    assert names(found) == ["a0"]
    assert error == "line 2: longer than the limit of 1000 bytes"
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(
        text, JSON, max_bytes=1000, on_error=lambda *p: problems.append(p)
    )
    assert (names(found), error) == (["a0", "b0"], "")
    assert problems == [(2, "longer than the limit of 1000 bytes")]
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
def test_endless_input_is_refused_in_bounded_memory(
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


def test_messages_preceding_a_truncation_are_yielded() -> None:
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


def _collector_zstd() -> bytes:
    message = compressed(line("a"), Compression.ZSTD)
    return len(message).to_bytes(4, "big") + message


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
        (lambda: traces("abc", 5).SerializeToString(), PROTO, "a TracesData without a length"),
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
        (_collector_zstd, Format(Encoding.JSON, Compression.ZSTD), "remove `compression`"),
        (_collector_zstd, JSON, "remove `compression`"),
        (_collector_zstd, PROTO, "remove `compression`"),
        (lambda: b"hello world, this is text", PROTO, "message 1 at byte 0"),
        (lambda: b"hello world, this is text", JSON, "line 1: not JSON"),
        (lambda: b"\x03\x0a\x05\x01", PROTO, "the 3 bytes are not a protobuf TracesData"),
    ],
)
def test_input_in_another_format_is_refused_with_a_hint(
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
    assert error == f"message 2 at byte {len(good)}: the 3 bytes are not a protobuf TracesData"
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(data, PROTO, on_error=lambda *p: problems.append(p))
    assert ([m.position for m in found], error) == ([1, 3], "")
    assert problems == [(2, "the 3 bytes are not a protobuf TracesData")]
    unchecked, error = read_until_error(data, PROTO, validate=False)
    assert ([m.data for m in unchecked][1], error) == (b"\x0a\x05\x01", "")


def test_a_message_longer_than_the_limit() -> None:
    good = framed(traces("a").SerializeToString())
    found, error = read_until_error(good + framed(bytes(1001)), PROTO, max_bytes=1000)
    assert len(found) == 1
    assert error.startswith(
        f"message 2 at byte {len(good)}: its length is 1001 bytes, over the limit of 1000"
    )


def test_a_source_that_cannot_be_read(tmp_path: Path) -> None:
    with Path("/proc/self/mem").open("rb") as stream:  # page 0 is not mapped: EIO
        assert "cannot be read" in read_until_error(stream, JSON)[1]
