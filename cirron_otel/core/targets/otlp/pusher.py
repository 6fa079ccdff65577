"""Pushing serialized spans to an OTLP endpoint, as they are to the bit.

A request is a serialized ExportTraceServiceRequest, which on the wire is the same as TracesData.
It is cut to what receivers take, sent, and sent again where the specification calls the failure
retryable. Delivery is at least once: an attempt whose answer was lost may have been accepted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ....errors import MissingExtraError
from ...delivery.errors import PushError, PushResult, RefusedError, StoppedError, UnreachableError
from ...delivery.retry_policy import Backoff
from ...otlp.split import count_spans, halve_request, split_request
from .config import OtlpConfig, Protocol
from .transport import OtlpTransport, Outcome, Response

MAX_REQUEST_BYTES = 4 * 1024 * 1024 - 64 * 1024
"""What a request may have uncompressed: gRPC servers take 4 MiB unless told otherwise."""

DEADLINE_S = 60.0

_LONGEST_ATTEMPT_S = 86_400.0
_SHORTEST_WAIT_S = 0.05
"""Even where a server asks for none: it did just fail."""

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
"""By status: the settings to look at."""


def transport_for(config: OtlpConfig) -> OtlpTransport:
    """The transport that `config` asks for. Raises MissingExtraError and UsageError."""
    try:
        if config.protocol is Protocol.GRPC:
            from .grpc_transport import GrpcTransport  # noqa: PLC0415 - needs the extra

            return GrpcTransport(config)
        from .http_transport import HttpTransport  # noqa: PLC0415 - needs the extra

        return HttpTransport(config)
    except ModuleNotFoundError as error:
        raise MissingExtraError("otlp", f"a push over OTLP {config.protocol}") from error


@dataclass(slots=True)
class _Tally:
    """A PushResult in the making."""

    accepted: int = 0
    rejected: int = 0
    messages: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    requests: int = 0

    def accept(self, spans: int, response: Response) -> None:
        rejected = min(response.rejected_spans, spans)
        self.accepted += spans - rejected
        self.requests += 1
        self.reject(rejected, response.message)
        for warning in response.warnings:
            _note(self.warnings, warning)

    def reject(self, spans: int, message: str) -> None:
        self.rejected += spans
        _note(self.messages, message)

    def result(self) -> PushResult:
        return PushResult(
            self.accepted,
            self.rejected,
            "; ".join(self.messages),
            tuple(self.warnings),
            self.requests,
        )


def _note(known: list[str], text: str) -> None:
    if text and text not in known and len(known) < _MOST_MESSAGES:
        known.append(text)


class Pusher:
    """Pushes requests to one endpoint; a context manager that closes its connections."""

    def __init__(
        self,
        config: OtlpConfig,
        *,
        transport: OtlpTransport | None = None,
        deadline: float | None = DEADLINE_S,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        backoff: Backoff | None = None,
        retry: bool = True,
        stop: threading.Event | None = None,
    ) -> None:
        """Push as `config` says; `transport` takes the place of the one that it asks for.

        `deadline` is how long, in seconds, a push goes on without a request being accepted;
        None: for ever. `stop`, once set, ends a push before its next attempt, and any wait.
        Without `retry` the first attempt that fails ends the push: the caller waits by himself.
        Raises MissingExtraError, and UsageError where a certificate cannot be read.
        """
        self._config = config
        self._transport = transport_for(config) if transport is None else transport
        self._deadline = float("inf") if deadline is None else deadline
        self._max_request_bytes = max_request_bytes
        self._backoff = backoff or Backoff()
        self._retry = retry
        self._stop = stop or threading.Event()

    @property
    def max_request_bytes(self) -> int:
        """What fits one request, as far as the endpoint has said until now."""
        return self._max_request_bytes

    def push(self, request: bytes) -> PushResult:
        """Send one serialized request, in as many as it takes, in order.

        A span that is too large for the endpoint even alone counts as rejected. Raises
        RefusedError, UnreachableError or StoppedError with what was accepted until then, InputError
        where `request` is no protobuf message and would have to be cut, and UsageError where the
        configuration makes every attempt vain.
        """
        tally = _Tally()
        parts = deque(split_request(request, self._max_request_bytes) if request else ())
        while parts:
            part = parts.popleft()
            try:
                response = self._send(part, tally)
            except PushError as error:
                error.unsent = (part, *parts)
                raise
            if response.outcome is Outcome.ACCEPTED:
                tally.accept(count_spans(part), response)
            elif halves := halve_request(part):
                parts = self._smaller(halves, parts)
            else:
                tally.reject(
                    count_spans(part),
                    f"{self._answered(response)}: a single span of {len(part)} bytes is too large",
                )
        if tally.rejected and not tally.requests:
            raise RefusedError("; ".join(tally.messages), tally.result())
        return tally.result()

    def _smaller(self, halves: tuple[bytes, bytes], rest: deque[bytes]) -> deque[bytes]:
        """What is still to be sent, now that the endpoint found the two halves together too large.

        The limit is kept for all that follows: else each request would be refused once.
        """
        self._max_request_bytes = min(self._max_request_bytes, max(map(len, halves)))
        return deque(
            part
            for request in (*halves, *rest)
            for part in split_request(request, self._max_request_bytes)
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

    def _send(self, part: bytes, tally: _Tally) -> Response:
        """Try until the answer is final: accepted, or too large; the errors are those of push."""
        give_up = time.monotonic() + self._deadline
        told: Response | None = None
        attempts = 0
        while True:
            self._check_stop(tally)
            left = give_up - time.monotonic()
            timeout = max(min(self._config.timeout, left, _LONGEST_ATTEMPT_S), 0.001)
            response = self._transport.send(part, timeout)
            if response.outcome in (Outcome.ACCEPTED, Outcome.TOO_LARGE):
                return response
            if response.outcome is Outcome.REFUSED:
                raise RefusedError(
                    f"{self._answered(response)}{self._hint(response)}",
                    tally.result(),
                    status=response.status,
                )
            if told is None or left >= self._config.timeout:
                told = response  # an attempt that the deadline cut short tells less
            wait = self._backoff.wait(attempts)
            attempts += 1
            if response.retry_after is not None:
                wait = max(response.retry_after, _SHORTEST_WAIT_S)
            if not self._retry or time.monotonic() + wait >= give_up:
                asked = "" if response.retry_after is None else f", asked to wait {wait:.0f} s"
                given_up = f": given up after {attempts} attempts" if self._retry else ""
                raise UnreachableError(
                    f"{self._answered(told)}{given_up}{asked}{self._hint(told)}",
                    tally.result(),
                    status=told.status,
                    retry_after=response.retry_after,
                )
            self._stop.wait(min(wait, threading.TIMEOUT_MAX))

    def _check_stop(self, tally: _Tally) -> None:
        if self._stop.is_set():
            raise StoppedError(
                f"stopped before {self._config.shown_endpoint} accepted everything",
                tally.result(),
            )

    def _answered(self, response: Response) -> str:
        said = f" ({response.message})" if response.message else ""
        return f"{self._config.shown_endpoint} did not accept: {response.status}{said}"

    def _hint(self, response: Response) -> str:
        if response.status == "no answer":
            return "; check that a receiver listens there"
        names = _HINTS.get(response.status) or _HINTS.get(response.status[:3])
        return f"; check {self._config.settings.said(*names)}" if names else ""
