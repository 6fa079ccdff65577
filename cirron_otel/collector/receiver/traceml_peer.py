"""One connection of a TraceML process: its bytes are split into frames.

The frames are not decoded here: the second process does that. A frame begins with a MessagePack map
or array, or with a JSON object or array; anything else is dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

from ...core.importers.traceml.framing import HEADER_BYTES
from .consumer import Reason, ReceivedSignal, Refused
from .traceml_forwarding import ForwardedConnection
from .traceml_groups import FrameRecordKind, GroupRecord

_CONTAINERS = frozenset([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF, *b"{["])
"""The first bytes of MessagePack maps and arrays, and of JSON objects and arrays."""
_FRAME_BYTES = 256
"""The memory that a frame takes in addition to its content, bytes."""
_CLOSED, _DROPPED = "closed", "dropped"


def held_bytes(record: GroupRecord) -> int:
    """Return the memory that a record takes until it is in the journal, bytes."""
    return len(record.content) + (_FRAME_BYTES if record.kind is FrameRecordKind.FRAME else 0)


def refused(reason: str, status: str, message: str) -> Refused:
    """Return the refusal of a frame or a connection of TraceML."""
    return Refused(ReceivedSignal.TRACEML.value, reason, status, message)


class PeerOwner(Protocol):
    """The receiver of a connection's frames."""

    refuse: Callable[[Refused], None]
    """Called with each dropped frame and closed connection."""

    @property
    def max_frame_bytes(self) -> int:
        """The longest frame with its length, bytes."""

    def admit(self, peer: TracemlPeer, address: Any) -> bool:
        """Return whether to accept a connection from `address`."""

    def prove(self, peer: TracemlPeer) -> None:
        """Record that a connection has sent a frame; number it."""

    def forward(self) -> ForwardedConnection | None:
        """Return the counterpart of a connection; None if frames are not forwarded."""

    def forget(self, peer: TracemlPeer) -> None:
        """Record that a connection has ended."""

    def reserve(self, held_bytes: int, size: int) -> bool:
        """Reserve memory for a connection that holds `held_bytes`; return whether there is room."""

    def release(self, size: int) -> None:
        """Release reserved memory."""

    def append(self, peer: TracemlPeer | None, record: GroupRecord) -> None:
        """Store a record in the intake journal."""


class TracemlPeer(asyncio.Protocol):
    """A connection; it holds the bytes of an incomplete frame."""

    def __init__(self, receiver: PeerOwner) -> None:
        self._receiver = receiver
        self.number = 0
        """The number of the connection, from its first frame on."""
        self.held_bytes = 0
        """Bytes of this connection's frames that are in memory and not in the journal yet."""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._reserved = 0
        """The part of `held_bytes` for the incomplete frame."""
        self._offset = 0
        """The number of bytes before `_buffer` that the peer has sent."""
        self._skipped = 0
        """The number of bytes of a dropped frame that are still to come."""
        self.heard_at = 0.0
        self.begun_at: float | None = None
        """When the incomplete frame began, in the time of the event loop; None without one."""
        self._forwarded: ForwardedConnection | None = None

    # --- asyncio's interface --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or refuse the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        connection = transport.get_extra_info("socket")
        if connection is not None:  # detects a peer whose host has gone
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.heard_at = asyncio.get_running_loop().time()
        if not self._receiver.admit(self, transport.get_extra_info("peername")):
            transport.abort()  # type: ignore[attr-defined]
            self._transport = None

    def data_received(self, data: bytes) -> None:
        """Split the bytes into frames; never wait."""
        if self._transport is None:
            return
        self.heard_at = asyncio.get_running_loop().time()
        buffer = self._buffer
        buffer += data
        at = 0
        while self._transport is not None:
            step = min(self._skipped, len(buffer) - at)
            self._skipped -= step
            at += step
            if len(buffer) - at < HEADER_BYTES:
                break
            size = HEADER_BYTES + int.from_bytes(buffer[at : at + HEADER_BYTES])
            if size > self._receiver.max_frame_bytes:
                buffer.clear()
                self._offset += at
                most = self._receiver.max_frame_bytes
                message = f"a frame of {size:,} bytes: expected {most:,} at most; the connection"
                self.close(Reason.TOO_LARGE.value, f"{message} is closed")
                return
            if len(buffer) - at < size:
                if self._reserve(len(buffer) - at):
                    break
                self._skipped = size
                continue
            self._accept(bytes(buffer[at : at + size]), self._offset + at)
            at += size
        del buffer[:at]
        self._offset += at
        self._keep_time(is_new=at > 0)

    def eof_received(self) -> None:
        """Close the connection: the peer has ended."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection, with an incomplete frame if there is one."""
        del exc
        self.end()

    # --- the receiver's interface ---------------------------------------------------------------

    def close(self, reason: str, message: str) -> None:
        """Close the connection and count this as a refusal."""
        self._receiver.refuse(refused(reason, _CLOSED, message))
        self.end(is_refused=True)

    def end(self, *, is_refused: bool = False) -> None:
        """Close the connection, and record its end, with an incomplete frame if there is one.

        `is_refused`: the incomplete frame has been counted.
        """
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.abort()
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._free()
        if self._forwarded is not None:
            self._forwarded.end()
        if rest and not is_refused:
            message = f"a connection ended within a frame, of which {len(rest):,} bytes had arrived"
            self._receiver.refuse(refused("torn", _DROPPED, message))
        if self.number:
            if not self._hold(len(rest)):
                rest = b""
            self._receiver.append(
                self, GroupRecord(self.number, FrameRecordKind.END, self._offset, rest)
            )
        self._receiver.forget(self)

    def release(self, size: int) -> None:
        """Release bytes of frames that are in the journal or were dropped."""
        self.held_bytes -= size
        self._receiver.release(size)

    # --- frames ---------------------------------------------------------------------------------

    def _accept(self, frame: bytes, offset: int) -> None:
        """Store and forward a complete frame."""
        self._receiver.prove(self)
        if self._forwarded is None:
            self._forwarded = self._receiver.forward()
        if self._forwarded is not None:
            self._forwarded.send(frame)
        self._free()
        if len(frame) == HEADER_BYTES or frame[HEADER_BYTES] not in _CONTAINERS:
            message = "a frame that is neither a MessagePack nor a JSON container was dropped"
            self._receiver.refuse(refused(Reason.INVALID.value, _DROPPED, message))
            return
        record = GroupRecord(self.number, FrameRecordKind.FRAME, offset, frame)
        if self._hold(held_bytes(record)):
            self._receiver.append(self, record)
        else:
            self._drop()

    def _reserve(self, size: int) -> bool:
        """Reserve memory for an incomplete frame of which `size` bytes have arrived; if there is
        none, drop the frame.
        """
        if self._hold(size - self._reserved):
            self._reserved = size
            return True
        self._free()
        self._drop()
        return False

    def _hold(self, size: int) -> bool:
        if not self._receiver.reserve(self.held_bytes, size):
            return False
        self.held_bytes += size
        return True

    def _free(self) -> None:
        if self._reserved:
            self.release(self._reserved)
            self._reserved = 0

    def _drop(self) -> None:
        message = "a frame was dropped: too much data is waiting for the disk"
        self._receiver.refuse(refused(Reason.BUSY.value, _DROPPED, message))

    def _keep_time(self, *, is_new: bool) -> None:
        if not self._buffer and not self._skipped:
            self.begun_at = None
        elif is_new or self.begun_at is None:
            self.begun_at = self.heard_at
