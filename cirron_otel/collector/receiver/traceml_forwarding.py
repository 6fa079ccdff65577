"""Pass the frames of TraceML's connections on to TraceML's own aggregator.

Each connection has a counterpart, which is opened with its first frame and closed after its last.
The aggregator may be absent, or start later: frames wait in memory up to a limit, above which the
oldest are dropped and counted. A frame that was sent in part is sent again on the next connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_PAUSES_S = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Pauses between attempts to connect, seconds; the last is repeated."""


@dataclass(frozen=True, slots=True)
class ForwardLimits:
    """The limits of forwarding."""

    waiting_bytes: int = 32 * 1024 * 1024
    """Frames of all connections that wait for the aggregator, bytes."""
    connection_bytes: int = 8 * 1024 * 1024
    """Frames of one connection that wait, bytes, or else two frames."""
    grace_s: float = 10.0
    """How long frames still wait for the aggregator after their connection has ended, seconds."""


OnForwarded = Callable[[bool, int, str], None]
"""Called with whether frames were sent or dropped, their number, and the reason."""


class TracemlForwarder:
    """Forwards connections to an aggregator; for the tasks of one event loop."""

    def __init__(
        self, host: str, port: int, note: OnForwarded, limits: ForwardLimits | None = None
    ) -> None:
        self.host, self.port, self.note = host, port, note
        self.limits = limits or ForwardLimits()
        self.waiting_bytes = 0
        """Bytes of all frames that wait."""
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> ForwardedConnection:
        """Return the counterpart of a new connection, and begin to connect it."""
        connection = ForwardedConnection(self)
        self._tasks.add(connection.task)
        connection.task.add_done_callback(self._tasks.discard)
        return connection

    async def stop(self, grace_s: float) -> None:
        """Wait up to `grace_s` seconds until the frames of all ended connections are sent."""
        if not self._tasks:
            return
        _, unfinished = await asyncio.wait(self._tasks, timeout=grace_s)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)


class ForwardedConnection:
    """The connection to the aggregator that repeats one connection of a peer."""

    def __init__(self, owner: TracemlForwarder) -> None:
        self._owner = owner
        self._frames: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_ended = False
        self._changed = asyncio.Event()
        self._problem = ""
        self._failures = 0
        """Attempts since the last frame was sent."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: bytes) -> None:
        """Queue a frame with its length; drop the oldest ones if too many bytes wait, and this one
        if the other connections leave no room for it.
        """
        self._frames.append(frame)
        self._hold(len(frame))
        limits, dropped = self._owner.limits, 0
        # The first frame may have been sent in part, and the last has just been added.
        while len(self._frames) > 2 and (
            self._waiting_bytes > limits.connection_bytes
            or self._owner.waiting_bytes > limits.waiting_bytes
        ):
            self._hold(-len(self._frames[1]))
            del self._frames[1]
            dropped += 1
        if self._owner.waiting_bytes > limits.waiting_bytes:
            self._hold(-len(self._frames.pop()))
            dropped += 1
        if dropped:
            reason = self._problem or "the aggregator reads too slowly"
            self._owner.note(False, dropped, reason)
        self._changed.set()

    def end(self) -> None:
        """Close the connection once its frames are sent, or give up after the grace period."""
        self._is_ended = True
        self._changed.set()
        asyncio.get_running_loop().call_later(self._owner.limits.grace_s, self.task.cancel)

    async def _run(self) -> None:
        """Connect, send, and reconnect, until the connection has ended and its frames are sent."""
        try:
            while await self._has_frames():
                try:
                    await self._attempt()
                except OSError as error:
                    self._problem = error.strerror or str(error)
                if not self._is_ended or self._frames:
                    await asyncio.sleep(_PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)])
                    self._failures += 1
        finally:
            if self._frames:
                self._owner.note(False, len(self._frames), self._problem or "shutdown")
            self._hold(-self._waiting_bytes)
            self._frames.clear()

    async def _has_frames(self) -> bool:
        """Wait for a frame; return False if the connection has ended without another."""
        while not self._frames and not self._is_ended:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._frames)

    async def _attempt(self) -> None:
        """Send over one connection to the aggregator until it is lost, or all frames are sent.

        Raises OSError.
        """
        loop = asyncio.get_running_loop()
        connection = await _connect(self._owner.host, self._owner.port)
        closed = loop.create_task(_closed(connection))
        sending = loop.create_task(self._send_all(connection))
        try:
            await asyncio.wait({closed, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            else:
                self._problem = "the aggregator closed the connection"
        finally:
            for task in (closed, sending):
                task.cancel()
            await asyncio.wait({closed, sending})
            connection.close()

    async def _send_all(self, connection: socket.socket) -> None:
        """Send frames until the end of the connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        while await self._has_frames():
            frame = self._frames[0]
            await loop.sock_sendall(connection, frame)
            self._frames.popleft()
            self._hold(-len(frame))
            self._failures = 0
            self._owner.note(True, 1, "")

    def _hold(self, size: int) -> None:
        self._waiting_bytes += size
        self._owner.waiting_bytes += size


async def _connect(host: str, port: int) -> socket.socket:
    """Connect to an address of `host`. Raises OSError."""
    loop = asyncio.get_running_loop()
    problem: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
        except OSError as error:
            connection.close()
            problem = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise problem


async def _closed(connection: socket.socket) -> None:
    """Return when the aggregator, which sends nothing, has closed the connection."""
    with contextlib.suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(connection, 4096):
            pass
