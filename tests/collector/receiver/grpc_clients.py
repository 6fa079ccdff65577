"""A GrpcReceiver on loopback, and clients of gRPC that send it any bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from cirron_otel.collector.receiver.consumer import Consumer
from cirron_otel.collector.receiver.grpc.server import GrpcReceiver

from .fake_intake import FakeIntake

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Above 8 KiB, a client rejects metadata at random by default. Here it always does.
    ("grpc.absolute_max_metadata_size", 8192),
)


@dataclass
class Server:
    """Where it listens."""

    port: int
    receiver: GrpcReceiver

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def channel(self, **options: Any) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address, options=OPTIONS, **options)

    async def send(self, body: bytes, method: str = TRACES, **options: Any) -> bytes:
        """One call on a connection of its own; its answer's bytes."""
        async with self.channel() as channel:
            return bytes(await channel.unary_unary(method)(body, **options))

    async def refusal(self, body: bytes, method: str = TRACES, **options: Any) -> Refusal:
        try:
            await self.send(body, method, **options)
        except grpc.aio.AioRpcError as error:
            return Refusal.of(error)
        raise AssertionError("the request was taken")


@dataclass(frozen=True)
class Refusal:
    """How a call ended: its code, its message, and when to send again (s) if it says so."""

    code: str
    message: str
    retry_after_s: float | None

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> Refusal:
        after = None
        for key, value in error.trailing_metadata():
            if key == "grpc-status-details-bin":
                status = Status.FromString(value)
                assert (status.code, status.message) == (error.code().value[0], error.details())
                for detail in status.details:
                    info = RetryInfo()
                    assert detail.Unpack(info)
                    after = info.retry_delay.ToTimedelta().total_seconds()
        return cls(error.code().name, error.details() or "", after)


@asynccontextmanager
async def serving(exporter: Consumer, **options: Any) -> AsyncIterator[Server]:
    receiver = GrpcReceiver(exporter, port=0, **options)
    host, port = await receiver.start()
    assert host == "127.0.0.1"
    try:
        yield Server(port, receiver)
    finally:
        await receiver.stop(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what is bound to come; the test's own time limit is what ends it otherwise."""
    while not condition():
        await asyncio.sleep(0.005)


Test = Callable[[Server, FakeIntake], Awaitable[None]]


def against_server(test: Test, intake: FakeIntake | None = None, **options: Any) -> FakeIntake:
    """Run a test with a receiver in the same loop; nothing is in flight when it has ended."""
    intake = intake or FakeIntake()

    async def run() -> None:
        async with serving(intake, **options) as server:
            await test(server, intake)
            await until(lambda: intake.in_flight == 0)

    asyncio.run(run())
    return intake
