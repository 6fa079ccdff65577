"""The connections of the HTTP server, with adaptations of aiohttp's errors, limits and headers.

At the limit of connections, one that waits for a request gives way to a new one: clients keep
connections open between requests, and reconnect when they are closed. Some connections beyond the
limit are accepted for /health, /ready and /metrics.

The subclasses of aiohttp's classes exist because aiohttp repeats the client's bytes in its
responses to data that is not HTTP, logs a traceback for each, and names its version in the Server
header.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, cast

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage

from ..consumer import NO_SIGNAL, BodyEncoding, Refused
from ..listening import protocol_of
from .answers import HttpError, Reply, error_reply
from .bodies import HttpLimits

_logger = logging.getLogger(__name__)

OPERATION_PLACES: Final = 16
"""The number of connections beyond the limit, for requests to /health, /ready and /metrics."""
_START_BYTES = 24
_SILENT_S = 5.0
"""A connection that has sent nothing for this long gives way to a new one before idle ones do."""

_CONNECTIONS = Refused(NO_SIGNAL, "connections", "503", "the limit of connections is reached")
_GAVE_WAY = Refused(
    NO_SIGNAL, "connections", "closed", "the limit of connections is reached: an idle one is closed"
)
_LATE_HEAD = Refused(NO_SIGNAL, "slow", "408", "the headers of a request did not arrive in time")

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

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
    __slots__ = ("_body", "_late", "_owner", "_start")

    def __init__(self, owner: ConnectionFactory, **options: Any) -> None:
        super().__init__(owner, **options)
        self._owner = owner
        self._start = b""
        """The first bytes that the client sent."""
        self._late: asyncio.TimerHandle | None = None
        """Ends the connection if the headers of a request that has begun do not arrive."""
        self._body: StreamReader | None = None
        """The body of the latest request. After an early response, the rest of it may arrive."""

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits for a request or for the rest of its headers."""
        waiter = self._waiter
        return waiter is not None and not waiter.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._owner.admit(self):
            self._owner.refused(_CONNECTIONS)
            self.close()
            stream = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
            stream.write(_FULL)
            stream.close()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._start:
            self._start = data[:_START_BYTES]
        is_body = self._body is not None and not self._body.is_eof()
        super().data_received(data)
        is_idle = not (is_body or self._messages or self._owner.is_busy(self))
        if data and is_idle and self._late is None:
            self._late = self._loop.call_later(self._owner.head_s, self._end_late)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._headers_arrived()
        self._owner.forget(self)
        super().connection_lost(exc)

    async def _handle_request(self, request: web.BaseRequest, *arguments: Any) -> Any:
        self._headers_arrived()
        self._body = request.content
        self._owner.begin(self)
        try:
            return await super()._handle_request(request, *arguments)
        finally:
            self._owner.end(self)

    def _headers_arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end_late(self) -> None:
        self._late = None
        if self.is_waiting and self.transport is not None:
            self._owner.refused(_LATE_HEAD)
            self.transport.write(_LATE)
            self.force_close()

    def give_way(self) -> None:
        """Close the connection, which is idle, in favour of a new one."""
        transport = self.transport
        self.force_close()
        if transport is not None and transport.get_extra_info("sslcontext") is not None:
            transport.abort()  # the client need not take part

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
            found = "something else" if self._request_count > 1 else protocol_of(self._start)
            error = HttpError(
                400, f"expected an HTTP/1.1 request, found {found}", reason="malformed"
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
        """`refused` is called for each connection that is refused or closed, and for data that is
        not HTTP.
        """
        super().__init__(handler, request_factory=_request)
        self._limits, self.refused = limits, refused
        self._silent: OrderedDict[_Connection, float] = OrderedDict()
        """The connections that have not sent a request yet, oldest first, with their start."""
        self._idle: OrderedDict[_Connection, None] = OrderedDict()
        """The connections that wait for their next request, the one that waits longest first."""
        self._busy: set[_Connection] = set()
        self._none_is_busy = asyncio.Event()
        self._none_is_busy.set()

    @property
    def head_s(self) -> float:
        """The longest time for the headers of a request to arrive, seconds."""
        return self._limits.head_s

    @property
    def is_crowded(self) -> bool:
        """Whether more requests are being handled than connections are allowed."""
        return len(self._busy) > self._limits.connections

    def admit(self, connection: _Connection) -> bool:
        """Return whether to accept a connection; if necessary, another one is closed for it."""
        open_count = len(self._silent) + len(self._idle) + len(self._busy)
        if open_count >= self._limits.connections + OPERATION_PLACES:
            other = self._least_needed()
            if other is None:
                return False
            self.refused(_GAVE_WAY)
            self.forget(other)
            other.give_way()
        self._silent[connection] = asyncio.get_running_loop().time()
        return True

    def _least_needed(self) -> _Connection | None:
        """Return the connection that gives way to a new one; None if all are in use."""
        silent = _first_waiting(self._silent)
        if silent is not None:
            age_s = asyncio.get_running_loop().time() - self._silent[silent]
            if age_s >= _SILENT_S:
                return silent
        return _first_waiting(self._idle) or silent

    def is_busy(self, connection: _Connection) -> bool:
        """Return whether a request of a connection is being handled."""
        return connection in self._busy

    def begin(self, connection: _Connection) -> None:
        """Record that a request of a connection is being handled."""
        self.forget(connection)
        self._busy.add(connection)
        self._none_is_busy.clear()

    def end(self, connection: _Connection) -> None:
        """Record that the response to a request has been written."""
        was_open = connection in self._busy
        self.forget(connection)
        if was_open:
            self._idle[connection] = None

    def forget(self, connection: _Connection) -> None:
        """Record that a connection is closed."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.discard(connection)
        if not self._busy:
            self._none_is_busy.set()

    async def drain(self, grace_s: float) -> int:
        """Close all connections within `grace_s` seconds, busy ones after their response.

        Returns the number of requests that had no response by the end of that time.
        """
        for connection in (*self._silent, *self._idle):
            connection.force_close()
        try:
            async with asyncio.timeout(grace_s):
                await self._none_is_busy.wait()
        except TimeoutError:
            pass
        left = len(self._busy)
        await self.shutdown(_END_S)
        return left

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


def _first_waiting(connections: Iterable[_Connection]) -> _Connection | None:
    return next((each for each in connections if each.is_waiting), None)
