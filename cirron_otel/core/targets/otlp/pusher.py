"""Push serialized spans or metrics to an OTLP endpoint, unchanged.

A request is a serialized ExportTraceServiceRequest or ExportMetricsServiceRequest, which have the
same wire format as TracesData and MetricsData. In results, "spans" are points if the signal is
metrics.
The pusher splits it to a size that receivers accept, sends it, and retries it if the specification
calls the failure retryable. Delivery is at least once: if a response is lost, the endpoint may have
accepted the request.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from ....errors import InputError, MissingExtraError
from ...delivery.errors import PushError, PushResult, RefusedError, StoppedError, UnreachableError
from ...delivery.retry_policy import Backoff
from ...otlp.split import count_points, count_spans, halve_request, split_request
from .config import OtlpConfig, OtlpProtocol, Signal
from .request_limit import MIN_REQUEST_BYTES, RequestLimit
from .transport import OtlpTransport, Outcome, Response

MAX_REQUEST_BYTES = 4 * 1024 * 1024 - 64 * 1024
"""The maximum size in bytes of an uncompressed request. gRPC servers accept 4 MiB by default."""

DEADLINE_S = 60.0

_LONGEST_ATTEMPT_S = 86_400.0
_SHORTEST_WAIT_S = 0.05
"""The minimum wait in seconds after a failure, even if the server asks for a shorter one."""

_MOST_MESSAGES = 10

_HINTS = {
    "401": ("HEADERS",),
    "403": ("HEADERS",),
    "404": ("ENDPOINT",),
    "405": ("ENDPOINT",),
    "415": ("PROTOCOL", "COMPRESSION"),
    "UNAUTHENTICATED": ("HEADERS",),
    "PERMISSION_DENIED": ("HEADERS",),
    "UNIMPLEMENTED": ("ENDPOINT", "COMPRESSION"),
    "no TLS connection": ("ENDPOINT", "CERTIFICATE"),
    "UNAVAILABLE": ("ENDPOINT", "PROTOCOL", "CERTIFICATE"),
}
"""The settings that an error message suggests checking, by status."""


_COUNT = {Signal.TRACES: count_spans, Signal.METRICS: count_points}
_UNIT = {Signal.TRACES: "span", Signal.METRICS: "metric"}
"""The unit of a request that is never split."""


def transport_for(config: OtlpConfig) -> OtlpTransport:
    """Return the transport for `config`.

    Raises MissingExtraError if the extra `otlp` is not installed, and UsageError if a certificate
    or header is unusable.
    """
    try:
        if config.protocol is OtlpProtocol.GRPC:
            from .grpc_transport import GrpcTransport  # noqa: PLC0415 - needs the extra

            return GrpcTransport(config)
        from .http_transport import HttpTransport  # noqa: PLC0415 - needs the extra

        return HttpTransport(config)
    except ModuleNotFoundError as error:
        raise MissingExtraError("otlp", f"a push over OTLP {config.protocol}") from error


@dataclass(slots=True)
class _ResultBuilder:
    """Accumulates a PushResult."""

    accepted: int = 0
    rejected: int = 0
    messages: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    requests: int = 0
    refused: int = 0
    refusals: list[str] = field(default_factory=list)

    def accept(self, spans: int, response: Response) -> None:
        rejected = min(response.rejected_spans, spans)
        self.accepted += spans - rejected
        self.requests += 1
        self.rejected += rejected
        _note(self.messages, response.message)
        for warning in response.warnings:
            _note(self.warnings, warning)

    def refuse(self, spans: int, reason: str) -> None:
        self.refused += spans
        _note(self.refusals, reason)

    def result(self) -> PushResult:
        return PushResult(
            self.accepted,
            self.rejected,
            "; ".join(self.messages),
            tuple(self.warnings),
            self.requests,
            self.refused,
            "; ".join(self.refusals),
        )


def _note(known: list[str], text: str) -> None:
    if text and text not in known and len(known) < _MOST_MESSAGES:
        known.append(text)


@dataclass(slots=True)
class _Halved:
    """A request that was refused as too large, and is sent in halves."""

    accepted: list[int] = field(default_factory=list)
    """The sizes of the halves that the endpoint accepted, in bytes."""


class _Part(NamedTuple):
    data: bytes
    halved: _Halved | None = None
    """The refused request that this is a half of, if any."""


class Pusher:
    """Pushes requests to one endpoint.

    As a context manager, it closes its connections at the end.
    """

    def __init__(
        self,
        config: OtlpConfig,
        *,
        transport: OtlpTransport | None = None,
        deadline: float | None = DEADLINE_S,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        min_request_bytes: int = MIN_REQUEST_BYTES,
        backoff: Backoff | None = None,
        retry: bool = True,
        stop: threading.Event | None = None,
    ) -> None:
        """Prepare to push to the endpoint of `config`; `transport` replaces the default transport.

        A push ends after `deadline` seconds without an accepted request; None means no limit. Once
        `stop` is set, waits end, and a push makes no further attempt. Without `retry`, the first
        failed attempt ends the push, and the caller decides when to try again. Requests have
        `max_request_bytes` at most. If the endpoint refuses that size, the limit is reduced, but
        not below `min_request_bytes` (see RequestLimit). Raises MissingExtraError if the extra
        `otlp` is not installed, and UsageError if a certificate cannot be read.
        """
        self._config = config
        self._count = _COUNT[config.signal]
        self._transport = transport_for(config) if transport is None else transport
        self._deadline = float("inf") if deadline is None else deadline
        self._limit = RequestLimit(max_request_bytes, min_request_bytes)
        self._backoff = backoff or Backoff()
        self._retry = retry
        self._stop = stop or threading.Event()

    @property
    def max_request_bytes(self) -> int:
        """The maximum size in bytes of a request, reduced if the endpoint refused larger ones."""
        return self._limit.bytes

    def push(self, request: bytes) -> PushResult:
        """Send one serialized request, split into as many requests as necessary, in order.

        If the endpoint refuses a single span as too large, the others are still sent, and the
        result has a `refusal`; if there are no others, RefusedError is raised. Raises RefusedError,
        UnreachableError or StoppedError with the result so far, InputError if `request` has to be
        split but is not a protobuf message, and UsageError if no attempt can succeed with this
        configuration.
        """
        builder = _ResultBuilder()
        parts = deque(map(_Part, self._split(request)))
        while parts:
            part = parts.popleft()
            try:
                response = self._send(part.data, builder)
            except PushError as error:
                error.unsent = tuple(each.data for each in (part, *parts))
                raise
            except InputError as error:
                if not builder.requests:
                    raise
                builder.refuse(self._count(part.data), str(error))
                continue
            if response.outcome is Outcome.ACCEPTED:
                builder.accept(self._count(part.data), response)
                parts = self._after(part, parts)
            elif halves := halve_request(part.data):
                halved = _Halved()
                parts.extendleft(_Part(half, halved) for half in reversed(halves))
            else:
                builder.refuse(
                    self._count(part.data),
                    f"{self._refusal_text(response)}: a single {_UNIT[self._config.signal]} of"
                    f" {len(part.data)} bytes is too large",
                )
        if builder.refusals and not builder.requests:
            raise RefusedError("; ".join(builder.refusals), builder.result())
        return builder.result()

    def _split(self, request: bytes) -> list[bytes]:
        return split_request(request, self._limit.bytes) if request else []

    def _after(self, part: _Part, rest: deque[_Part]) -> deque[_Part]:
        """Learn from an accepted part; return the parts that remain, split to the new limit.

        If both halves of a refused request are accepted, its size was the reason for the refusal.
        Otherwise each later request would first be refused, so the limit is reduced. If only one
        half is accepted, the reason may be a span in the other half, whatever its size.
        """
        self._limit.accepted()
        if part.halved is None:
            return rest
        part.halved.accepted.append(len(part.data))
        if len(part.halved.accepted) < 2:
            return rest
        self._limit.reduce(max(part.halved.accepted))
        return deque(
            each if len(each.data) <= self._limit.bytes else _Part(piece)
            for each in rest
            for piece in self._split(each.data)
        )

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, part: bytes, builder: _ResultBuilder) -> Response:
        """Send a part until it is accepted or refused as too large. Raises the errors of `push`."""
        give_up = time.monotonic() + self._deadline
        informative: Response | None = None
        attempts = 0
        while True:
            self._check_stop(builder)
            left = give_up - time.monotonic()
            timeout = max(min(self._config.timeout, left, _LONGEST_ATTEMPT_S), 0.001)
            response = self._transport.send(part, timeout)
            if response.outcome in (Outcome.ACCEPTED, Outcome.TOO_LARGE):
                return response
            if response.outcome is Outcome.REFUSED:
                raise RefusedError(
                    f"{self._refusal_text(response)}{self._hint(response)}",
                    builder.result(),
                    status=response.status,
                )
            if informative is None or left >= self._config.timeout:
                informative = response  # the deadline may have shortened the last attempt
            wait = self._backoff.wait(attempts)
            attempts += 1
            if response.retry_after is not None:
                wait = max(response.retry_after, _SHORTEST_WAIT_S)
            if not self._retry or time.monotonic() + wait >= give_up:
                wait_text = "" if response.retry_after is None else f", asked to wait {wait:.0f} s"
                given_up = f": given up after {attempts} attempts" if self._retry else ""
                raise UnreachableError(
                    f"{self._refusal_text(informative)}{given_up}{wait_text}{self._hint(informative)}",
                    builder.result(),
                    status=informative.status,
                    retry_after=response.retry_after,
                )
            self._stop.wait(min(wait, threading.TIMEOUT_MAX))

    def _check_stop(self, builder: _ResultBuilder) -> None:
        if self._stop.is_set():
            raise StoppedError(
                f"stopped before {self._config.shown_endpoint} accepted everything",
                builder.result(),
            )

    def _refusal_text(self, response: Response) -> str:
        message = f" ({response.message})" if response.message else ""
        return f"{self._config.shown_endpoint} did not accept: {response.status}{message}"

    def _hint(self, response: Response) -> str:
        if response.status == "no answer":
            return "; check that a receiver listens there"
        names = _HINTS.get(response.status) or _HINTS.get(response.status[:3])
        return f"; check {self._config.settings.said(*names)}" if names else ""
