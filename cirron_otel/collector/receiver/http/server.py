"""The HTTP server: OTLP and Cirron batches, snapshot files, and the operational endpoints.

Sources: OTLP specification 1.x, "OTLP/HTTP"; docs/cirron-http.md. It requires the extra
`collector`, so this module is imported only when it is needed.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from ....core.spool.blobs import BlobKey, tenant_key
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
from ..listening import Listener, target_error
from ..tenancy import tenant_of
from .answers import HttpError, Reply, cirron_reply, error_reply, of_refusal, otlp_reply
from .blobs import Uploads, UploadStore, blob_names
from .bodies import Bodies, HttpLimits, Room, encoding_of, json_signal
from .connections import ConnectionFactory, response_of
from .cors import Cors, is_preflight

_OTLP = {
    "/v1/traces": ReceivedSignal.TRACES,
    "/v1/metrics": ReceivedSignal.METRICS,
    "/v1/logs": ReceivedSignal.LOGS,
}
_CIRRON = "/api/traces"
_INGESTS = ("/v1/traces", _CIRRON)
_BLOBS = tuple(f"{ingest}/blobs/" for ingest in _INGESTS)
_OPERATION = frozenset(("/health", "/ready", "/metrics"))
_READING, _POST, _BLOB_METHODS = ("GET", "HEAD"), ("POST",), ("PUT", "HEAD")
_SIGNALS = {
    **{path: signal.value for path, signal in _OTLP.items()},
    _CIRRON: ReceivedSignal.CIRRON.value,
    "blobs": "blobs",
}

_HANG_UP = frozenset((401, 408, 413, 431))
"""After these statuses, the connection is closed and the rest of the body is not read."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperationEndpoints:
    """Callbacks that provide the content of /health, /ready and /metrics.

    They are called in the server's event loop.
    """

    live: Callable[[], str] = lambda: ""
    """Returns why the process must be restarted; an empty string while it works."""
    ready: Callable[[], str] = lambda: ""
    """Returns why requests cannot be accepted now; an empty string while they can."""
    metrics: Callable[[], tuple[bytes, str]] | None = None
    """Returns the metrics and their Content-Type."""


