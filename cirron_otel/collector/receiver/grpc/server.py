"""The OTLP/gRPC receiver (opentelemetry.io/docs/specs/otlp/, "OTLP/gRPC").

It requires the extra `collector`, so this module is imported only when it is needed.

Messages are decompressed here and not by gRPC, which checks the size of a message only after it has
decompressed it: a message of 4 MiB may expand to 4 GiB.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ....errors import TargetError
from ..auth import Auth
from ..consumer import (
    NO_SIGNAL,
    BodyEncoding,
    Consumer,
    Observer,
    Reason,
    ReceivedRequest,
    ReceivedSignal,
    RefusalError,
    Refused,
    ignore,
)
from ..headers import KEPT_HEADERS, KeptHeaders, only_value
from ..listening import target_error
from .bodies import Reservation, coding_of, inflated, receive
from .certificates import GrpcTls
from .front import Front
from .http2_headers import ENCODING
from .socket import PrivateSocket
from .status import answer_bytes, status_of
from .turns import CallTurns

_log = logging.getLogger(__name__)

_FAILED = "the request failed: see the collector's log"
_UNAUTHENTICATED = "expected the header `authorization: Bearer …`, with an accepted token"

_METHODS = {
    f"/opentelemetry.proto.collector.{package}.v1.{service}/Export": signal
    for package, service, signal in (
        ("trace", "TraceService", ReceivedSignal.TRACES),
        ("metrics", "MetricsService", ReceivedSignal.METRICS),
        ("logs", "LogsService", ReceivedSignal.LOGS),
    )
}

_LOOKAHEAD_BYTES = 256 * 1024
_FEWEST_READS = 4

_LONGEST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Limits that protect clients from each other."""

    streams: int = 128
    """The maximum number of concurrent calls on one connection; additional calls wait at the
    client."""
    reading_bytes: int = 64 * 1024 * 1024
    """The limit on the total size of the bodies that are being received, bytes. Each body counts as
    the largest allowed size; other calls wait unread. Four bodies may always be received."""
    read_timeout_s: float = 10.0
    """The maximum time for receiving the body of a call, including the wait for a turn."""
    quick_s: float = 0.05
    """The time after which a read counts as late while other calls wait; up to half of the reads
    may be late."""
    patience_s: float = 5.0
    """If too many reads are late, the oldest of them is aborted once it has taken this long; before
    that, the newest is aborted instead."""
    ping_interval_s: float = 10.0
    """The minimum interval between a client's keepalive pings; a connection that pings more often
    is closed."""
    keepalive_s: float = 60.0
    """A connection that is silent for this long is pinged, and closed if it does not answer."""
    connections: int = 1000
    """The maximum number of open connections of all clients."""
    connection_age_s: float | None = None
    """The age at which clients must reconnect, so that load spreads again; None: never."""
    connection_grace_s: float = 30.0
    """How long calls may continue on a connection that has reached its maximum age."""


