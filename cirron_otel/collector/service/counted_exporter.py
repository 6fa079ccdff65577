"""A consumer that counts the requests of one transport."""

from __future__ import annotations

import time

from ..receiver.consumer import Consumer, ConsumeResult, Reason, ReceivedRequest, RefusalError
from . import metrics as m
from .metrics import Registry
from .readiness import Readiness


class CountingConsumer:
    """Passes requests to another consumer, and counts them."""

    def __init__(
        self, inner: Consumer, registry: Registry, transport: str, readiness: Readiness
    ) -> None:
        self._inner, self._registry, self._transport = inner, registry, transport
        self._readiness = readiness

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the inner consumer accepts, bytes."""
        return self._inner.max_body_bytes

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes for a body; False if there is no room."""
        return self._inner.reserve(size)

    def release(self, size: int) -> None:
        """Release `size` reserved bytes."""
        self._inner.release(size)

    async def consume(self, request: ReceivedRequest) -> ConsumeResult:
        """Consume and count a request. Raises RefusalError as the inner consumer does."""
        labels = (self._transport, request.signal.value)
        begun = time.monotonic()
        try:
            answer = await self._inner.consume(request)
        except RefusalError as error:
            if error.reason is Reason.UNAVAILABLE:
                self._readiness.note(is_kept=False)
            raise
        self._readiness.note(is_kept=True)
        self._registry.add(m.RECEIVED_REQUESTS, 1, *labels)
        if answer.rejected:
            self._registry.add(m.REJECTED_RECORDS, answer.rejected, *labels)
        self._registry.add(m.RECEIVED_BYTES, len(request.body), *labels)
        self._registry.observe(m.REQUEST_SECONDS, time.monotonic() - begun, *labels)
        return answer
