"""OTLP/gRPC calls and connections: how they end, wait, and are refused; hostile clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from cirron_otel.collector.receiver.consumer import Reason, RefusalError
from cirron_otel.collector.receiver.grpc.server import GrpcLimits, GrpcReceiver
from cirron_otel.core.delivery.retry_policy import Backoff
from cirron_otel.core.targets.otlp.config import OtlpConfig
from cirron_otel.core.targets.otlp.pusher import Pusher
from cirron_otel.errors import TargetError
from tests.kit.servers.servers import traces

from .fake_intake import FakeIntake
from .grpc_clients import (
    TRACES,
    Refusal,
    Server,
    against_server,
    until,
)


@pytest.mark.parametrize("how", ["deadline", "cancel", "disconnect"])
def test_call_aborted_prior_to_its_answer_is_not_accepted(how: str) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        intake.hold = asyncio.Event()
        channel = server.channel()
        await channel.channel_ready()
        call = channel.unary_unary(TRACES)(traces(9), timeout=3 if how == "deadline" else 300)
        await until(lambda: intake.waiting == 1)
        assert intake.in_flight == len(traces(9))
        if how == "cancel":
            call.cancel()
        elif how == "disconnect":
            await channel.close()
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await call
        await until(lambda: intake.waiting == 0)
        await channel.close()
        intake.hold = None
        await server.send(traces(8))

    assert against_server(test).bodies == [traces(8)]


async def endless() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def nothing() -> AsyncIterator[bytes]:
    for body in ():
        yield body


def test_senders_that_send_nothing() -> None:
    """They are told so in the end; others, for four are read at a time, may wait as long."""
    limits = GrpcLimits(reading_bytes=1, read_timeout_s=0.5, quick_s=3600)

    async def test(server: Server, intake: FakeIntake) -> None:
        async with server.channel() as channel:
            slow = [channel.stream_unary(TRACES)(endless()) for _ in range(4)]
            other = channel.unary_unary(TRACES)(traces(3))
            for each in await asyncio.gather(*slow, return_exceptions=True):
                assert isinstance(each, grpc.aio.AioRpcError)
                assert Refusal.of(each).code == "UNAVAILABLE"
                assert "within 0.5 s" in Refusal.of(each).message
            (late,) = await asyncio.gather(other, return_exceptions=True)
            if isinstance(late, grpc.aio.AioRpcError):  # it had to wait as long
                assert Refusal.of(late).code == "UNAVAILABLE"
        await server.send(traces(4))

    assert against_server(test, limits=limits).bodies[-1] == traces(4)


def test_senders_that_send_nothing_give_way_to_those_that_wait() -> None:
    limits = GrpcLimits(reading_bytes=1, read_timeout_s=3600, quick_s=0.02)

    async def test(server: Server, intake: FakeIntake) -> None:
        async with server.channel() as channel:
            slow = [channel.stream_unary(TRACES)(endless()) for _ in range(9)]
            for _ in range(20):
                await channel.unary_unary(TRACES)(traces(3))
            ended = [each for each in slow if each.done()]
            assert len(ended) >= 6  # two may be late, and one more where none waits
            assert {await each.code() for each in ended} == {grpc.StatusCode.UNAVAILABLE}
            await server.send(traces(4))
            for each in slow:
                each.cancel()

    assert len(against_server(test, limits=limits).bodies) == 21


def test_many_senders_that_send_nothing_over_many_connections() -> None:
    """A new client is served all the same, long before their calls run out of time."""
    limits = GrpcLimits(reading_bytes=1, read_timeout_s=3600)
    options = (("grpc.use_local_subchannel_pool", 1),)

    async def test(server: Server, intake: FakeIntake) -> None:
        channels = [grpc.aio.insecure_channel(server.address, options) for _ in range(10)]
        slow = [channel.stream_unary(TRACES)(endless()) for channel in channels for _ in range(50)]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        await asyncio.sleep(0.2)
        await server.send(traces(3))
        assert len([each for each in slow if not each.done()]) > 300
        for channel in channels:
            await channel.close()

    assert against_server(test, limits=limits).bodies == [traces(3)]


def test_slow_read_is_not_aborted_while_no_call_waits() -> None:
    limits = GrpcLimits(reading_bytes=1, read_timeout_s=3600, quick_s=0.02, patience_s=0.05)

    async def slowly() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.5)
        yield traces(2)

    async def test(server: Server, intake: FakeIntake) -> None:
        async with server.channel() as channel:
            slow = [channel.stream_unary(TRACES)(slowly()) for _ in range(4)]
            await asyncio.gather(*slow)

    assert against_server(test, limits=limits).bodies == [traces(2)] * 4


def test_a_read_that_a_client_gave_up_makes_room_for_others() -> None:
    limits = GrpcLimits(reading_bytes=1, read_timeout_s=3600, quick_s=3600)

    async def test(server: Server, intake: FakeIntake) -> None:
        async with server.channel() as channel:
            slow = [channel.stream_unary(TRACES)(endless()) for _ in range(4)]
            other = channel.unary_unary(TRACES)(traces(3))
            await asyncio.sleep(0.2)
            for each in slow:
                each.cancel()
            await other

    assert against_server(test, limits=limits).bodies == [traces(3)]


def test_a_call_without_a_request() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        async with server.channel() as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.stream_unary(TRACES)(nothing())
        assert Refusal.of(caught.value).code == "INVALID_ARGUMENT"

    assert against_server(test).requests == []


def test_calls_beyond_a_connections_streams_wait_at_the_client() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        intake.hold = asyncio.Event()

        async def send(channel: grpc.aio.Channel) -> None:
            while True:
                try:
                    await channel.unary_unary(TRACES)(traces(1))
                except grpc.aio.AioRpcError as error:
                    # From a client that has yet to hear of the limit.
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                else:
                    return

        async with server.channel() as channel:
            calls = [asyncio.create_task(send(channel)) for _ in range(5)]
            await until(lambda: intake.waiting == 2)
            await asyncio.sleep(0.1)
            assert intake.waiting == 2
            intake.hold.set()
            await asyncio.gather(*calls)

    assert len(against_server(test, limits=GrpcLimits(streams=2)).requests) == 5


def test_an_old_connection_is_given_up_and_calls_on_it_are_answered() -> None:
    limits = GrpcLimits(connection_age_s=0.5, connection_grace_s=60)

    async def test(server: Server, intake: FakeIntake) -> None:
        intake.hold = asyncio.Event()
        async with server.channel() as channel:
            call = channel.unary_unary(TRACES)(traces(1))
            await until(lambda: intake.waiting == 1)
            while channel.get_state() is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            intake.hold.set()
            await call
            await channel.unary_unary(TRACES)(traces(2))

    assert len(against_server(test, limits=limits).requests) == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        bytes(range(256)) * 40,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 5000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9) + b"\x00\x40\x00\x01\x05\x00\x00\x00\x01",
    ],
)
def test_clients_that_speak_something_else(garbage: bytes) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(garbage)
            await writer.drain()
            if garbage.startswith(b"GET"):
                await reader.read()  # it is hung up on
            writer.close()
        await server.send(traces(1))

    assert against_server(test).bodies == [traces(1)]


def test_otlp_pusher_retries_requests_refused_as_busy() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        intake.refusal = RefusalError(Reason.BUSY, "full", 0.05)
        config = OtlpConfig(endpoint=server.address, timeout=20)
        pusher = Pusher(config, backoff=Backoff(0.01, 0.02))
        sent = asyncio.create_task(asyncio.to_thread(pusher.push, traces(7)))
        await until(lambda: intake.most_in_flight > 0)
        intake.refusal = None
        assert (await sent).accepted_spans == 7
        pusher.close()

    assert against_server(test).bodies == [traces(7)]


def test_stop_answers_calls_in_flight() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        intake.hold = asyncio.Event()
        async with server.channel() as channel:
            call = channel.unary_unary(TRACES)(traces(1))
            await until(lambda: intake.waiting == 1)
            stopping = asyncio.create_task(server.receiver.stop(60))
            await until(lambda: not can_connect(server.port))
            assert not stopping.done()
            intake.hold.set()
            await call
            await stopping
        await server.receiver.stop(0)

    assert against_server(test).bodies == [traces(1)]


def test_stop_aborts_calls_that_exceed_the_grace_period() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        intake.hold = asyncio.Event()
        async with server.channel() as channel:
            call = channel.unary_unary(TRACES)(traces(1))
            await until(lambda: intake.waiting == 1)
            await server.receiver.stop(0.05)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

    assert against_server(test).requests == []


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionError:
        return False
    return True


def test_an_address_that_is_taken() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        with pytest.raises(TargetError, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await GrpcReceiver(intake, port=server.port).start()

    against_server(test)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_of_another_host(host: str) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        with pytest.raises(TargetError, match=r"cannot listen on .* choose another"):
            await GrpcReceiver(intake, host=host, port=0).start()

    against_server(test)


def test_an_address_of_ip_version_6() -> None:
    if not socket.has_ipv6 or not can_bind("::1"):
        pytest.skip("this host has no ::1")

    async def test(server: Server, intake: FakeIntake) -> None:
        receiver = GrpcReceiver(intake, host="::1", port=0)
        _, port = await receiver.start()
        async with grpc.aio.insecure_channel(f"[::1]:{port}") as channel:
            await channel.unary_unary(TRACES)(traces(1))
        await receiver.stop(0)

    assert against_server(test).bodies == [traces(1)]


def can_bind(host: str) -> bool:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
