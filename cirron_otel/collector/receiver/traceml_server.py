"""Receive the frames of TraceML's processes over TCP.

A frame is a big-endian length of 4 bytes, followed by MessagePack or JSON. The protocol has no
acknowledgement, and a sender gives up if it cannot send for a second. So reading never waits for
the disk: complete frames are held in memory until the next group is written to the intake journal.
A frame for which there is no room is dropped and counted. A connection may hold at most as much as
is left for all others, so that one that floods the collector does not take the room of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

from ...core.importers.traceml.framing import HEADER_BYTES, MAX_FRAME_BYTES
from .consumer import (
    BodyEncoding,
    Consumer,
    Observer,
    Reason,
    ReceivedRequest,
    ReceivedSignal,
    RefusalError,
    ignore,
)
from .listening import Listener, target_error
from .traceml_forwarding import ForwardedConnection, TracemlForwarder
from .traceml_groups import PROCESS_BYTES, FrameRecordKind, GroupRecord, encode_group
from .traceml_peer import TracemlPeer, held_bytes, refused

_logger = logging.getLogger(__name__)

Network = IPv4Network | IPv6Network

_LINGER_S = 0.2
"""How long the first frame of a group waits for others, seconds."""
_GROUP_BYTES = 1024 * 1024
"""A group of this size is written at once."""
_AGAIN_S = 0.5
"""The pause before a group is written again after the disk failed, seconds."""
_LOOK_S = 1.0
"""The interval at which the age of connections and of incomplete frames is checked, seconds."""
_UNPROVEN_S = 5.0
"""A connection without a frame for this long may be closed in favour of a new connection."""
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class TracemlLimits:
    """The limits of connections and frames."""

    connections: int = 1000
    idle_s: float = 3600.0
    frame_s: float = 30.0
    """The longest time for a frame to arrive, seconds."""
    frame_bytes: int = MAX_FRAME_BYTES
    """The longest frame, bytes."""
    held_bytes: int = 128 * 1024 * 1024
    """Frames that are in memory and not in the journal yet, bytes."""


class TracemlReceiver:
    """Accepts the connections of TraceML's processes, and passes groups of frames to a Consumer."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        host: str,
        port: int,
        allow: Sequence[Network] = (),
        limits: TracemlLimits | None = None,
        refused: Observer = ignore,
        forwarder: TracemlForwarder | None = None,
    ) -> None:
        """Store the arguments; `start` listens. `port` 0 selects a free port.

        `allow` lists the networks that may connect; without any, every client may. `refused` is
        called with each dropped frame and closed connection.
        """
        self._consumer, self._host, self._port = consumer, host, port
        self.allow = tuple(allow)
        self._limits = limits or TracemlLimits()
        self.refuse, self._forwarder = refused, forwarder
        self._process = secrets.token_bytes(PROCESS_BYTES)
        self._listener = Listener(lambda: TracemlPeer(self), refused)
        self._peers: set[TracemlPeer] = set()
        self._unproven: OrderedDict[TracemlPeer, None] = OrderedDict()
        """The connections without a frame, oldest first."""
        self._numbers = 0
        self._held_bytes = 0
        self._group: list[tuple[TracemlPeer | None, GroupRecord]] = []
        self._group_bytes = 0
        self._filled, self._full = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ending = False

    async def start(self) -> tuple[str, int]:
        """Listen; return host and port. Raises TargetError if the address is not available."""
        try:
            address = await self._listener.start(self._host, self._port, _BACKLOG, None, 0.0)
        except OSError as error:
            raise target_error(self._host, self._port, error, "--traceml") from None
        self.append(None, GroupRecord(0, FrameRecordKind.START, 0, b""))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._write()), loop.create_task(self._watch())]
        return address

    async def stop(self, grace_s: float) -> None:
        """Close all connections, and store their frames within `grace_s` seconds; frames that are
        not stored by then are dropped and counted.
        """
        self._listener.close()
        for peer in list(self._peers):
            peer.end()
        self._is_ending = True
        self._filled.set()
        self._full.set()
        if self._forwarder is not None:
            await self._forwarder.stop(grace_s)
        if self._tasks:
            writing, watching = self._tasks
            await asyncio.wait({writing}, timeout=max(grace_s, 1.0))
            writing.cancel()
            watching.cancel()
            await asyncio.wait({writing, watching})
        self._drop_group("the collector is shutting down", self._group)
        self._group = []

    # --- for the connections --------------------------------------------------------------------

    @property
    def max_frame_bytes(self) -> int:
        """The longest frame with its length, bytes."""
        return self._limits.frame_bytes + HEADER_BYTES

    def admit(self, peer: TracemlPeer, address: Any) -> bool:
        """Return whether to accept a connection from `address`.

        At the limit, the oldest connection without a frame may be closed in its favour.
        """
        if not self._allows(address):
            self.refuse(refused("network", "closed", _not_allowed(address)))
            return False
        if len(self._peers) >= self._limits.connections:
            self.refuse(refused("connections", "closed", "the limit of connections is reached"))
            oldest = next(iter(self._unproven), None)
            if oldest is None or peer.heard_at - oldest.heard_at < _UNPROVEN_S:
                return False
            oldest.end()
        self._peers.add(peer)
        self._unproven[peer] = None
        return True

    def prove(self, peer: TracemlPeer) -> None:
        """Record that a connection has sent a frame; number it."""
        if not peer.number:
            self._numbers += 1
            peer.number = self._numbers
            self._unproven.pop(peer, None)

    def forward(self) -> ForwardedConnection | None:
        """Return the counterpart of a connection; None if frames are not forwarded."""
        return None if self._forwarder is None else self._forwarder.open()

    def forget(self, peer: TracemlPeer) -> None:
        """Record that a connection has ended."""
        self._peers.discard(peer)
        self._unproven.pop(peer, None)

    def reserve(self, held_bytes: int, size: int) -> bool:
        """Reserve memory for a connection that holds `held_bytes`; return whether there is room."""
        free = self._limits.held_bytes - self._held_bytes
        if size > 0 and (held_bytes + size > free or not self._consumer.reserve(size)):
            return False
        self._held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Release reserved memory."""
        self._held_bytes -= size
        self._consumer.release(size)

    def append(self, peer: TracemlPeer | None, record: GroupRecord) -> None:
        """Add a record to the next group."""
        self._group.append((peer, record))
        self._group_bytes += record.size
        self._filled.set()
        if self._group_bytes >= _GROUP_BYTES:
            self._full.set()

    def _allows(self, address: Any) -> bool:
        if not self.allow:
            return True
        try:
            peer = ip_address(str(address[0]).partition("%")[0])
        except (ValueError, TypeError, IndexError):
            return False
        mapped = getattr(peer, "ipv4_mapped", None)
        return any((mapped or peer) in network for network in self.allow)

    # --- groups ---------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Write groups to the journal until the receiver is stopped."""
        while self._group or not self._is_ending:
            await self._filled.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    await self._full.wait()
            group, self._group, self._group_bytes = self._group, [], 0
            self._filled.clear()
            self._full.clear()
            if self._is_ending:
                self._filled.set()
                self._full.set()
            if group:
                await self._store(group)

    async def _store(self, group: list[tuple[TracemlPeer | None, GroupRecord]]) -> None:
        """Write a group; while the disk fails, try again."""
        records = [record for _, record in group]
        request = ReceivedRequest(
            ReceivedSignal.TRACEML,
            BodyEncoding.FRAMES,
            encode_group(self._process, records),
            time.time_ns(),
            count=sum(record.kind is FrameRecordKind.FRAME for record in records),
        )
        try:
            while True:
                try:
                    await self._consumer.consume(request)
                    break
                except RefusalError as error:
                    if error.reason not in (Reason.BUSY, Reason.UNAVAILABLE):
                        self._drop_group(error.message, group)
                        break
                    _logger.warning("TraceML's frames wait in memory: %s", error.message)
                await asyncio.sleep(_AGAIN_S)
        except asyncio.CancelledError:
            self._drop_group("the collector is shutting down", group)
            raise
        finally:
            for peer, record in group:
                if peer is not None:
                    peer.release(held_bytes(record))

    def _drop_group(self, why: str, group: list[tuple[TracemlPeer | None, GroupRecord]]) -> None:
        for _, record in group:
            if record.kind is FrameRecordKind.FRAME:
                message = f"a frame was dropped: {why}"
                self.refuse(refused(Reason.UNAVAILABLE.value, "dropped", message))

    # --- time -----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Close idle connections, and those with a frame that arrives too slowly."""
        limits, loop = self._limits, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_LOOK_S, limits.idle_s, limits.frame_s))
            now = loop.time()
            for peer in list(self._peers):
                if now - peer.heard_at > limits.idle_s:
                    peer.close("idle", f"a connection was silent for {limits.idle_s:g} s")
                elif peer.begun_at is not None and now - peer.begun_at > limits.frame_s:
                    peer.close("slow", f"a frame took longer than {limits.frame_s:g} s")


async def end_earlier_connections(consumer: Consumer) -> None:
    """End the connections of a collector that was killed, if this one has no TraceML receiver.

    Raises RefusalError.
    """
    group = encode_group(
        secrets.token_bytes(PROCESS_BYTES), [GroupRecord(0, FrameRecordKind.START, 0, b"")]
    )
    await consumer.consume(
        ReceivedRequest(ReceivedSignal.TRACEML, BodyEncoding.FRAMES, group, time.time_ns(), count=0)
    )


def _not_allowed(address: Any) -> str:
    shown = address[0] if isinstance(address, tuple) and address else "an unknown address"
    return f"{shown} is not in receivers.traceml.allow"
