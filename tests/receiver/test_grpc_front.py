"""The relay in front of gRPC: clients that do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cirron_otel.collector.event_loop import new_event_loop
from cirron_otel.receiver import grpc_front
from cirron_otel.receiver.grpc_front import Front
from cirron_otel.receiver.refusals import ignore

from .http2_frames import PREFACE

_MUCH = 16 * 1024 * 1024
"""More than the buffers of the kernel take."""
_LITTLE = 4096


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, new_event_loop])
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
            async with asyncio.timeout(10):
                while not front.connections:
                    await asyncio.sleep(0.01)
                while front.connections:
                    await asyncio.sleep(0.01)
        front.close()
        server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
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
