"""Header blocks of HTTP/2: one header renamed, one added, everything else as it came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.collector.receiver.grpc.http2_headers import MALFORMED, EncodingRenamer, renamed
from cirron_otel.errors import InputError
from tests.kit.servers.http2_frames import (
    HUFFMAN,
    PREFACE,
    data_frame,
    frame,
    headers_frames,
    indexed,
    literal,
    literal_value,
)

ADDED = b"\x00\x0dgrpc-encoding\x04gzip"
OTHERS = [indexed(3), literal("te", "trailers"), literal("x-tenant", "grpc-encoding")]


def block(*fields: bytes) -> bytes:
    return b"".join(fields)


@pytest.mark.parametrize("kind", [0x40, 0x00, 0x10])
@pytest.mark.parametrize("before", range(len(OTHERS) + 1))
def test_the_header_is_renamed_wherever_it_is(kind: int, before: int) -> None:
    name = literal("grpc-encoding", "zstd", kind)
    told = literal("grpc_encoding", "zstd", kind)
    assert renamed(block(*OTHERS[:before], name, *OTHERS[before:])) == block(
        *OTHERS[:before], told, *OTHERS[before:]
    )


def test_a_name_in_huffman_code() -> None:
    old, new = (bytes([0x40, 0x80 | 10]) + HUFFMAN[name] + b"\x04zstd" for name in HUFFMAN)
    assert renamed(block(*OTHERS, old, *OTHERS)) == block(*OTHERS, new, *OTHERS)


@pytest.mark.parametrize(
    "same",
    [
        b"",
        literal("x", "grpc-encoding"),
        literal("grpc-encodings", "a"),
        literal("grpc-accept-encoding", "zstd"),
        b"\x3f\xe1\x1f" + literal_value(62, "zstd"),  # a size of the table; a name in the table
        b"\x00\x0dgrpc-encoding\xff\xff\xff\xff\xff\xff",
        b"\x00\x0dgrpc-encodin",
        literal("grpc-encoding", "zstd")[:-10] + b"\x40",
    ],
)
def test_unrelated_or_malformed_header_blocks_keep_their_length(same: bytes) -> None:
    assert len(renamed(same)) == len(same)
    if b"\x0dgrpc-encoding" not in same:
        assert renamed(same) == same


REQUEST = block(indexed(3), literal("grpc-encoding", "zstd"), literal("te", "trailers"))
NAMED = block(indexed(3), literal("grpc_encoding", "zstd"), literal("te", "trailers"))


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """What a client sends over a connection, and what is to be passed on."""
    sent, passed = bytearray(PREFACE), bytearray(PREFACE)
    for stream in range(1, 2 * draw(st.integers(0, 4)) + 1, 2):
        cuts = draw(st.lists(st.integers(0, len(REQUEST)), max_size=3))
        padding = draw(st.none() | st.integers(0, 200))
        priority = draw(st.booleans())
        sent += headers_frames(stream, REQUEST, cuts, padding, is_prior=priority)
        passed += headers_frames(stream, NAMED, cuts, padding, is_prior=priority, added=ADDED)
        # Content may look like a header; frames of other kinds pass, too.
        for content in draw(
            st.lists(st.sampled_from([b"", b"\0" + REQUEST, bytes(20_000)]), max_size=2)
        ):
            more = data_frame(stream, content) + frame(0x8, 0, 0, b"\0\0\1\0")
            sent += more
            passed += more
    return bytes(sent), bytes(passed)


@given(streams(), st.lists(st.integers(0, 100_000), max_size=8))
def test_frames_cut_anywhere(stream: tuple[bytes, bytes], at: list[int]) -> None:
    sent, passed = stream
    cuts = sorted({each % (len(sent) + 1) for each in at})
    renamer = EncodingRenamer()
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert b"".join(map(renamer.feed, pieces)) == passed
    assert renamer.has_headers == (len(sent) > len(PREFACE))


def test_a_byte_at_a_time() -> None:
    content = data_frame(1, b"\1" + REQUEST)
    sent = PREFACE + headers_frames(1, REQUEST, [5]) + content
    renamer = EncodingRenamer()
    passed = b"".join(renamer.feed(sent[at : at + 1]) for at in range(len(sent)))
    assert passed == PREFACE + headers_frames(1, NAMED, [5], added=ADDED) + content


@pytest.mark.parametrize(
    "sent",
    [
        frame(0x1, 0x4, 1, bytes(16_001)),
        frame(0x1, 0, 1, bytes(9000)) + frame(0x9, 0, 1, bytes(9000)),
        frame(0x1, 0, 1, b"\x83") + data_frame(1, b""),
        frame(0x1, 0x4 | 0x8, 1, b"\xff\x83"),
        frame(0x1, 0x4 | 0x20, 1, b"\0\0"),
    ],
    ids=["large", "large in pieces", "interrupted", "padding", "priority"],
)
def test_invalid_header_frames_close_the_connection(sent: bytes) -> None:
    with pytest.raises(InputError):
        EncodingRenamer().feed(PREFACE + sent)


def replaced(size: int) -> bytes:
    body = MALFORMED.ljust(size - 5, b"\0")
    return b"\0" + len(body).to_bytes(4, "big") + body


@given(
    size=st.sampled_from([1, 5, 20, 21, 22, 300, 16_374]),
    first=st.integers(2, 255),
    padding=st.none() | st.integers(0, 9),
    is_last=st.booleans(),
    more=st.integers(0, 3),
    at=st.lists(st.integers(0, 100_000), max_size=8),
)
def test_malformed_message_is_replaced_by_one_that_is_not_shorter(
    size: int, first: int, padding: int | None, is_last: bool, more: int, at: list[int]
) -> None:
    """The messages of other streams pass unchanged, and so do the other frames of its stream."""
    start, empty = headers_frames(1, REQUEST), data_frame(1, b"")
    content = bytes([first]) + bytes(size - 1)
    if padding is None:
        bad = data_frame(1, content, is_last=is_last)
    else:
        bad = frame(0x0, 0x8 | is_last, 1, bytes([padding]) + content + bytes(padding))
    rest = [] if is_last else [data_frame(1, b"\5" * 9, is_last=n == 2) for n in range(more)]
    others = [headers_frames(3, REQUEST), data_frame(3, b"\0\0\0\0\0"), frame(0x8, 0, 1, bytes(4))]
    sent = PREFACE + start + empty + bad + b"".join((*rest, *others))
    passed = b"".join(
        (
            PREFACE,
            headers_frames(1, NAMED, added=ADDED),
            empty,
            data_frame(1, replaced(len(bad) - 9), is_last=True),
            *rest,
            headers_frames(3, NAMED, added=ADDED),
            *others[1:],
        )
    )
    cuts = sorted({each % (len(sent) + 1) for each in at})
    renamer = EncodingRenamer()
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert b"".join(map(renamer.feed, pieces)) == passed


def test_streams_without_a_message_are_bounded() -> None:
    renamer = EncodingRenamer()
    renamer.feed(PREFACE)
    for stream in range(1, 20_001, 2):
        renamer.feed(headers_frames(stream, REQUEST))
    assert len(renamer._begun) == 4096
    for stream in range(1, 20_001, 2):
        renamer.feed(frame(0x3, 0, stream, bytes(4)))
    assert not renamer._begun
