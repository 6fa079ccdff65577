"""Starting and stopping: what is under way is answered, what is not is told to go elsewhere."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cirron_otel.collector.receiver.http.server import HttpReceiver
from cirron_otel.errors import TargetError

from .fake_intake import FakeIntake
from .http_serving import (
    read_all,
    serving,
    statuses,
    until,
)

HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\n"
OK = HEAD + b"Content-Length: 0\r\n\r\n"


def test_stop_answers_requests_in_progress() -> None:
    """A request that waits for the intake, one whose body still comes, and idle connections."""
    with serving() as server:
        release = server.hold()
        waiting, idle, coming = server.socket(), server.socket(), server.socket()
        waiting.sendall(HEAD + b"Content-Length: 1\r\n\r\na")
        until(lambda: server.intake.waiting == 1)
        coming.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + b"b" * 10)
        until(lambda: server.intake.in_flight == 11)

        stopping = server.begin(server.receiver.stop(60))
        assert read_all(idle) == b""
        with pytest.raises(OSError, match="refused"):
            server.socket()
        assert not stopping.done()
        coming.sendall(b"b" * 99_990)
        until(lambda: server.intake.waiting == 2)
        release()

        for connection in (waiting, coming):
            answer = read_all(connection)
            assert statuses(answer) == [200]
            assert b"Connection: close" in answer
            connection.close()
        stopping.result(60)
        idle.close()
        assert sorted(server.intake.bodies) == [b"a", b"b" * 100_000]


def test_stop_cuts_off_requests_that_exceed_the_grace_period(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as server:
        stuck = server.socket()
        stuck.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + b"b" * 10)
        until(lambda: server.intake.in_flight)
        server.do(server.receiver.stop(0.05))
        assert 200 not in statuses(read_all(stuck))
        stuck.close()
        assert not server.intake.requests
        assert not server.intake.in_flight
    assert "1 HTTP requests were cut off" in caplog.text


def test_an_address_that_is_taken() -> None:
    with serving() as server:
        second = HttpReceiver(FakeIntake(), host="127.0.0.1", port=server.port)
        with pytest.raises(TargetError, match=rf"cannot listen on 127.0.0.1:{server.port}: "):
            server.do(second.start())
        server.do(second.stop(1))


def test_invalid_host_is_refused() -> None:
    receiver = HttpReceiver(FakeIntake(), host="256.0.0.1", port=0)
    with pytest.raises(TargetError, match=r"cannot listen on 256\.0\.0\.1:0: "):
        asyncio.run(receiver.start())


def test_receiver_listens_on_loopback_by_default() -> None:
    async def address() -> str:
        receiver = HttpReceiver(FakeIntake(), port=0)
        host, _ = await receiver.start()
        await receiver.stop(1)
        return host

    assert asyncio.run(address()) in ("127.0.0.1", "::1")


@pytest.mark.parametrize("host", ["localhost", ""])
def test_port_0_is_one_port(host: str) -> None:
    """Not one for each address that the host has: only one could be told."""

    async def ports() -> set[int]:
        receiver = HttpReceiver(FakeIntake(), host=host, port=0)
        _, port = await receiver.start()
        assert receiver._listener is not None
        found = receiver._listener.ports
        await receiver.stop(1)
        return found - {port}

    assert asyncio.run(ports()) == set()


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")

    async def ask() -> bytes:
        receiver = HttpReceiver(FakeIntake(), host="::1", port=0)
        try:
            host, port = await receiver.start()
        except TargetError:
            pytest.skip("no IPv6 on loopback")
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = await reader.read()
        writer.close()
        await receiver.stop(1)
        return answer

    assert statuses(asyncio.run(ask())) == [200]
