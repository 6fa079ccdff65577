"""Content codings: what is undone, what is damaged, and that the limit counts what comes out."""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Iterator
from typing import Any

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


BODY = traces(300)
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
    ],
)
def test_damaged_codings(server: Served, coding: str, sent: bytes) -> None:
    answer = server.post(sent, Content_Encoding=coding)
    assert answer.status == 400
    assert coding in answer.message
    assert not server.intake.requests


@pytest.mark.parametrize("size", [TAKEN, TAKEN + 1])
@pytest.mark.parametrize(
    ("coding", "encode"),
    [("", bytes), ("gzip", packed), ("zstd", zstd_stream), ("deflate", zlib.compress)],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_limit_counts_what_is_decompressed(
    server: Served, size: int, coding: str, encode: Any, is_chunked: bool
) -> None:
    sent = encode(bytes(size))
    answer = server.post(iter([sent]) if is_chunked else sent, Content_Encoding=coding)
    assert answer.status == (200 if size == TAKEN else 413)
    assert len(server.intake.requests) == (1 if size == TAKEN else 0)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_what_holds_nothing_is_limited_as_it_comes(server: Served, is_chunked: bool) -> None:
    """A frame that is to be skipped (RFC 8878, 3.1.2), however long, gives nothing out."""
    size = TAKEN + 200_000
    sent = b"\x50\x2a\x4d\x18" + size.to_bytes(4, "little") + bytes(size)
    answer = server.post(iter([sent]) if is_chunked else sent, Content_Encoding="zstd")
    assert answer.status == 413
