"""A program: a gRPC receiver by itself, whose memory and answers a test watches."""

from __future__ import annotations

import asyncio
import sys

from cirron_otel.collector.receiver.consumer import (
    ConsumeResult,
    Reason,
    ReceivedRequest,
    RefusalError,
)
from cirron_otel.collector.receiver.grpc.server import GrpcReceiver
from cirron_otel.collector.receiver.measure import MalformedError, TooManyElementsError, measure
from cirron_otel.collector.service.event_loop import new_event_loop

ROOM = 64 * 1024 * 1024


class Measured:
    """Takes what can be measured, and keeps nothing."""

    max_body_bytes = 4 * 1024 * 1024

    def __init__(self) -> None:
        self._room = ROOM

    async def consume(self, request: ReceivedRequest) -> ConsumeResult:
        try:
            measure(request.body, request.signal)
        except MalformedError as error:
            raise RefusalError(Reason.INVALID, str(error)) from None
        except TooManyElementsError as error:
            raise RefusalError(Reason.TOO_LARGE, str(error)) from None
        await asyncio.sleep(0.01)  # what a write may take: bodies are in flight meanwhile
        return ConsumeResult()

    def reserve(self, size: int) -> bool:
        if size > self._room:
            return False
        self._room -= size
        return True

    def release(self, size: int) -> None:
        self._room += size


async def main() -> None:
    receiver = GrpcReceiver(Measured(), port=0)
    _, port = await receiver.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await receiver.stop(0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
