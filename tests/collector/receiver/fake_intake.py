"""An Exporter that keeps requests in memory and refuses when told to, for the tests of servers."""

from __future__ import annotations

import asyncio
import json

from cirron_otel.collector.receiver.consumer import ConsumeResult, ReceivedRequest, ReceivedSignal


class FakeIntake:
    """Keeps every request in `requests`; its attributes may be changed while a server runs."""

    def __init__(self, *, max_body_bytes: int = 1 << 20, room: int = 8 << 20) -> None:
        """`room` is how many bytes may be in flight at once."""
        self.requests: list[ReceivedRequest] = []
        self.refusal: Exception | None = None
        """Raised instead of keeping a request."""
        self.answer = ConsumeResult()
        self.hold: asyncio.Event | None = None
        """Waited for before a request is kept."""
        self.waiting = 0
        """How many requests wait for `hold`."""
        self.room = room
        self.in_flight = 0
        self.most_in_flight = 0
        self._max_body_bytes = max_body_bytes

    async def consume(self, request: ReceivedRequest) -> ConsumeResult:
        if self.hold is not None:
            self.waiting += 1
            try:
                await self.hold.wait()
            finally:
                self.waiting -= 1
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        if request.signal is not ReceivedSignal.CIRRON:
            return self.answer
        return ConsumeResult(message=self.answer.message, batch_id=_batch_id(request.body))

    @property
    def max_body_bytes(self) -> int:
        return self._max_body_bytes

    def reserve(self, size: int) -> bool:
        assert size >= 0
        if self.in_flight + size > self.room:
            return False
        self.in_flight += size
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return True

    def release(self, size: int) -> None:
        assert 0 <= size <= self.in_flight, "released more than was reserved"
        self.in_flight -= size

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]


def _batch_id(body: bytes) -> str:
    """The id of a batch, as the real intake finds it."""
    return str(json.loads(body).get("batch_id", ""))
