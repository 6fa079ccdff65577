"""Reading a request's body: bounded in bytes, in time, and in what all requests hold at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from ....errors import InputError
from ..consumer import Consumer, Reason, RefusalError
from ..inflating import CODINGS, Inflater, finished, inflater, too_large
from .answers import HttpError
from .content import content_coding

_PAUSE_BYTES = 1024 * 1024
"""Decompressed bytes after which other requests have their turn."""

_SPARE_BYTES = 4 * 1024 * 1024
"""Room is scarce where there is none for so much, which is a large request."""

_SLACK = 64 * 1024
"""What may be added by a coding to data that it cannot compress, bytes."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may ask of the server; times are in seconds."""

    header_bytes: int = 8190
    """Of the request line, and of each header."""
    headers: int = 48
    """How many there may be."""
    request_s: float = 60.0
    """From a request's headers to the last byte of its body; uploads are exempt."""
    grace_s: float = 10.0
    """How long a sender may be slower than `bytes_per_s`."""
    bytes_per_s: float = 4096.0
    """How much must come each second, on average since the headers."""
    slow_s: float = 2.0
    """How long a body may be waited for while there is no room for others."""
    idle_s: float = 75.0
    """How long a connection stays open without a request, and how long headers may take."""
    linger_s: float = 5.0
    """How long the rest of a refused body is read, so that its sender sees the answer."""
    connections: int = 1000
    uploads: int = 16
    """Snapshot files that are received at the same time."""
    upload_bytes: int = 64 * 1024**3
    """The largest snapshot file."""
    unfinished_bytes: int | None = None
    """The limit of all unfinished uploads, bytes, or None; half of it applies to each tenant."""


class Room:
    """The bytes of one request that count as in flight; a context manager that frees them."""

    def __init__(self, consumer: Consumer) -> None:
        """Nothing is held yet."""
        self._consumer, self._size = consumer, 0

    def hold(self, size: int) -> None:
        """Hold `size` bytes in all, or more where more are held; RefusalError without room."""
        more = size - self._size
        if more <= 0:
            return
        if not self._consumer.reserve(more):
            raise RefusalError(Reason.BUSY, "too many bytes are in flight: try again later")
        self._size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        size, self._size = self._size, 0
        self._consumer.release(size)


class Bodies:
    """Reads bodies for one server."""

    def __init__(self, consumer: Consumer, limits: HttpLimits) -> None:
        """`exporter` says how large a body may be, and has the room for it."""
        self._consumer, self._limits = consumer, limits

    async def read(self, request: web.BaseRequest, room: Room) -> bytes:
        """The whole body, decompressed, held in `room`.

        Raises RefusalError: too large, no room, or not what its coding says; HttpError: too slow,
        broken off, or a coding that is not known.
        """
        codec = _codec(request)
        largest = self._consumer.max_body_bytes
        announced = request.content_length or 0
        if announced > largest + (_SLACK if codec else 0):
            raise too_large(largest)
        # Room is held for what came, not for what was announced: a few slow senders would have it
        # all.
        await accept_body(request)
        body: bytes | bytearray = b""
        came = paused = 0
        limits = self._limits
        async for piece in pieces(request, limits, limits.request_s, self._is_scarce):
            came += len(piece)
            if came > largest + _SLACK:
                raise too_large(largest)
            if codec is not None:
                room.hold(min(came, largest))  # the decoder may keep its input
            for part in _undone(codec, piece):
                size = len(body) + len(part)
                if size > largest:
                    raise too_large(largest)
                room.hold(size)
                if body:
                    # No list of parts: those may be so small that their objects outweigh them.
                    body = body if isinstance(body, bytearray) else bytearray(body)
                    body += part
                else:
                    body = part
                if size - paused >= _PAUSE_BYTES:
                    paused = size
                    await asyncio.sleep(0)
        if codec is None or not came:
            return bytes(body)
        left = largest - len(body)
        try:
            rest = await finished(
                codec, left, largest, lambda size: room.hold(min(came + size, largest))
            )
        except InputError as error:
            raise RefusalError(Reason.INVALID, str(error)) from None
        return rest if not body else bytes(body) + rest

    def _is_scarce(self) -> bool:
        size = min(_SPARE_BYTES, self._consumer.max_body_bytes)
        if not self._consumer.reserve(size):
            return True
        self._consumer.release(size)
        return False


async def accept_body(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to go on (RFC 9110, 10.1.1). HttpError 417."""
    expected = request.headers.get("Expect", "").lower()
    if not expected or request.version < (1, 1):
        return
    if expected != "100-continue":
        raise HttpError(417, "expected no Expect but 100-continue")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def pieces(
    request: web.BaseRequest,
    limits: HttpLimits,
    seconds: float = math.inf,
    is_scarce: Callable[[], bool] = lambda: False,
) -> AsyncIterator[bytes]:
    """A body as it comes, in pieces that are never empty, for `seconds` at most.

    `is_scarce` says whether others have no room: for a slow body it is asked again and again.
    HttpError 408 where it comes too slowly, 400 where it breaks off; RefusalError where it gives
    way to others.
    """
    now = asyncio.get_running_loop().time
    came, waited, asked_at = 0, 0.0, limits.slow_s
    while True:
        if waited >= asked_at:
            asked_at = waited + limits.slow_s / 2
            if is_scarce():
                message = "too many bytes are in flight for a body that comes slowly: try again"
                raise RefusalError(Reason.BUSY, message)
        # Only what the sender is waited for counts: whoever takes the pieces may be slow as well.
        patience = limits.grace_s + came / limits.bytes_per_s
        start = now()
        try:
            async with asyncio.timeout(min(patience, seconds, asked_at) - waited):
                piece = await request.content.readany()
        except TimeoutError:
            waited += now() - start
            if waited < min(patience, seconds):
                continue
            message = f"{came} bytes of the body came in {waited:.0f} s: too slow"
            raise HttpError(408, message) from None
        except (web.RequestPayloadError, ConnectionError):
            message = f"the body breaks off, or is malformed, behind {came} bytes"
            raise HttpError(400, message) from None
        if not piece:
            return
        waited += now() - start
        came += len(piece)
        yield piece


def _codec(request: web.BaseRequest) -> Inflater | None:
    coding = content_coding(request.headers.getall("Content-Encoding", []))
    if coding == "identity":
        return None
    codec = inflater(coding)
    if codec is None:
        known = ", ".join(CODINGS)
        raise HttpError(
            415,
            f"expected one of {known} as Content-Encoding",
            {"Accept-Encoding": known},
            reason=Reason.ENCODING.value,
        )
    return codec


def _undone(codec: Inflater | None, piece: bytes) -> Iterator[bytes]:
    if codec is None:
        yield piece
        return
    try:
        yield from codec.feed(piece)
    except InputError as error:
        raise RefusalError(Reason.INVALID, str(error)) from None
