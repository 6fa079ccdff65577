"""TLS handshakes: failures are reported, few are under way at a time, and all of them end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.collector.receiver import listening
from cirron_otel.collector.receiver.consumer import Refused
from cirron_otel.collector.receiver.grpc import front
from cirron_otel.collector.receiver.grpc.certificates import GrpcTls
from cirron_otel.collector.receiver.grpc.server import GrpcReceiver
from cirron_otel.collector.receiver.http.bodies import HttpLimits
from cirron_otel.collector.receiver.http.server import HttpReceiver
from cirron_otel.collector.receiver.tls import server_context
from cirron_otel.collector.service.event_loop import new_event_loop
from tests.kit.servers.servers import Certificates, make_certificates

from .fake_intake import FakeIntake
from .grpc_clients import until

MOST = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def receiver_of(
    kind: str, files: Certificates, refused: Callable[[Refused], None], handshake_s: float
) -> Any:
    pair = (files.folder / "server.pem", files.folder / "server.key")
    if kind == "grpc":
        return GrpcReceiver(FakeIntake(), port=0, tls=GrpcTls(*pair), refused=refused)
    tls, limits = server_context(*pair), HttpLimits(grace_s=handshake_s)
    return HttpReceiver(
        FakeIntake(), host="127.0.0.1", port=0, tls=tls, limits=limits, refused=refused
    )


Test = Callable[[int, list[Refused]], Awaitable[Callable[[], Awaitable[None]] | None]]
"""(port, what was refused so far) → a check that is made once the receiver has ended."""


def against(
    kind: str,
    files: Certificates,
    loop: Callable[[], asyncio.AbstractEventLoop],
    test: Test,
    handshake_s: float = 600.0,
) -> list[Refused]:
    seen: list[Refused] = []

    async def run() -> None:
        receiver = receiver_of(kind, files, seen.append, handshake_s)
        _, port = await receiver.start()
        check = await test(port, seen)
        await receiver.stop(0)
        if check is not None:
            await check()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "_HANDSHAKE_S", handshake_s)
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run())
    return seen


async def shake_hands(port: int, files: Certificates, **how: Any) -> asyncio.StreamWriter:
    """Connect as a client that trusts the server."""
    context = ssl.create_default_context(cafile=files.folder / "ca.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    where = how or {"host": "127.0.0.1", "port": port}
    return (await asyncio.open_connection(**where, ssl=context, server_hostname="localhost"))[1]


async def end(*writers: asyncio.StreamWriter) -> None:
    for each in writers:
        each.close()
        with contextlib.suppress(OSError):
            await each.wait_closed()


def open_files() -> int:
    """How many file descriptors this process has: Linux and macOS list them."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


both = pytest.mark.parametrize("kind", ["grpc", "http"])
loops = pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"]
)


@both
@loops
def test_a_handshake_that_fails_is_reported(kind: str, loop: Any, files: Certificates) -> None:
    async def test(port: int, seen: list[Refused]) -> None:
        before = open_files()
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"no TLS\r\n\r\n")
        await until(lambda: len(seen) == 2)
        await end(writer)
        await until(lambda: open_files() == before)

    seen = against(kind, files, loop, test)
    assert [(each.signal, each.reason) for each in seen] == [("-", "tls")] * 2
    assert all(each.message.removeprefix("a TLS handshake failed: ") for each in seen)


@both
@loops
def test_handshakes_that_do_not_end_make_way_for_others(
    kind: str, loop: Any, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_MOST_HANDSHAKES", MOST)

    async def test(port: int, seen: list[Refused]) -> None:
        before = open_files()
        stuck = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5 * MOST)]
        await until(lambda: open_files() - before <= len(stuck) + MOST)
        await end(await shake_hands(port, files), *(writer for _, writer in stuck))

    seen = against(kind, files, loop, test)
    late = [each for each in seen if "others waited" in each.message]
    assert len(late) >= 4 * MOST
    assert {(each.signal, each.reason) for each in seen} == {("-", "tls")}


@both
@loops
def test_a_handshake_that_takes_too_long_ends(kind: str, loop: Any, files: Certificates) -> None:
    async def test(port: int, seen: list[Refused]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: seen)
        assert await reader.read() == b""
        await end(writer)

    seen = against(kind, files, loop, test, handshake_s=0.1)
    assert [(each.signal, each.reason) for each in seen] == [("-", "tls")]


@both
@loops
def test_no_connection_is_left_at_the_end(kind: str, loop: Any, files: Certificates) -> None:
    """Neither one in its handshake, nor a socket that accepts another one."""

    async def test(port: int, _: list[Refused]) -> Callable[[], Awaitable[None]]:
        before = open_files()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: open_files() == before + 2)

        async def check() -> None:
            async with asyncio.timeout(120):
                assert await reader.read() == b""
            await end(writer)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

        return check

    assert against(kind, files, loop, test) == []


@both
@loops
def test_connections_are_accepted_again_once_there_are_descriptors(
    kind: str, loop: Any, files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(port: int, _: list[Refused]) -> None:
        client = socket.socket()
        client.setblocking(False)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)  # the lowest number that is free: a limit of it allows no other
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            await until(lambda: "connections cannot be accepted" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await end(await shake_hands(port, files, sock=client))

    assert against(kind, files, loop, test) == []
