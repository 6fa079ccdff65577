"""The receivers of a collector, which are started, reloaded and stopped together.

The module also counts and logs the requests that they accept and refuse.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.importers.traceml.framing import MAX_FRAME_BYTES
from ..receiver.auth import TokenGate, Tokens
from ..receiver.blob_directory import DirectoryBlobs
from ..receiver.consumer import (
    Consumer,
    ConsumeResult,
    Reason,
    ReceivedRequest,
    RefusalError,
    Refused,
)
from ..receiver.journal.files import PARTS, intake_directory
from ..receiver.traceml_storing import FILE_NAME as TRACEML_STATE
from . import descriptors
from . import metrics as m
from .checks import wanted_connections
from .metrics import Registry
from .options import CollectorOptions
from .readiness import Readiness
from .receiver_options import ServerTlsOptions
from .values import ListenAddress

if TYPE_CHECKING:
    from ...core.spool.paths import SpoolPaths
    from ..receiver.consumer import Consumer
    from ..receiver.traceml_forwarding import TracemlForwarder
    from ..receiver.traceml_server import TracemlReceiver
    from .metrics import Registry
    from .readiness import Readiness


logger = logging.getLogger(__name__)

_HEALTH_CONNECTIONS = 48
"""The maximum number of connections to `health.address`, a part of `descriptors.RESERVED`."""


class RefusalCounts:
    """Counts and logs the refusals of one receiver."""

    def __init__(self, registry: Registry, transport: str) -> None:
        self._registry, self._transport = registry, transport

    def __call__(self, refused: Refused) -> None:
        """Count a refusal, and log it unless a similar one was logged within the last minute."""
        transport, signal, reason = self._transport, refused.signal, refused.reason
        self._registry.add(m.REFUSED_REQUESTS, 1, transport, signal, reason)
        fields = {
            "transport": transport,
            "signal": signal,
            "reason": reason,
            "status": refused.status,
        }
        # The log handler suppresses repeats of a cause within a minute, and logs their number.
        logger.warning(
            "a request was refused: %s",
            refused.message,
            extra={"fields": fields, "cause": f"refused {transport} {signal} {reason}"},
        )


class CountingConsumer:
    """Passes requests to another consumer, and counts the accepted requests."""

    def __init__(
        self, inner: Consumer, registry: Registry, transport: str, readiness: Readiness
    ) -> None:
        self._inner, self._registry, self._transport = inner, registry, transport
        self._readiness = readiness

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the inner consumer accepts, bytes."""
        return self._inner.max_body_bytes

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes for a body; False if there is no room."""
        return self._inner.reserve(size)

    def release(self, size: int) -> None:
        """Release `size` reserved bytes."""
        self._inner.release(size)

    async def consume(self, request: ReceivedRequest) -> ConsumeResult:
        """Consume and count a request. Raises RefusalError as the inner consumer does."""
        labels = (self._transport, request.signal.value)
        begun = time.monotonic()
        try:
            answer = await self._inner.consume(request)
        except RefusalError as error:
            if error.reason is Reason.UNAVAILABLE:
                self._readiness.note(is_kept=False)
            raise
        self._readiness.note(is_kept=True)
        self._registry.add(m.RECEIVED_REQUESTS, request.count, *labels)
        if answer.rejected:
            self._registry.add(m.REJECTED_RECORDS, answer.rejected, *labels)
        self._registry.add(m.RECEIVED_BYTES, len(request.body), *labels)
        self._registry.observe(m.REQUEST_SECONDS, time.monotonic() - begun, *labels)
        return answer


class Listeners:
    """The receivers for gRPC, HTTP and TraceML; one without a configured address is not started."""

    def __init__(
        self,
        options: CollectorOptions,
        exporter: Consumer,
        registry: Registry,
        readiness: Readiness,
        paths: SpoolPaths,
    ) -> None:
        """Store the arguments; `start` creates the receivers and makes them listen."""
        self._options, self._exporter = options, exporter
        self._registry, self._readiness, self._paths = registry, readiness, paths
        self._gate = TokenGate(None)
        self._receivers: list[Any] = []
        self._reloads: list[Callable[[], None]] = []
        """Functions that reload the certificates of one receiver. They raise UsageError."""
        self.addresses: dict[str, str] = {}
        """The address of each receiver, by its name: `grpc`, `http` or `traceml`."""
        self._traceml: TracemlReceiver | None = None

    async def start(self, unready: Callable[[], str]) -> None:
        """Listen; `unready` returns why requests cannot be accepted now, or an empty string.

        Raises UsageError and TargetError; the caller then stops the receivers that were started.
        """
        receivers = self._options.receivers
        configured = wanted_connections(self._options)
        connections = descriptors.fitting(configured, descriptors.raise_limit())
        self._gate.tokens = _tokens(self._options)
        if receivers.grpc.address is not None:
            await self._add("grpc", self._grpc(connections.grpc))
        if receivers.http.address is not None:
            await self._add("http", self._http(connections.http, unready))
        if self._options.health.address is not None:
            await self._add("health", self._health(self._options.health.address, unready))
        for result in ("sent", "dropped"):
            self._registry.add(m.FORWARDED_FRAMES, 0, result)
        if receivers.traceml.address is not None:
            self._traceml = self._traceml_receiver(connections.traceml)
            await self._listen("traceml", self._traceml)
        elif (intake_directory(self._paths.state) / TRACEML_STATE).exists():
            await self._end_traceml()

    def apply(self, options: CollectorOptions) -> Callable[[], None]:
        """Read tokens and certificates again; return a function that applies the new options.

        Raises UsageError if a file is invalid. The tokens are then unchanged, but a receiver may
        already use its new certificates.
        """
        tokens = _tokens(options)
        for reload in self._reloads:
            reload()

        def commit() -> None:
            self._options = options
            self._gate.tokens = tokens
            for receiver in self._receivers:
                receiver.pass_on(options.receivers.headers.pass_)
            if self._traceml is not None:
                self._traceml.allow = options.receivers.traceml.allow

        return commit

    async def stop(self, grace_s: float) -> None:
        """Stop the receivers in turn; each has `grace_s` seconds to finish its requests."""
        for receiver in self._receivers:
            await receiver.stop(grace_s)
        if self._traceml is not None:
            await self._traceml.stop(grace_s)

    async def _add(self, name: str, receiver: Any) -> None:
        await self._listen(name, receiver)
        self._receivers.append(receiver)

    async def _listen(self, name: str, receiver: Any) -> None:
        host, port = await receiver.start()
        self.addresses[name] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _counted(self, transport: str) -> CountingConsumer:
        return CountingConsumer(self._exporter, self._registry, transport, self._readiness)

    def _grpc(self, connections: int) -> Any:
        from ..receiver.grpc.certificates import GrpcTls  # noqa: PLC0415
        from ..receiver.grpc.server import GrpcLimits, GrpcReceiver  # noqa: PLC0415

        section, address = self._options.receivers.grpc, self._options.receivers.grpc.address
        assert address is not None  # noqa: S101 - start() checks it
        keepalive = section.keepalive
        tls = (
            None
            if section.tls is None
            else GrpcTls(section.tls.cert, section.tls.key, section.tls.client_ca)
        )
        if tls is not None:
            self._reloads.append(tls.reload)
        return GrpcReceiver(
            self._counted("grpc"),
            host=address.host,
            port=address.port,
            tls=tls,
            auth=self._gate,
            limits=GrpcLimits(
                streams=section.max_concurrent_streams,
                connections=connections,
                read_timeout_s=self._options.limits.request_seconds,
                ping_interval_s=keepalive.min_time_s,
                keepalive_s=keepalive.time_s,
                connection_age_s=keepalive.max_connection_age_s,
                connection_grace_s=keepalive.max_connection_age_grace_s,
            ),
            headers=self._options.receivers.headers.pass_,
            refused=RefusalCounts(self._registry, "grpc"),
            sockets=self._paths.state,
        )

    def _http(self, connections: int, unready: Callable[[], str]) -> Any:
        from ..receiver.http.bodies import HttpLimits  # noqa: PLC0415 - imports aiohttp
        from ..receiver.http.cors import Cors  # noqa: PLC0415
        from ..receiver.http.server import HttpReceiver  # noqa: PLC0415

        section, address = self._options.receivers.http, self._options.receivers.http.address
        assert address is not None  # noqa: S101 - start() checks it
        options = self._options
        return HttpReceiver(
            self._counted("http"),
            host=address.host,
            port=address.port,
            tls=self._context(section.tls),
            auth=self._gate,
            limits=HttpLimits(
                request_s=options.limits.request_seconds,
                idle_s=section.idle_s,
                connections=connections,
                upload_bytes=options.limits.upload_bytes,
                unfinished_bytes=options.spool.max_bytes // 2,
            ),
            health=self._endpoints(unready),
            passed_headers=options.receivers.headers.pass_,
            refused=RefusalCounts(self._registry, "http"),
            cors=Cors(
                section.cors.allowed_origins, section.cors.allowed_headers, section.cors.max_age
            ),
            blobs=DirectoryBlobs(self._paths.snapshots),
            staging=intake_directory(self._paths.state) / PARTS,
        )

    def _health(self, address: ListenAddress, unready: Callable[[], str]) -> Any:
        from ..receiver.http.bodies import HttpLimits  # noqa: PLC0415 - imports aiohttp
        from ..receiver.http.server import HttpReceiver  # noqa: PLC0415

        return HttpReceiver(
            self._counted("http"),
            host=address.host,
            port=address.port,
            auth=self._gate,
            limits=HttpLimits(connections=_HEALTH_CONNECTIONS),
            health=self._endpoints(unready),
            refused=RefusalCounts(self._registry, "http"),
            setting="health.address",
            is_operational_only=True,
        )

    def _endpoints(self, unready: Callable[[], str]) -> Any:
        from ..receiver.http.server import OperationEndpoints  # noqa: PLC0415

        options = self._options
        return OperationEndpoints(
            live=_alive if options.health.enabled else _disabled,
            ready=unready if options.health.enabled else _disabled,
            metrics=self._registry.render if options.metrics.prometheus else None,
        )

    def _traceml_receiver(self, connections: int) -> TracemlReceiver:
        from ..receiver.traceml_server import TracemlLimits, TracemlReceiver  # noqa: PLC0415

        section, limits = self._options.receivers.traceml, self._options.limits
        assert section.address is not None  # noqa: S101 - start() checks it
        return TracemlReceiver(
            self._counted("traceml"),
            host=section.address.host,
            port=section.address.port,
            allow=section.allow,
            limits=TracemlLimits(
                connections=connections,
                idle_s=section.idle_s,
                frame_s=limits.request_seconds,
                frame_bytes=min(limits.request_bytes, MAX_FRAME_BYTES),
                held_bytes=limits.in_flight_bytes // 2,
            ),
            refused=RefusalCounts(self._registry, "traceml"),
            forwarder=self._forwarder(),
        )

    async def _end_traceml(self) -> None:
        from ..receiver.traceml_server import end_earlier_connections  # noqa: PLC0415

        with contextlib.suppress(RefusalError):  # the next start ends them
            await end_earlier_connections(self._exporter)

    def _forwarder(self) -> TracemlForwarder | None:
        from ..receiver.traceml_forwarding import TracemlForwarder  # noqa: PLC0415 - only if used

        address, registry = self._options.receivers.traceml.forward, self._registry
        if address is None:
            return None

        def note(is_sent: bool, frames: int, reason: str) -> None:
            registry.add(m.FORWARDED_FRAMES, frames, "sent" if is_sent else "dropped")
            if not is_sent:
                logger.warning(
                    "%d frames were not forwarded to TraceML's aggregator at %s: %s",
                    frames,
                    address,
                    reason,
                    extra={"cause": "traceml forward"},
                )

        return TracemlForwarder(address.host, address.port, note)

    def _context(self, tls: ServerTlsOptions | None) -> Any:
        from ..receiver.tls import add_client_ca, reload_certificate, server_context  # noqa: PLC0415

        if tls is None:
            return None
        context = server_context(tls.cert, tls.key, tls.client_ca)

        def reload() -> None:
            reload_certificate(context, tls.cert, tls.key)
            if tls.client_ca is not None:
                add_client_ca(context, tls.client_ca)

        self._reloads.append(reload)
        return context


def _alive() -> str:
    return ""


def _disabled() -> str:
    from ..receiver.http.answers import HttpError  # noqa: PLC0415 - only if it is used

    raise HttpError(404, "the health endpoints are disabled")


def _tokens(options: CollectorOptions) -> Tokens | None:
    auth = options.receivers.auth
    if not auth.tokens and auth.tokens_file is None:
        return None
    return Tokens([token.reveal() for token in auth.tokens], auth.tokens_file)
