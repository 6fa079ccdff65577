"""The listening sockets of a receiver.

A TLS connection uses a file descriptor during its handshake, before the protocol object exists. So
this module limits the number of concurrent handshakes. A failed handshake, for example with an
expired client certificate, is reported as a refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
from collections.abc import Callable
from typing import Final

from ...errors import TargetError
from .consumer import NO_SIGNAL, Observer, Refused

_MOST_HANDSHAKES: Final = 64
"""The maximum number of concurrent handshakes; if it is exceeded, the oldest is cancelled. A normal
handshake takes hundredths of a second."""
_PAUSE_S = 0.1
"""The pause after an error of accept(2), for example if no file descriptor is free, seconds."""
_LONGEST_SHOWN = 200

_TLS_START: Final = b"\x16\x03"
_HTTP2_START: Final = b"PRI * HTTP/2.0"
_HTTP1_START: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT) ")

_LATE = Refused(NO_SIGNAL, "tls", "closed", "a TLS handshake took too long while others waited")

_logger = logging.getLogger(__name__)

Protocol = Callable[[], asyncio.Protocol]


class Listener:
    """Accepts connections, and creates a protocol for each."""

    def __init__(self, protocol: Protocol, refused: Observer) -> None:
        """`refused` is called for each TLS handshake that fails."""
        self._protocol, self._refused = protocol, refused
        self._server: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """The handshakes in progress, oldest first."""

    async def start(
        self, host: str, port: int, backlog: int, tls: ssl.SSLContext | None, handshake_s: float
    ) -> tuple[str, int]:
        """Listen; return host and port. Port 0 selects a free port. Raises OSError."""
        loop = asyncio.get_running_loop()
        if not port:
            host = await _first_address(host)
        # asyncio binds the sockets; without TLS it also accepts connections.
        self._server = await loop.create_server(
            self._protocol, host, port, backlog=backlog, start_serving=tls is None
        )
        name = self._server.sockets[0].getsockname()
        if tls is not None:
            for each in self._server.sockets:
                listener = socket.socket(fileno=os.dup(each.fileno()))
                listener.listen(backlog)
                listener.setblocking(False)
                self._sockets.append(listener)
                self._accepting.append(loop.create_task(self._accept(listener, tls, handshake_s)))
        return str(name[0]), int(name[1])

    @property
    def ports(self) -> set[int]:
        """The ports of all listening sockets."""
        sockets = [] if self._server is None else self._server.sockets
        return {int(each.getsockname()[1]) for each in sockets}

    def close(self) -> None:
        """Stop accepting connections, and end handshakes."""
        if self._server is not None:
            self._server.close()
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        for each in self._sockets:
            each.close()
        self._accepting, self._sockets = [], []

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                _logger.warning("connections cannot be accepted: %s", error.strerror or error)
                await asyncio.sleep(_PAUSE_S)
                continue
            task = loop.create_task(self._shake_hands(connection, tls, seconds))
            self._handshakes[task] = None
            task.add_done_callback(self._handshakes.pop)
            if len(self._handshakes) > _MOST_HANDSHAKES:
                next(iter(self._handshakes)).cancel()
                self._refused(_LATE)

    async def _shake_hands(
        self, connection: socket.socket, tls: ssl.SSLContext, seconds: float
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=tls, ssl_handshake_timeout=seconds
            )
        except (OSError, asyncio.CancelledError) as error:
            with contextlib.suppress(OSError):
                connection.close()
            if not isinstance(error, asyncio.CancelledError):
                reason = getattr(error, "reason", None) or str(error) or "the client closed it"
                message = f"a TLS handshake failed: {reason[:_LONGEST_SHOWN]}"
                self._refused(Refused(NO_SIGNAL, "tls", "closed", message))


def protocol_of(start: bytes) -> str:
    """Describe the protocol whose first bytes are `start`, for messages."""
    if start.startswith(_TLS_START):
        return "a TLS handshake, and this port is not configured for TLS"
    if start.startswith(_HTTP2_START):
        return "HTTP/2: send gRPC to the address of receivers.grpc"
    if _HTTP1_START.match(start):
        return "an HTTP/1.1 request: send it to the address of receivers.http"
    return "something else"


async def _first_address(host: str) -> str:
    """Return one address of `host`: with several, port 0 would select a different port for each."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(
        host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return str(addresses[0][4][0])


def target_error(host: str, port: int, error: OSError, flag: str) -> TargetError:
    """Return the error for an address on which a receiver cannot listen; `flag` sets another."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return TargetError(
        f"cannot listen on {shown}: it is in use, or not an address of this host"
        f" ({error.strerror or error}); choose another with {flag} HOST:PORT"
    )
