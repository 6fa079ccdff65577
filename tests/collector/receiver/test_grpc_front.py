"""The relay in front of gRPC: clients that do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.consumer import ignore
from cirron_otel.collector.receiver.grpc import front as grpc_front
from cirron_otel.collector.receiver.grpc.front import Front
from cirron_otel.collector.service.event_loop import new_event_loop
from tests.kit.servers.http2_frames import PREFACE

_MUCH = 16 * 1024 * 1024
"""More than the buffers of the kernel take."""
_LITTLE = 4096
loops = pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"]
)
_PIECE = 16 * 1024
"""Less than a transport buffers before it pauses."""


@loops
@pytest.mark.parametrize("ends", [False, True])
def test_a_client_that_does_not_read_keeps_no_connection(
    loop: Callable[[], asyncio.AbstractEventLoop],
    ends: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether gRPC ends the connection, as its keepalive does, or not."""
    monkeypatch.setattr(grpc_front, "_STALLED_S", 0.3)

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(_MUCH))
        if ends:
            await asyncio.sleep(0.1)
            writer.transport.abort()

    async def run() -> None:
        path = tmp_path / "socket"
        server = await asyncio.start_unix_server(answer, path)
        front = Front(path, 2, ignore)
        address = await front.start("127.0.0.1", 0, None)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LITTLE)
            client.connect(address)
            client.sendall(PREFACE)
            async with asyncio.timeout(120):
                while not front.connections:
                    await asyncio.sleep(0.01)
                while front.connections:
                    await asyncio.sleep(0.01)
        assert not front.connections
        front.close()
        server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@loops
@pytest.mark.parametrize("reads", [False, True])
def test_buffered_data_after_grpc_closes_is_sent_or_the_client_dropped(
    loop: Callable[[], asyncio.AbstractEventLoop],
    reads: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that reads gets the rest; one that does not keeps no connection.

    So little is left that the relay has not paused.
    """
    monkeypatch.setattr(grpc_front, "_STALLED_S", 300.0 if reads else 0.3)
    sent = 0

    async def run() -> None:
        path = tmp_path / "socket"
        front = Front(path, 2, ignore)

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            (relayed,) = front._clients
            assert relayed.transport is not None
            while not relayed.transport.get_write_buffer_size():
                writer.write(bytes(_PIECE))
                sent += _PIECE
                await asyncio.sleep(0.001)
            assert relayed._stalled is None
            writer.close()

        server = await asyncio.start_unix_server(answer, path)
        address = await front.start("127.0.0.1", 0, None)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LITTLE)
            client.connect(address)
            client.sendall(PREFACE)
            client.setblocking(False)
            async with asyncio.timeout(120):
                while not front.connections:
                    await asyncio.sleep(0.01)
                (relayed,) = front._clients
                while relayed.transport is None or not relayed.transport.is_closing():
                    await asyncio.sleep(0.01)
                received = 0
                while reads and (data := await running.sock_recv(client, 1 << 20)):
                    received += len(data)
                while front.connections:
                    await asyncio.sleep(0.01)
        assert not reads or received == sent > 0
        front.close()
        server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        running = runner.get_loop()
        runner.run(run())


def test_a_client_that_reads_late_gets_everything(tmp_path: Path) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(_MUCH))
        writer.close()

    async def run() -> None:
        path = tmp_path / "socket"
        server = await asyncio.start_unix_server(answer, path)
        front = Front(path, 2, ignore)
        reader, writer = await asyncio.open_connection(*await front.start("127.0.0.1", 0, None))
        writer.write(PREFACE)
        await asyncio.sleep(0.2)
        assert len(await reader.read()) == _MUCH
        writer.close()
        front.close()
        server.close()

    asyncio.run(run())
