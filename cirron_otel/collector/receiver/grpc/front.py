"""The listening socket of gRPC: it limits connections, and relays each to gRPC's own server.

gRPC's Python server has no hook for connections, nor for encodings that its core does not support.
So clients connect to this socket, where TLS is also terminated, and gRPC listens on a Unix socket
in a private directory. The bytes are passed on unchanged except for one header of each request
(http2_headers).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import cast

from ....errors import InputError
from ..consumer import NO_SIGNAL, Observer, Refused
from ..listening import Listener, protocol_of
from .http2_headers import PREFACE, EncodingRenamer

_UNPROVEN_S = 5.0
"""A connection that sends no request for this long may be closed in favour of a new connection."""
_HANDSHAKE_S = 10.0
_CLOSE_S = 1.0
_STALLED_S = 30.0
"""The connection of a client that reads no responses for this long is closed. Otherwise it would
stay open forever: a relay that waits for the client does not notice that gRPC's keepalive has
closed the other side."""
_BACKLOG = 1024
_HAS_ABSTRACT_NAMES = sys.platform == "linux"

_FULL = Refused(NO_SIGNAL, "connections", "closed", "the limit of connections is reached")

_logger = logging.getLogger(__name__)


class Front:
    """Accepts connections for a gRPC server that listens on a Unix socket."""

    def __init__(self, target: Path, connections: int, refused: Observer) -> None:
        """`target` is the Unix socket; `connections` is the maximum number of open connections."""
        self._target, self._most, self._refused = target, connections, refused
        self._clients: set[_Client] = set()
        self._unproven: OrderedDict[_Client, float] = OrderedDict()
        """The connections that have not sent a request yet, oldest first, with the time at which
        each was made."""
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._listener: Listener | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Listen; return host and port. Raises OSError if that is not possible."""
        self._listener = Listener(lambda: _Client(self), self._refused)
        return await self._listener.start(host, port, _BACKLOG, tls, _HANDSHAKE_S)

    @property
    def connections(self) -> Collection[object]:
        """The open connections of clients."""
        return self._clients

    def close(self) -> None:
        """Stop accepting connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def wait_closed(self) -> None:
        """Wait up to a second for the last responses to be written, then close all connections."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._all_closed.wait()
        except TimeoutError:
            for client in list(self._clients):
                client.abort()

    def admit(self, client: _Client) -> bool:
        """Return whether to accept a connection.

        At the limit, the oldest connection may be closed in favour of the new one if it has sent no
        request for a while.
        """
        now = asyncio.get_running_loop().time()
        if len(self._clients) >= self._most:
            self._refused(_FULL)
            oldest = next(iter(self._unproven), None)
            if oldest is None or now - self._unproven[oldest] < _UNPROVEN_S:
                return False
            oldest.abort()
            self.forget(oldest)
        self._clients.add(client)
        self._unproven[client] = now
        self._all_closed.clear()
        return True

    def refuse(self, start: bytes) -> None:
        """Report a connection that begins with `start`, which is not gRPC."""
        message = f"expected gRPC, found {protocol_of(start)}"
        self._refused(Refused(NO_SIGNAL, "malformed", "closed", message))

    def prove(self, client: _Client) -> None:
        """Record that a connection has sent a request."""
        self._unproven.pop(client, None)

    def forget(self, client: _Client) -> None:
        """Record that a connection is closed."""
        self._clients.discard(client)
        self._unproven.pop(client, None)
        if not self._clients:
            self._all_closed.set()

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Connect to the gRPC server. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            if _HAS_ABSTRACT_NAMES:
                # The kernel chooses a name, which gRPC uses to distinguish connections.
                connection.bind(b"")
            connection.connect(bytes(self._target))
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(protocol, sock=connection)
        except BaseException:
            connection.close()
            raise


class _Side(asyncio.Protocol):
    """One of the two connections of a relay. It reads no faster than the other connection can
    write.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closed."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Close the connection after its buffered data is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self.other is not None:
            self.other.close()


class _Server(_Side):
    """The connection to the gRPC server."""

    def __init__(self, client: _Client) -> None:
        super().__init__()
        self.other = client

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)


class _Client(_Side):
    """A client's connection."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front
        self._renamer = EncodingRenamer()
        self._start: bytes | None = b""
        """The received part of the preface; None once it is complete."""
        self._is_proven = False
        self._early: list[bytes] = []
        """Data that was received before the gRPC server was connected."""
        self._connecting: asyncio.Task[None] | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._front.admit(self):
            self.abort()
            return
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        server = _Server(self)
        try:
            await self._front.connect(lambda: server)
        except OSError as error:
            _logger.warning("a connection cannot be passed to gRPC: %s", error.strerror or error)
            self.abort()
            return
        if self.transport is None or self.transport.is_closing():
            server.close()
            return
        self.other = server
        early, self._early = self._early, []
        for data in early:
            server.write(data)
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._start is not None and not self._is_grpc(data):
            return
        try:
            passed = self._renamer.feed(data)
        except InputError:
            self.abort()
            return
        if not self._is_proven and self._renamer.has_headers:
            self._is_proven = True
            self._front.prove(self)
        if self.other is not None:
            self.other.write(passed)
            return
        self._early.append(passed)
        if self.transport is not None:
            self.transport.pause_reading()

    def _is_grpc(self, data: bytes) -> bool:
        """Check the beginning of the connection; if it is not that of HTTP/2, close it.

        HTTP/1.1 gets no response: an exporter would drop the spans after 400, but sends them again
        if the connection is closed.
        """
        start = ((self._start or b"") + data)[: len(PREFACE)]
        if not PREFACE.startswith(start):
            self._front.refuse(start)
            self.close()
            return False
        self._start = None if len(start) == len(PREFACE) else start
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self._unwatch()
        super().resume_writing()

    def close(self) -> None:
        super().close()
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        self._unwatch()
        self._front.forget(self)
        super().connection_lost(error)

    def _watch(self) -> None:
        """Close the connection if the client reads nothing for `_STALLED_S` seconds."""
        if self._stalled is None and self in self._front.connections:
            loop = asyncio.get_running_loop()
            self._stalled = loop.call_later(_STALLED_S, self.abort)

    def _unwatch(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
