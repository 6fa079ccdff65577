"""The interface between the pusher and the network: one attempt to send, and its result."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ...._version import __version__
from ....errors import UsageError, root_cause
from .config import OtlpConfig

USER_AGENT = f"cirron-otel/{__version__}"

_LONGEST_MESSAGE = 300
_SHORTEST_SECRET = 4
"""The minimum length of a secret: removing shorter header values would garble the text."""

_NOT_PRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_TOO_LARGE = re.compile(
    r"larger than max|exceeds (the )?max(imum)?( message)? size"
    r"|(body|entity|message|payload|request) (is )?too large"
    r"|batch size .{,40}exceeds ingestion limit",
    re.IGNORECASE,
)


class Outcome(Enum):
    """The outcomes of one attempt."""

    ACCEPTED = auto()
    """The endpoint accepted the request, although it may have rejected some spans."""
    RETRY = auto()
    """The endpoint did not accept the request, but may accept the same request later."""
    TOO_LARGE = auto()
    """The endpoint refused the request because of its size, but may accept its halves."""
    REFUSED = auto()
    """The endpoint will never accept the request."""


@dataclass(frozen=True, slots=True)
class Response:
    """The result of one attempt."""

    outcome: Outcome
    status: str
    """The protocol's status (`503 Service Unavailable`, `UNAVAILABLE`), or, if there was no
    response, the reason (`no answer`).
    """
    message: str = ""
    """The server's message, as one line. For an accepted request, the message of its partial
    success.
    """
    retry_after: float | None = None
    """The wait in seconds that the server asked for, if any."""
    rejected_spans: int = 0
    """The number of spans that the endpoint rejected although it accepted the request."""
    warnings: tuple[str, ...] = ()
    """Descriptions of values that the encoding cannot express, and of unreadable responses."""


class OtlpTransport(Protocol):
    """Sends requests to one endpoint."""

    def send(self, request: bytes, timeout: float) -> Response:
        """Try once to send a serialized ExportTraceServiceRequest, for at most `timeout` seconds.

        Raises UsageError if no attempt can succeed with this configuration.
        """

    def close(self) -> None:
        """Close the connections."""


def accepted(status: str, body: ExportTraceServiceResponse) -> Response:
    """Return the result for an accepted request whose response is `body`."""
    partial = body.partial_success
    return Response(
        Outcome.ACCEPTED,
        status,
        partial.error_message,
        rejected_spans=max(partial.rejected_spans, 0),
    )


def parse_response(body: bytes) -> ExportTraceServiceResponse | None:
    """Parse a protobuf response to an export; return None if `body` is not valid."""
    try:
        return ExportTraceServiceResponse.FromString(body)
    except DecodeError:
        return None


def is_about_size(message: str) -> bool:
    """Return whether a server's message means that the request was too large.

    The patterns match the messages of gRPC in C++ and Go, of Go's HTTP server, and of Tempo for a
    request above its limit, which Tempo would not accept later either.
    """
    return _TOO_LARGE.search(message) is not None


def one_line(text: str, config: OtlpConfig) -> str:
    """Return `text` as one short line for a message, with header values masked."""
    values = config.headers.values()
    # A server may quote a token without its scheme.
    words = (word for value in values for word in value.split()[1:])
    return without_secrets(text, (*values, *words))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return `text` as one short line, with each of the `secrets` replaced by `***`."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    text = _NOT_PRINTABLE.sub(" ", text).strip()
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


def retry_after_seconds(value: str) -> float | None:
    """Return the seconds in a Retry-After header: a number or a date (RFC 9110, 10.2.3)."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def read_file(path: str | None, variable: str, config: OtlpConfig) -> bytes | None:
    """Read the certificate or key at `path`, the value of the setting `variable`.

    Raises UsageError if the file cannot be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{config.settings.said(variable)} names {path}, which cannot be read:"
            f" {error.strerror or error}"
        ) from None


def cause_of(error: BaseException) -> str:
    """Describe the root cause of a network failure."""
    error = root_cause(error)
    if isinstance(error, TimeoutError):
        return "timed out"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
