"""Content codings: what is undone, what is damaged, and that the limit counts what comes out."""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard

from .fake_intake import FakeIntake
from .http_serving import Served, serving, traces

packed = functools.partial(gzip.compress, mtime=0)
"""The same bytes in each process: they are in the names of tests."""
TAKEN = FakeIntake().max_body_bytes


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def server(running: Served) -> Served:
    running.intake.requests.clear()
    return running


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_stream(data: bytes) -> bytes:
    """Frames that do not say how much they hold, as a streaming encoder writes them."""
    encoder = zstandard.ZstdCompressor(level=19).compressobj()
    return encoder.compress(data) + encoder.flush()


def framed(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(data))


def block(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def lz4_linked(data: bytes) -> bytes:
    """Blocks that refer to those before them; without the length of the content."""
    return lz4.frame.compress(data, block_linked=True, store_size=False)


def lz4_independent(data: bytes) -> bytes:
    """As Go's encoder writes it by default, which a Collector uses: blocks of up to 4 MiB."""
    return lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, content_checksum=True,
        store_size=False,
    )  # fmt: skip


BODY = traces(300)
PADDING = b"\xfe\x03\x00\x00abc"
"""A chunk of Snappy's framing format that readers skip."""
CODINGS = [
    ("gzip", packed(BODY)),
    ("GZIP", packed(BODY)),
    ("x-gzip", packed(BODY)),
    ("identity, gzip", packed(BODY)),
    ("gzip", packed(BODY[:50]) + packed(BODY[50:])),
    ("deflate", zlib.compress(BODY)),
    ("zstd", zstd(BODY)),
    ("zstd", zstd_stream(BODY)),
    ("zstd", zstd(BODY[:50]) + zstd_stream(BODY[50:])),
    ("snappy", block(BODY)),
    ("Snappy", block(BODY)),
    ("snappy", framed(BODY)),
    ("x-snappy-framed", framed(BODY)),
    ("x-snappy-framed", framed(BODY[:50]) + framed(BODY[50:])),
    ("x-snappy-framed", framed(BODY[:50]) + PADDING + framed(BODY[50:])[10:] + PADDING),
    ("lz4", lz4_linked(BODY)),
    ("lz4", lz4_independent(BODY[:50]) + lz4_linked(BODY[50:])),
    ("identity", BODY),
    ("", BODY),
]


@pytest.mark.parametrize(("coding", "sent"), CODINGS)
@pytest.mark.parametrize("piece", [0, 1, 997])
def test_codings(server: Served, coding: str, sent: bytes, piece: int) -> None:
    """With a length, and chunked in pieces of any size."""
    chunks = iter([sent[at : at + piece] for at in range(0, len(sent), piece)]) if piece else sent
    if piece == 1:
        chunks = iter([sent[:1], sent[1:2], sent[2:]])

    answer = server.post(chunks, Content_Encoding=coding)

    assert answer.status == 200
    assert server.intake.bodies == [BODY]


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("gzip", packed(BODY)[:-1]),
        ("gzip", packed(BODY)[:50]),
        ("gzip", packed(BODY) + b"more"),
        ("gzip", packed(BODY)[:-8] + b"12345678"),
        ("gzip", BODY),
        ("deflate", zlib.compress(BODY)[:-1]),
        ("deflate", zlib.compress(BODY) + b"more"),
        ("zstd", zstd(BODY)[:-1]),
        ("zstd", zstd(BODY) + b"more"),
        ("zstd", packed(BODY)),
        ("snappy", block(BODY)[:-1]),
        ("snappy", block(BODY) + b"more"),
        ("snappy", b"\xff" * 20),
        ("snappy", framed(BODY)[:5]),
        ("x-snappy-framed", block(BODY)),
        ("x-snappy-framed", framed(BODY)[:-1]),
        ("x-snappy-framed", framed(BODY)[:2]),
        ("x-snappy-framed", framed(BODY) + PADDING[:-1]),
        ("x-snappy-framed", framed(BODY)[10:]),
        ("x-snappy-framed", framed(BODY)[:14] + b"1234" + framed(BODY)[18:]),
        ("x-snappy-framed", framed(BODY)[:10] + b"\x00\xff\xff\x7f"),
        ("x-snappy-framed", framed(BODY)[:10] + b"\x02\x00\x00\x00"),
        ("lz4", lz4_linked(BODY)[:-1]),
        ("lz4", lz4_linked(BODY) + b"more more"),
        ("lz4", BODY),
    ],
)
def test_damaged_codings(server: Served, coding: str, sent: bytes) -> None:
    answer = server.post(sent, Content_Encoding=coding)
    assert answer.status == 400
    assert coding.removeprefix("x-").removesuffix("-framed") in answer.message
    assert not server.intake.requests


@pytest.mark.parametrize("size", [TAKEN, TAKEN + 1])
@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("", bytes),
        ("gzip", packed),
        ("zstd", zstd_stream),
        ("deflate", zlib.compress),
        ("snappy", block),
        ("x-snappy-framed", framed),
        ("lz4", lz4_independent),
    ],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_size_limit_applies_to_decompressed_bytes(
    server: Served, size: int, coding: str, encode: Any, is_chunked: bool
) -> None:
    sent = encode(bytes(size))
    answer = server.post(iter([sent]) if is_chunked else sent, Content_Encoding=coding)
    assert answer.status == (200 if size == TAKEN else 413)
    assert len(server.intake.requests) == (1 if size == TAKEN else 0)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_skippable_frame_is_limited_by_its_compressed_size(
    server: Served, is_chunked: bool
) -> None:
    """A frame that is to be skipped (RFC 8878, 3.1.2), however long, gives nothing out."""
    size = TAKEN + 200_000
    sent = b"\x50\x2a\x4d\x18" + size.to_bytes(4, "little") + bytes(size)
    answer = server.post(iter([sent]) if is_chunked else sent, Content_Encoding="zstd")
    assert answer.status == 413


def test_block_announcing_too_many_bytes_is_refused_without_decompression(
    server: Served,
) -> None:
    """4 GB, in a body of a few bytes."""
    answer = server.post(b"\xff\xff\xff\xff\x0f" + b"\x00x", Content_Encoding="snappy")
    assert answer.status == 413
    assert server.intake.most_in_flight <= TAKEN


def test_chunks_that_hold_nothing_are_limited(server: Served) -> None:
    sent = framed(b"x") + b"\xfe\x00\x00\x00" * 150_000
    answer = server.post(sent, Content_Encoding="x-snappy-framed")
    assert answer.status == 400
    assert "chunks" in answer.message
