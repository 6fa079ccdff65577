"""OTLP/gRPC over TLS and mutual TLS, with certificates made here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from cirron_otel.collector.receiver.grpc.certificates import GrpcTls
from cirron_otel.collector.receiver.grpc.server import GrpcReceiver
from cirron_otel.errors import UsageError
from tests.kit.servers.servers import Certificates, make_certificates, traces

from .fake_intake import FakeIntake
from .grpc_clients import TRACES, Server, serving


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command, which makes the certificates, is not installed")
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls_of(files: Certificates, *, mutual: bool) -> GrpcTls:
    ca = files.folder / "ca.pem" if mutual else None
    return GrpcTls(files.folder / "server.pem", files.folder / "server.key", ca)


def against_server(tls: GrpcTls, test: Callable[[Server], Awaitable[None]]) -> FakeIntake:
    intake = FakeIntake()

    async def run() -> None:
        async with serving(intake, tls=tls) as server:
            await test(server)

    asyncio.run(run())
    return intake


async def send(server: Server, *pem: bytes | None) -> None:
    """One call with these credentials: CA, key and certificate."""
    credentials = grpc.ssl_channel_credentials(*pem)
    async with grpc.aio.secure_channel(server.address, credentials) as channel:
        await channel.unary_unary(TRACES)(traces(3))


async def fails_to_send(server: Server, *pem: bytes | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(server, *pem)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_tls(files: Certificates) -> None:
    async def test(server: Server) -> None:
        await send(server, files.read("ca.pem"))
        await fails_to_send(server)  # it does not know the CA
        with pytest.raises(grpc.aio.AioRpcError):
            await server.send(traces(3))  # no TLS at all

    assert against_server(tls_of(files, mutual=False), test).bodies == [traces(3)]


def test_mutual_tls(files: Certificates, tmp_path: Path) -> None:
    others = make_certificates(tmp_path)

    async def test(server: Server) -> None:
        await send(server, *map(files.read, ("ca.pem", "client.key", "client.pem")))
        await fails_to_send(server, files.read("ca.pem"))
        of_another_ca = (others.read("client.key"), others.read("client.pem"))
        await fails_to_send(server, files.read("ca.pem"), *of_another_ca)

    assert against_server(tls_of(files, mutual=True), test).bodies == [traces(3)]


@pytest.mark.parametrize(
    ("certificate", "key", "ca"),
    [
        ("missing.pem", "server.key", None),
        ("server.pem", "missing.key", None),
        ("server.pem", "client.key", None),
        ("server.key", "server.pem", None),
        ("server.pem", "server.key", "missing.pem"),
        ("server.pem", "server.key", "names"),
    ],
)
def test_files_that_are_of_no_use(
    files: Certificates, certificate: str, key: str, ca: str | None
) -> None:
    tls = GrpcTls(
        files.folder / certificate, files.folder / key, None if ca is None else files.folder / ca
    )

    async def run() -> None:
        with pytest.raises(UsageError, match=r"\.pem|\.key|names"):
            await GrpcReceiver(FakeIntake(), port=0, tls=tls).start()

    asyncio.run(run())