class GrpcReceiver:
    """Serves the three OTLP services, and passes requests to a Consumer."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        host: str = "127.0.0.1",
        port: int = 4317,
        tls: GrpcTls | None = None,
        auth: Auth | None = None,
        limits: GrpcLimits | None = None,
        headers: Collection[str] = KEPT_HEADERS,
        refused: Observer = ignore,
        sockets: Path | None = None,
    ) -> None:
        """Store the arguments; `start` listens. `port` 0 selects a free port.

        The headers named in `headers` are kept with a request (see KeptHeaders). `refused` is
        called with each refusal. `sockets` is a directory for gRPC's socket if the temporary
        directory cannot be used.
        """
        self._refused, self._sockets = refused, sockets
        self._consumer, self._auth, self._tls = consumer, auth, tls
        self._host, self._port = host, port
        self._limits = limits or GrpcLimits()
        self.pass_on(headers)
        reads = self._limits.reading_bytes // max(consumer.max_body_bytes, 1)
        self._turns = CallTurns(
            max(reads, _FEWEST_READS), self._limits.quick_s, self._limits.patience_s
        )
        self._server: grpc.aio.Server | None = None
        self._front: Front
        self._socket: PrivateSocket

    def pass_on(self, names: Collection[str]) -> None:
        """Set the headers that are stored with subsequent requests."""
        self._header_filter = KeptHeaders(names)

    @property
    def connections(self) -> Collection[object]:
        """The open connections of clients."""
        return self._front.connections

    async def start(self) -> tuple[str, int]:
        """Listen; return host and port.

        Raises UsageError if the TLS files are unusable, and TargetError if the address is not
        available.
        """
        context = None if self._tls is None else self._tls.context()
        self._socket = PrivateSocket(self._sockets)
        server = grpc.aio.server(options=self._options())
        server.add_generic_rpc_handlers((_Services(self._export, self._unknown),))
        front = Front(self._socket.path, self._limits.connections, self._refused)
        try:
            server.add_insecure_port(self._socket.address)
            await server.start()
            host, port = await front.start(self._host, self._port, context)
        except (OSError, RuntimeError) as error:  # gRPC raises RuntimeError
            await server.stop(None)
            self._socket.remove()
            if isinstance(error, OSError):
                raise target_error(self._host, self._port, error, "--grpc") from None
            raise TargetError(f"gRPC cannot listen on {self._socket.path}: {error}") from None
        self._server, self._front = server, front
        return host, port

    async def stop(self, grace_s: float) -> None:
        """Stop accepting calls, and abort those that are not answered within `grace_s` seconds."""
        server, self._server = self._server, None
        if server is None:
            return
        self._front.close()
        await server.stop(grace_s)
        await self._front.wait_closed()
        self._socket.remove()

    def _options(self) -> list[tuple[str, int]]:
        """Return the channel arguments (grpc.github.io/grpc/core/group__grpc__arg__keys.html)."""
        limits = self._limits
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", self._consumer.max_body_bytes),
            ("grpc.per_message_decompression", 0),
            # Fix the number of bytes that a stream may send before it is read; by default, gRPC
            # lets it grow to several MiB.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
            ("grpc.max_concurrent_streams", limits.streams),
            ("grpc.keepalive_time_ms", _ms(limits.keepalive_s)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", _ms(limits.ping_interval_s)),
        ]
        if limits.connection_age_s is not None:
            options += [
                ("grpc.max_connection_age_ms", _ms(limits.connection_age_s)),
                ("grpc.max_connection_age_grace_ms", _ms(limits.connection_grace_s)),
            ]
        return options

    async def _export(self, signal: ReceivedSignal, context: Any) -> bytes:
        metadata = tuple(context.invocation_metadata() or ())
        try:
            self._authenticate(metadata)
            coding = coding_of([value for name, value in metadata if name == ENCODING])
            headers = self._header_filter.select(metadata)
            with Reservation(self._consumer) as reservation:
                answer = await self._consumer.consume(
                    await self._request(signal, headers, coding, context, reservation)
                )
        except RefusalError as error:
            status, reason = status_of(error), error.reason.value
        except Exception:
            _log.exception("an OTLP/gRPC request failed")
            status, reason = status_of(RefusalError(Reason.UNAVAILABLE, _FAILED)), "internal"
        else:
            return answer_bytes(answer)
        # Outside the except clauses, because an exception being handled keeps the body alive.
        self._refused(Refused(signal.value, reason, status[0].name, status[1]))
        if reason == Reason.ENCODING.value:
            await context.send_initial_metadata(())  # the core adds grpc-accept-encoding
        await context.abort(*status)
        raise AssertionError("abort raises")

    def _authenticate(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        if self._auth is None:
            return
        values = [value for name, value in metadata if name == "authorization"]
        if not self._auth.allows(only_value(values)):
            raise RefusalError(Reason.UNAUTHENTICATED, _UNAUTHENTICATED)

    async def _request(
        self,
        signal: ReceivedSignal,
        passed_headers: dict[str, str],
        coding: str,
        context: Any,
        reservation: Reservation,
    ) -> ReceivedRequest:
        timeout_s = self._limits.read_timeout_s
        body = await receive(context, self._turns, timeout_s, reservation)
        received_ns = time.time_ns()
        body = await inflated(body, coding, self._consumer.max_body_bytes, reservation)
        return ReceivedRequest(signal, BodyEncoding.PROTOBUF, body, received_ns, passed_headers)

    def _unknown(self, method: str) -> None:
        message = f"unknown method {method[:_LONGEST_SHOWN]!a}"
        self._refused(Refused(NO_SIGNAL, "path", grpc.StatusCode.UNIMPLEMENTED.name, message))


class _Services(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The methods of OTLP; gRPC itself answers UNIMPLEMENTED to calls of other methods.

    The methods are declared as client-streaming, because gRPC calls the handlers of such methods
    before it reads a message.
    """

    def __init__(
        self,
        export: Callable[[ReceivedSignal, Any], Awaitable[bytes]],
        unknown: Callable[[str], None],
    ) -> None:
        """`unknown` is called with the name of each method that is not served."""
        self._unknown = unknown
        self._handlers = {
            method: grpc.stream_unary_rpc_method_handler(_bound(export, signal))
            for method, signal in _METHODS.items()
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method; None if the method is not served."""
        handler = self._handlers.get(details.method)
        if handler is None:
            self._unknown(details.method)
        return handler


def _bound(
    export: Callable[[ReceivedSignal, Any], Awaitable[bytes]], signal: ReceivedSignal
) -> Any:
    async def handle(_messages: Any, context: Any) -> bytes:
        return await export(signal, context)

    return handle


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
