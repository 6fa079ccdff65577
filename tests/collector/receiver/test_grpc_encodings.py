"""Encodings of gRPC messages that grpcio's own client cannot send, and connections one by one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import cramjam
import pytest
import zstandard

from cirron_otel.collector.receiver.consumer import Refused
from cirron_otel.collector.receiver.grpc import front
from cirron_otel.collector.receiver.grpc.server import GrpcLimits
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
from tests.kit.servers.servers import traces

from .fake_intake import FakeIntake
from .grpc_clients import (
    TRACES,
    Server,
    against_server,
    until,
)

BODY = traces(300)
SETTINGS = frame(0x4, 0, 0, b"")
COMMON = b"".join(
    [
        indexed(3),  # :method POST
        indexed(6),  # :scheme http
        literal(":path", TRACES, 0),
        literal(":authority", "a", 0),
        literal("te", "trailers", 0),
        literal("content-type", "application/grpc", 0),
    ]
)
_WAIT_S = 30.0


def message(body: bytes, *, is_compressed: bool = True) -> bytes:
    return bytes([is_compressed]) + len(body).to_bytes(4, "big") + body


def call(stream: int, encoding: bytes, content: bytes) -> bytes:
    return headers_frames(stream, COMMON + encoding) + data_frame(stream, content, is_last=True)


def snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(body))


async def answer(
    server: Server, *pieces: bytes, is_done: Callable[[], bool] = lambda: True
) -> bytes:
    """What comes over one connection until the status of its first call; open until `is_done`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    found = b""
    async with asyncio.timeout(_WAIT_S):
        for piece in (PREFACE + SETTINGS, *pieces):
            writer.write(piece)
            await writer.drain()
        while status_in(found) is None:
            more = await reader.read(65536)
            assert more, "the connection was closed"
            found += more
        await until(is_done)
    writer.close()
    return found


def status_in(found: bytes) -> int | None:
    match = re.search(rb"grpc-status[\x01\x02](\d{1,2})", found)
    return None if match is None else int(match[1])


@pytest.mark.parametrize(
    ("encoding", "compress"), [("zstd", zstandard.compress), ("snappy", snappy)]
)
@pytest.mark.parametrize("is_huffman", [False, True])
def test_encodings_that_grpc_itself_does_not_know(
    encoding: str, compress: Callable[[bytes], bytes], is_huffman: bool
) -> None:
    """Also by a reference to the table of headers, and a message that is not compressed."""
    name = literal("grpc-encoding", encoding)
    if is_huffman:
        value = bytes([len(encoding)]) + encoding.encode()
        name = b"\x40\x8a" + HUFFMAN["grpc-encoding"] + value
    again = indexed(62)  # the field that was added last

    async def test(server: Server, intake: FakeIntake) -> None:
        found = await answer(
            server,
            call(1, name, message(compress(BODY))),
            call(3, again, message(compress(BODY))),
            call(5, again, message(BODY, is_compressed=False)),
            call(7, literal_value(62, "gzip"), message(BODY, is_compressed=False)),
            is_done=lambda: len(intake.requests) == 4,
        )
        assert status_in(found) == 0

    assert against_server(test).bodies == [BODY] * 4


@pytest.mark.parametrize(
    "header",
    [
        literal("grpc-encoding", "lz9"),
        literal("grpc-encoding", ""),
        literal("grpc-encoding", "gzip") * 2,
        literal("grpc-encoding", "gzip") + literal("grpc_encoding", "zstd"),
    ],
    ids=["unknown", "empty", "twice", "by both names"],
)
def test_an_encoding_that_is_not_taken(header: bytes) -> None:
    """UNIMPLEMENTED, with the encodings that are (grpc/doc/compression.md)."""
    seen: list[Refused] = []

    async def test(server: Server, intake: FakeIntake) -> None:
        found = await answer(server, call(1, header, message(BODY)))
        assert status_in(found) == 12
        assert b"grpc-accept-encoding" in found
        assert b"gzip" in found

    assert against_server(test, refused=seen.append).requests == []
    assert [(each.signal, each.reason, each.status) for each in seen] == [
        ("traces", "encoding", "UNIMPLEMENTED")
    ]


def test_malformed_messages_do_not_use_up_the_window_of_their_connection() -> None:
    """RFC 9113, 5.2: data that the server ignores counts, too."""
    first, rest = data_frame(1, b"\5" * 16_384), data_frame(1, b"\5" * 9_000, is_last=True)
    size = 25_384

    async def test(server: Server, _intake: FakeIntake) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(PREFACE + SETTINGS)
        window = 65_535
        async with asyncio.timeout(_WAIT_S):
            for stream in range(1, 81, 2):
                content = b"".join(on(stream, each) for each in (first, rest))
                writer.write(headers_frames(stream, COMMON) + content)
                window -= size
                is_answered = False
                while not is_answered or window < size:
                    kind, flags, number, payload = await next_frame(reader)
                    is_answered |= kind == 0x1 and number == stream
                    if kind == 0x8 and number == 0:
                        window += int.from_bytes(payload, "big")
                    elif kind in {0x4, 0x6} and not flags:  # SETTINGS, PING
                        writer.write(frame(kind, 1, 0, payload if kind == 0x6 else b""))
        writer.close()

    seen: list[Refused] = []
    assert against_server(test, refused=seen.append).requests == []
    assert {(each.reason, each.status) for each in seen} == {("malformed", "INTERNAL")}
    assert len(seen) == 40


def on(stream: int, sent: bytes) -> bytes:
    """A frame on another stream."""
    return sent[:5] + stream.to_bytes(4, "big") + sent[9:]


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    """The type, flags, stream and payload of the next frame of a server."""
    head = await reader.readexactly(9)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3], head[4], int.from_bytes(head[5:], "big"), payload


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is closed, unless another has sent nothing for a while."""
    seen: list[Refused] = []

    async def test(server: Server, _: FakeIntake) -> None:
        good = call(1, b"", message(b"", is_compressed=False))
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        await until(lambda: len(server.receiver.connections) == 3)
        reader, _writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await closed(reader)
        assert [(each.signal, each.reason) for each in seen] == [("-", "connections")]
        monkeypatch.setattr(front, "_UNPROVEN_S", 0.0)
        assert status_in(await answer(server, good)) == 0
        assert await closed(idle[0][0])
        for _reader, writer in idle:
            writer.close()
        await until(lambda: not server.receiver.connections)

    against_server(test, limits=GrpcLimits(connections=3), refused=seen.append)


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes a connection: all that comes before is its SETTINGS."""
    try:
        async with asyncio.timeout(_WAIT_S):
            while await reader.read(1000):
                pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_connections_that_are_not_grpc_are_closed() -> None:
    async def test(server: Server, _: FakeIntake) -> None:
        large = PREFACE + SETTINGS + frame(0x1, 0x4, 1, bytes(20_000))
        for sent in (large, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 10):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            assert await closed(reader)
            writer.close()
        await until(lambda: not server.receiver.connections)
        await server.send(b"")

    against_server(test)
