"""Read the bodies of requests, with limits on size, time, and total memory.

The module also determines the encoding and compression of a body from its headers, and
distinguishes Cirron batches in JSON from OTLP.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from ....errors import InputError
from ..consumer import BodyEncoding, Consumer, Reason, ReceivedSignal, RefusalError
from ..inflating import CODINGS, Inflater, finished, inflater, too_large
from .answers import JSON, PROTOBUF, HttpError

_OTLP_KEYS = frozenset(("resourceSpans", "resource_spans"))
_CIRRON_KEYS = frozenset(
    ("schema_version", "sdk_version", "batch_id", "created_ns", "spans", "marks", "snapshots")
)

_HEAD = 64 * 1024
"""A known key must occur within this many bytes from the start: a longer search would delay other
requests."""

_START = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*+(?=\{)")
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
"""Matches a string or a structural character. An unterminated string also matches: otherwise the
search would restart at each quote."""

_LONGEST_SHOWN = 60
_OPENING, _CLOSING, _COMMA, _QUOTE = frozenset(b"{["), frozenset(b"}]"), ord(","), ord('"')


def encoding_of(content_type: str | None) -> BodyEncoding:
    """Return the encoding that a Content-Type denotes. Raises HttpError 415 for any other type."""
    media_type, _, parameters = (content_type or "").partition(";")
    media_type = media_type.strip().lower()
    if media_type == PROTOBUF:
        return BodyEncoding.PROTOBUF
    if media_type == JSON:
        charset = re.search(r"charset\s*=\s*\"?([^\s\";]*)", parameters, re.IGNORECASE)
        if charset is None or charset[1].lower() in ("utf-8", "utf8", "us-ascii"):
            return BodyEncoding.JSON
        raise HttpError(415, f"expected JSON in UTF-8, found {_shown(charset[1])}")
    shown_type = _shown(media_type) if media_type else "none"
    raise HttpError(415, f"expected the Content-Type {PROTOBUF} or {JSON}, found {shown_type}")


def content_coding(values: list[str]) -> str:
    """Return the coding named by the Content-Encoding headers; `identity` if they name none.

    Raises HttpError 415 if they name several. The coding may be an unsupported one.
    """
    named = [part.strip().lower() for value in values for part in value.split(",")]
    codings = [name for name in named if name not in ("", "identity")]
    if len(codings) > 1:
        message = "expected one Content-Encoding at most, found several"
        raise HttpError(415, message, reason=Reason.ENCODING.value)
    return codings[0] if codings else "identity"


def json_signal(body: bytes) -> ReceivedSignal:
    """Return whether JSON sent to `/v1/traces` is OTLP or a Cirron batch.

    The first top-level key that belongs to one of the two formats decides. An object without such a
    key is an empty OTLP request. Invalid JSON after that key is left to the parser. Raises
    RefusalError if the body is not an object, or if the object is longer than 64 KiB and has no
    such key within the first 64 KiB.
    """
    start = _START.match(body, 0, _HEAD)
    if start is None:
        raise RefusalError(Reason.INVALID, "expected a JSON object, found something else")
    depth, is_key = 0, False
    for token in _TOKEN.finditer(body, start.end(), start.end() + _HEAD):
        first = body[token.start()]
        if first in _OPENING:
            depth += 1
            is_key = depth == 1
        elif first in _CLOSING:
            depth -= 1
            if depth <= 0:
                return ReceivedSignal.TRACES
        elif first == _COMMA:
            is_key = depth == 1
        elif first == _QUOTE and is_key:
            is_key = False
            key = _text(token[0])
            if key in _OTLP_KEYS:
                return ReceivedSignal.TRACES
            if key in _CIRRON_KEYS:
                return ReceivedSignal.CIRRON
    if len(body) - start.end() <= _HEAD:
        return ReceivedSignal.TRACES
    raise RefusalError(
        Reason.INVALID,
        "neither resourceSpans nor schema_version is among the keys in the first 64 KiB:"
        " put one of them first",
    )


def _text(token: bytes) -> str:
    if b"\\" not in token:
        return token[1:-1].decode("utf-8", "replace")
    try:
        return str(json.loads(token))
    except ValueError:
        return ""


def _shown(text: str) -> str:
    """Return text from a client, shortened and escaped so that a response may repeat it."""
    return ascii(text[:_LONGEST_SHOWN])


_PAUSE_BYTES = 1024 * 1024
"""The number of decompressed bytes after which other requests get a turn."""

_SPARE_BYTES = 4 * 1024 * 1024
"""Memory for bodies is scarce if less than this is free. It is the size of a large request."""

_SLACK = 64 * 1024
"""The number of bytes by which compression may enlarge incompressible data."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits that protect clients from each other; times are in seconds."""

    header_bytes: int = 8190
    """The maximum size of the request line and of each header, bytes."""
    headers: int = 48
    """The maximum number of headers."""
    request_s: float = 60.0
    """The time from a request's headers to the last byte of its body; uploads are exempt."""
    grace_s: float = 10.0
    """How long a sender may be slower than `bytes_per_s`."""
    bytes_per_s: float = 4096.0
    """The minimum average rate since the headers arrived, bytes per second."""
    slow_s: float = 2.0
    """How long to wait for a slow body while there is no memory for other requests."""
    head_s: float = 10.0
    """The time from the first byte of a request to the end of its headers."""
    idle_s: float = 75.0
    """How long a connection may wait for its first or next request."""
    linger_s: float = 5.0
    """How long to read the rest of a refused body, so that its sender sees the response."""
    connections: int = 1000
    """The maximum number of connections. A few more are accepted for the operational endpoints."""
    uploads: int = 16
    """The maximum number of snapshot files that are received concurrently."""
    upload_bytes: int = 64 * 1024**3
    """The maximum size of a snapshot file, bytes."""
    unfinished_bytes: int | None = None
    """The limit on the total size of unfinished uploads, bytes; None for no limit. Each tenant may
    use half of it."""


