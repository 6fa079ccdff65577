"""The connections of the HTTP server, with adaptations of aiohttp's errors, limits and headers.

The subclasses of aiohttp's classes exist because aiohttp repeats the client's bytes in its
responses to data that is not HTTP, logs a traceback for each, and names its version in the Server
header.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage

from ..consumer import NO_SIGNAL, BodyEncoding, Refused
from .answers import HttpError, Reply, error_reply
from .bodies import HttpLimits

_logger = logging.getLogger(__name__)

_CONNECTIONS = Refused(NO_SIGNAL, "connections", "503", "the limit of connections is reached")

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

_END_S = 1.0
"""The time allowed for writing a response during shutdown, seconds."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def response_of(reply: Reply) -> web.Response:
    """Convert a reply to an aiohttp response."""
    response = web.Response(status=reply.status, body=reply.body, headers=reply.headers)
    response.headers["Content-Type"] = reply.media_type
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


class _HttpRequest(web.BaseRequest):
    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.pop("Server", None)


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    return _HttpRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


class _Connection(web.RequestHandler):
    __slots__ = ("_owner",)

    def __init__(self, owner: ConnectionFactory, **options: Any) -> None:
        super().__init__(owner, **options)
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._owner.is_full:
            self._owner.refused(_CONNECTIONS)
            self.close()
            stream = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
            stream.write(_FULL)
            stream.close()
            return
        super().connection_made(transport)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats the client's bytes
    ) -> web.StreamResponse:
        """Answer data that is not HTTP, without repeating any of it."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response has already begun")
        if status >= 500:
            _logger.error("an HTTP request failed", exc_info=exc)
            error = HttpError(
                503,
                "an internal error: try again later",
                {"Retry-After": "5"},
                reason="internal",
            )
        elif isinstance(exc, LineTooLong):
            error = HttpError(431, "the request line or a header is too long")
        else:
            error = HttpError(
                400, "expected an HTTP/1.1 request, found something else", reason="malformed"
            )
        self._owner.refused(Refused(NO_SIGNAL, error.reason, str(error.status), error.message))
        response = response_of(error_reply(error, BodyEncoding.JSON))
        response.force_close()
        return response


class ConnectionFactory(web.Server):
    """Creates a connection for each client; `loop.create_server` calls it."""

    def __init__(
        self, handler: Handler, limits: HttpLimits, refused: Callable[[Refused], None]
    ) -> None:
        """`refused` is called for connections beyond the limit, and for data that is not HTTP."""
        super().__init__(self._watched, request_factory=_request)
        self._handler, self._limits, self.refused = handler, limits, refused
        self._busy: set[web.RequestHandler] = set()
        self._none_is_busy = asyncio.Event()
        self._none_is_busy.set()

    @property
    def is_full(self) -> bool:
        """Whether the connection limit has been reached."""
        return len(self.connections) >= self._limits.connections

    async def drain(self, grace_s: float) -> int:
        """Close all connections within `grace_s` seconds, busy ones after their response.

        Returns the number of requests that had no response by the end of that time.
        """
        for connection in self.connections:
            if connection not in self._busy:
                connection.force_close()
        try:
            async with asyncio.timeout(grace_s):
                await self._none_is_busy.wait()
        except TimeoutError:
            pass
        left = len(self._busy)
        await self.shutdown(_END_S)
        return left

    async def _watched(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self._busy.add(connection)
        self._none_is_busy.clear()
        try:
            return await self._handler(request)
        finally:
            self._busy.discard(connection)
            if not self._busy:
                self._none_is_busy.set()

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        limits = self._limits
        return _Connection(
            self,
            loop=self._loop,
            keepalive_timeout=limits.idle_s,
            lingering_time=limits.linger_s,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            auto_decompress=False,
            access_log=None,
            logger=_logger,
        )