class HttpReceiver:
    """Serves HTTP on one listening socket; it can be started and stopped once."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        host: str = "localhost",
        port: int = 4318,
        tls: ssl.SSLContext | None = None,
        auth: Auth | None = None,
        limits: HttpLimits | None = None,
        health: OperationEndpoints | None = None,
        blobs: UploadStore | None = None,
        staging: Path | None = None,
        passed_headers: Collection[str] = KEPT_HEADERS,
        refused: Observer = ignore,
        cors: Cors | None = None,
        setting: str = "--http",
        is_operational_only: bool = False,
    ) -> None:
        """Store the arguments; `start` listens. Port 0 selects a free port.

        Without `auth`, every client is accepted; /health and /ready never need a token. Snapshot
        files are accepted if there is a store `blobs`; uploads in parts also need a directory
        `staging`. The headers in `passed_headers` are passed to the consumer, except credentials.
        `refused` is called with each refusal. Without `cors`, cross-origin requests from browsers
        are refused. `setting` names the setting of the address, for messages. With
        `is_operational_only`, only /health, /ready and /metrics are served. Raises TargetError if
        `staging` cannot be created.
        """
        self._setting, self._is_operational_only = setting, is_operational_only
        self._consumer, self._host, self._port = consumer, host, port
        self._tls, self._auth = tls, auth
        self._limits = limits or HttpLimits()
        self._health = health or OperationEndpoints()
        self._refused, self._cors = refused, cors or Cors()
        self._bodies = Bodies(consumer, self._limits)
        self.pass_on(passed_headers)
        try:
            self._uploads = Uploads(blobs, self._limits, staging) if blobs is not None else None
        except OSError as error:
            why = error.strerror or error
            raise TargetError(f"parts of files cannot be stored in {staging}: {why}") from None
        self._connections: ConnectionFactory | None = None
        self._listener: Listener | None = None
        self._is_stopping = False
        self.answered: Counter[tuple[str, int]] = Counter()
        """The number of responses by route and status. Unknown paths have the route `-`."""

    def pass_on(self, names: Collection[str]) -> None:
        """Set the headers that are stored with subsequent requests."""
        self._header_filter = KeptHeaders(names)

    async def start(self) -> tuple[str, int]:
        """Listen; return the address. Raises TargetError if that is not possible."""
        connections = ConnectionFactory(self._answer, self._limits, self._refused_garbage)
        listener, limits = Listener(connections, self._refused), self._limits
        try:
            address = await listener.start(
                self._host, self._port, min(limits.connections, 1024), self._tls, limits.grace_s
            )
        except OSError as error:
            raise target_error(self._host, self._port, error, self._setting) from None
        self._connections, self._listener = connections, listener
        if self._uploads is not None:
            self._uploads.start()
        return address

    async def stop(self, grace_s: float) -> None:
        """Stop accepting connections, and give open requests `grace_s` seconds to finish.

        Requests still open after that are cut off without a response, so their senders will retry.
        """
        self._is_stopping = True
        if self._uploads is not None:
            self._uploads.stop()
        if self._listener is not None:
            self._listener.close()
        if self._connections is not None:
            left = await self._connections.drain(grace_s)
            self._connections = None
            if left:
                _logger.warning("%d HTTP requests were cut off", left)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        route = _route(path)
        is_crowded = self._connections is not None and self._connections.is_crowded
        reply = await self._reply(request, route, path, is_crowded=is_crowded)
        self.answered[route, reply.status] += 1
        response = response_of(reply)
        if route in _SIGNALS:
            response.headers.update(self._cors.answer_headers(request.headers.get("Origin")))
        is_hung_up = reply.status in _HANG_UP and request.can_read_body
        if self._is_stopping or is_crowded or is_hung_up:
            response.force_close()
        return response

    async def _reply(
        self, request: web.BaseRequest, route: str, path: str, *, is_crowded: bool
    ) -> Reply:
        try:
            if is_crowded and route not in _OPERATION:
                message = "the limit of connections is reached"
                raise HttpError(503, message, {"Retry-After": "1"}, reason="connections")
            return await self._routed(request, route, path)
        except HttpError as error:
            failure = error
        except RefusalError as error:
            failure = of_refusal(error)
        except Exception:
            # 503, because clients do not retry after 500: an internal error must not lose data.
            _logger.exception("a request to %s failed", route)
            message = "an internal error: try again later"
            failure = HttpError(503, message, {"Retry-After": "5"}, reason="internal")
        self._observe(route, failure)
        return error_reply(failure, _answered_in(request))

    async def _routed(self, request: web.BaseRequest, route: str, path: str) -> Reply:
        if self._is_operational_only and route not in _OPERATION:
            raise HttpError(404, "no requests are accepted at this path")
        if self._cors.origins and is_preflight(request.method, request.headers):
            if route not in _SIGNALS:
                raise HttpError(404, "no requests are accepted at this path")
            methods = _BLOB_METHODS if route == "blobs" else _POST
            return self._cors.preflight(request.headers, methods)
        if route in _OTLP or route == _CIRRON:
            self._check(request, _POST)
            return await self._export(request, route)
        if route == "blobs" and self._uploads is not None:
            self._check(request, _BLOB_METHODS)
            key = BlobKey(*blob_names(path.partition("/blobs/")[2]))
            headers = self._header_filter.select(request.headers.items())
            key = tenant_key(key, tenant_of(tuple(sorted(headers.items()))))
            if request.method == "HEAD":
                return await self._uploads.head(*key)
            return await self._uploads.put(request, *key)
        if route in _OPERATION:
            return self._operation(request, route)
        raise HttpError(404, "no requests are accepted at this path")

    def _check(
        self, request: web.BaseRequest, methods: tuple[str, ...], *, is_open: bool = False
    ) -> None:
        if request.method not in methods:
            allowed = ", ".join(methods)
            raise HttpError(405, f"expected {allowed}", {"Allow": allowed})
        if self._auth is None or is_open:
            return
        if not self._auth.allows(only_value(request.headers.getall("Authorization", []))):
            raise RefusalError(
                Reason.UNAUTHENTICATED,
                "expected `Authorization: Bearer <token>` with an accepted token",
            )

    async def _export(self, request: web.BaseRequest, route: str) -> Reply:
        received_ns = time.time_ns()
        encoding = encoding_of(request.headers.get("Content-Type"))
        signal = _OTLP.get(route, ReceivedSignal.CIRRON)
        if signal is ReceivedSignal.CIRRON and encoding is not BodyEncoding.JSON:
            raise HttpError(415, "Cirron batches must be sent as application/json")
        headers = self._header_filter.select(request.headers.items())
        with Room(self._consumer) as room:
            body = await self._bodies.read(request, room)
            if encoding is BodyEncoding.JSON and signal is ReceivedSignal.TRACES:
                signal = json_signal(body)
            answer = await self._consumer.consume(
                ReceivedRequest(signal, encoding, body, received_ns, headers)
            )
        if signal is ReceivedSignal.CIRRON:
            return cirron_reply(answer)
        return otlp_reply(answer, signal, encoding)

    def _operation(self, request: web.BaseRequest, route: str) -> Reply:
        self._check(request, _READING, is_open=route != "/metrics")
        if route == "/metrics":
            if self._health.metrics is None:
                raise HttpError(404, "the metrics endpoint is disabled")
            body, media_type = self._health.metrics()
            return Reply(200, body, media_type)
        why = self._health.live() if route == "/health" else self._health.ready()
        if why:
            raise HttpError(503, why, {"Retry-After": "1"})
        return Reply(200, b'{"status": "ok"}')

    def _observe(self, route: str, failure: HttpError) -> None:
        """Report a refusal to the observer, except a 404 or 503 of an operational endpoint."""
        if route in _OPERATION and failure.status in (404, 503):
            return
        signal = _SIGNALS.get(route, NO_SIGNAL)
        self._refused(Refused(signal, failure.reason, str(failure.status), failure.message))

    def _refused_garbage(self, refused: Refused) -> None:
        if refused.status.isdigit():  # else closed without a response
            self.answered[NO_SIGNAL, int(refused.status)] += 1
        self._refused(refused)


def _answered_in(request: web.BaseRequest) -> BodyEncoding:
    """Return the encoding of an error response: that of the request, or JSON if it is unknown."""
    try:
        return encoding_of(request.headers.get("Content-Type"))
    except HttpError:
        return BodyEncoding.JSON


def _route(path: str) -> str:
    if path in _OTLP or path == _CIRRON or path in _OPERATION:
        return path
    return "blobs" if path.startswith(_BLOBS) else "-"