class Room:
    """The bytes of one request that count as in flight; a context manager that releases them."""

    def __init__(self, consumer: Consumer) -> None:
        """Start with no bytes held."""
        self._consumer, self._size = consumer, 0

    def hold(self, size: int) -> None:
        """Hold at least `size` bytes in total. Raises RefusalError if there is no room."""
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
        """`consumer` defines the largest body, and accounts for the bytes in flight."""
        self._consumer, self._limits = consumer, limits

    async def read(self, request: web.BaseRequest, room: Room) -> bytes:
        """Return the complete body, decompressed; `room` holds its bytes.

        Raises RefusalError if the body is too large, if there is no memory for it, or if it cannot
        be decompressed. Raises HttpError if the body is too slow or truncated, or if its coding is
        unknown.
        """
        codec = _codec(request)
        largest = self._consumer.max_body_bytes
        announced = request.content_length or 0
        if announced > largest + (_SLACK if codec else 0):
            raise too_large(largest)
        # Hold room for received bytes, not for announced bytes: otherwise a few slow senders could
        # take all the room.
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
                    # Do not collect a list: the objects of small parts take more memory than their
                    # bytes.
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
    """Send `100 Continue` if the client waits for it (RFC 9110, 10.1.1). Raises HttpError 417."""
    expected = request.headers.get("Expect", "").lower()
    if not expected or request.version < (1, 1):
        return
    if expected != "100-continue":
        raise HttpError(417, "unknown Expect: expected 100-continue or none")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def pieces(
    request: web.BaseRequest,
    limits: HttpLimits,
    seconds: float = math.inf,
    is_scarce: Callable[[], bool] = lambda: False,
) -> AsyncIterator[bytes]:
    """Yield a body in non-empty pieces as they arrive, for at most `seconds`.

    `is_scarce` returns whether there is no memory for other requests; it is called repeatedly for a
    slow body. Raises HttpError 408 if the body is too slow, 400 if it is truncated, and
    RefusalError if it is aborted in favour of other requests.
    """
    now = asyncio.get_running_loop().time
    came, waited, check_at_s = 0, 0.0, limits.slow_s
    while True:
        if waited >= check_at_s:
            check_at_s = waited + limits.slow_s / 2
            if is_scarce():
                message = "too many bytes are in flight to wait for a slow body: try again"
                raise RefusalError(Reason.BUSY, message)
        # Only the time spent waiting for the sender counts, because the consumer may also be slow.
        patience = limits.grace_s + came / limits.bytes_per_s
        start = now()
        try:
            async with asyncio.timeout(min(patience, seconds, check_at_s) - waited):
                piece = await request.content.readany()
        except TimeoutError:
            waited += now() - start
            if waited < min(patience, seconds):
                continue
            message = f"{came} bytes of the body were received in {waited:.0f} s: too slow"
            raise HttpError(408, message) from None
        except (web.RequestPayloadError, ConnectionError):
            message = f"the body is truncated or malformed after {came} bytes"
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
