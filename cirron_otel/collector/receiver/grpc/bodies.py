"""Receive and decompress the messages of gRPC calls within memory limits.

The request's headers name the encoding of its messages (github.com/grpc/grpc, doc/compression.md).
gRPC does not report whether a message is compressed, but its first bytes reveal it. No OTLP request
in protobuf begins with the first bytes of compressed data: 0x1f and 0xff 0x06 would be tags with an
invalid wire type, and the other beginnings would be fields 15 and 5, which OTLP requests do not
have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import TracebackType
from typing import Any, Self

from ....errors import InputError
from ..consumer import Consumer, Reason, RefusalError
from ..inflating import finished, inflater, too_large
from ..snappy import STREAM
from .http2_headers import MALFORMED
from .turns import CallTurns

_STARTS = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "snappy": STREAM, "deflate": b"\x78"}
_IDENTITY = "identity"
ENCODINGS = (_IDENTITY, *_STARTS)
"""The supported encodings of messages."""
_FED = 64 * 1024
"""The number of compressed bytes passed to the decompressor at a time."""
_CANCELLED_WITHIN_S = 0.05
_LONGEST_SHOWN = 60
_YIELD_EVERY = 1024 * 1024
"""The number of decompressed bytes after which other calls get a turn."""


class Reservation:
    """The bytes that one call reserves for its body; they are released when the call ends.

    A call never reserves more than the size of the largest body, even while a body is in memory
    twice, compressed and decompressed. Otherwise a large call might never fit, and would be resent
    forever.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._consumer.release(self._size)
        self._size = 0

    def add(self, size: int) -> None:
        """Reserve `size` more bytes. Raises RefusalError if there is no room."""
        more = min(self._size + size, self._consumer.max_body_bytes) - self._size
        if more <= 0:
            return
        if not self._consumer.reserve(more):
            raise RefusalError(Reason.BUSY, "too many requests are in flight: send again later")
        self._size += more


async def receive(
    context: Any, turns: CallTurns, timeout_s: float, reservation: Reservation
) -> bytes:
    """Return the message of a call, unchanged.

    `turns` limits the number of messages that are received concurrently, because their size is not
    known in advance. Until its turn comes, a message stays with the client. Raises RefusalError if
    the message arrives too late.
    """
    try:
        async with turns.turn(context.peer(), timeout_s):
            body = await context.read()
            if isinstance(body, bytes):
                reservation.add(len(body))
    except TimeoutError:
        raise RefusalError(
            Reason.UNAVAILABLE,
            f"the request was not received within {timeout_s:g} s, or was slow while others waited",
        ) from None
    if not isinstance(body, bytes):
        raise await _without_message()
    if body.startswith(MALFORMED):
        raise RefusalError(
            Reason.MALFORMED, "expected 0 or 1 as the first byte of a gRPC message, found another"
        )
    return body


async def _without_message() -> RefusalError:
    """Return the refusal of a call that ended without a message.

    If a message is too large, gRPC itself responds; this module only sees that gRPC cancels the
    call shortly after the end of the stream.
    """
    try:
        await asyncio.sleep(_CANCELLED_WITHIN_S)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return RefusalError(Reason.TOO_LARGE, "the message is too large before decompression")
    return RefusalError(Reason.INVALID, "the call contains no request")


async def inflated(body: bytes, coding: str, limit: int, reservation: Reservation) -> bytes:
    """Return the message, decompressed if it is compressed.

    Raises RefusalError if the result exceeds `limit` bytes, or if the data is damaged.
    """
    codec = inflater(coding) if _is_compressed(body, coding) else None
    if codec is None:
        return body
    pieces: list[bytes] = []
    size = paused = 0
    try:
        for start in range(0, len(body), _FED):
            for piece in codec.feed(body[start : start + _FED]):
                size += len(piece)
                if size > limit:
                    raise too_large(limit)
                reservation.add(len(piece))
                pieces.append(piece)
                if size - paused >= _YIELD_EVERY:
                    paused = size
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        pieces.append(await finished(codec, limit - size, limit, reservation.add))
    except InputError as error:
        if coding == "deflate":
            return body  # its first two bytes may be those of an unknown field
        raise RefusalError(Reason.INVALID, str(error)) from None
    return b"".join(pieces)


def coding_of(values: Collection[str | bytes]) -> str:
    """Return the encoding of a call's messages, named by the values of its `grpc-encoding` headers.

    Raises RefusalError with the reason ENCODING if it is not supported, or if there are several.
    """
    if not values:
        return _IDENTITY
    (value, *others) = values
    if isinstance(value, str) and not others and value.lower() in ENCODINGS:
        return value.lower()
    shown = value[:_LONGEST_SHOWN] if not others else "several"
    raise RefusalError(
        Reason.ENCODING,
        f"expected one of {', '.join(ENCODINGS)} as grpc-encoding, found {shown!a}",
    )


def _is_compressed(body: bytes, coding: str) -> bool:
    start = _STARTS.get(coding)
    if start is None or not body.startswith(start):
        return False
    # RFC 1950, "Data format": a check of the first two bytes.
    return coding != "deflate" or int.from_bytes(body[:2]) % 31 == 0
