"""TLS handshakes: those that fail are reported, and few are under way at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.collector.event_loop import new_event_loop
from cirron_otel.receiver import listening
from cirron_otel.receiver.grpc_server import GrpcReceiver
from cirron_otel.receiver.grpc_tls import GrpcTls
from cirron_otel.receiver.http_server import HttpReceiver
from cirron_otel.receiver.refusals import Refused
from cirron_otel.receiver.tls import server_context
from tests.exporter.servers import Certificates, make_certificates

from .fake_intake import FakeIntake
from .grpc_clients import until

MOST = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def receiver_of(kind: str, files: Certificates, refused: Callable[[Refused], None]) -> Any:
    pair = (files.folder / "server.pem", files.folder / "server.key")
    if kind == "grpc":
        return GrpcReceiver(FakeIntake(), port=0, tls=GrpcTls(*pair), refused=refused)
    tls = server_context(*pair)
    return HttpReceiver(FakeIntake(), host="127.0.0.1", port=0, tls=tls, refused=refused)


def against(
    kind: str,
    files: Certificates,
    loop: Callable[[], asyncio.AbstractEventLoop],
    test: Callable[[int], Awaitable[None]],
) -> list[Refused]:
    seen: list[Refused] = []

    async def run() -> None:
        receiver = receiver_of(kind, files, seen.append)
        _, port = await receiver.start()
        await test(port)
        await receiver.stop(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
    return seen


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


both = pytest.mark.parametrize("kind", ["grpc", "http"])
loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, new_event_loop])


@both
@loops
def test_a_handshake_that_fails_is_reported(kind: str, loop: Any, files: Certificates) -> None:
    async def test(port: int) -> None:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"no TLS\r\n\r\n")
        await asyncio.sleep(0.2)
        writer.close()

    seen = against(kind, files, loop, test)
    assert [(each.signal, each.reason) for each in seen] == [("-", "tls")] * 2
    assert all(each.message.removeprefix("a TLS handshake failed: ") for each in seen)


@both
@loops
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc")  # noqa: PTH112
def test_handshakes_that_do_not_end_make_way_for_others(
    kind: str, loop: Any, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_MOST_HANDSHAKES", MOST)

    async def test(port: int) -> None:
        before = open_files()
        stuck = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5 * MOST)]
        await until(lambda: open_files() - before <= len(stuck) + MOST)
        context = ssl.create_default_context(cafile=files.folder / "ca.pem")
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        for each in (writer, *(writer for _, writer in stuck)):
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()

    seen = against(kind, files, loop, test)
    late = [each for each in seen if "others waited" in each.message]
    assert len(late) >= 4 * MOST
    assert {(each.signal, each.reason) for each in seen} == {("-", "tls")}
