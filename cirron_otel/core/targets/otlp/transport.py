"""The seam between pushing and the network: one attempt at one request, and how it ended."""

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
from ....errors import UsageError
from .config import OtlpConfig

USER_AGENT = f"cirron-otel/{__version__}"

_LONGEST_MESSAGE = 300
_SHORTEST_SECRET = 4
"""Shorter header values are no secrets, and would garble the text that they are cut out of."""

_NOT_PRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_TOO_LARGE = re.compile(
    r"larger than max|exceeds (the )?max(imum)?( message)? size"
    r"|(body|entity|message|payload|request) (is )?too large"
    r"|batch size .{,40}exceeds ingestion limit",
    re.IGNORECASE,
)


class Outcome(Enum):
    """How one attempt ended."""

    ACCEPTED = auto()
    """Taken, perhaps not every span of it."""
    RETRY = auto()
    """Not taken now; the same request may be taken later."""
    TOO_LARGE = auto()
    """Not taken because of its size; its halves may be."""
    REFUSED = auto()
    """Not taken, and never will be."""


@dataclass(frozen=True, slots=True)
class Response:
    """What came of one attempt."""

    outcome: Outcome
    status: str
    """The status code in the protocol's words (`503 Service Unavailable`, `UNAVAILABLE`), or what
    happened instead (`no connection`)."""
    message: str = ""
    """The server's own words, in one line; those of its partial success where it accepted."""
    retry_after: float | None = None
    """Seconds that the server asked to wait, if it did."""
    rejected_spans: int = 0
    """Of an accepted request, the spans that were not taken."""
    warnings: tuple[str, ...] = ()
    """What the encoding could not carry."""


class OtlpTransport(Protocol):
    """Sends requests to one endpoint."""

    def send(self, request: bytes, timeout: float) -> Response:
        """Try once to send a serialized ExportTraceServiceRequest, for `timeout` seconds.

        Raises UsageError where the configuration makes every attempt vain.
        """

    def close(self) -> None:
        """Give up the connections."""


def accepted(status: str, body: ExportTraceServiceResponse) -> Response:
    """The response that `body` makes; a partial success counts only if it says something."""
    partial = body.partial_success
    return Response(
        Outcome.ACCEPTED,
        status,
        partial.error_message,
        rejected_spans=max(partial.rejected_spans, 0),
    )


def parse_response(body: bytes) -> ExportTraceServiceResponse | None:
    """`body` as the protobuf answer to an export; None where it is something else."""
    try:
        return ExportTraceServiceResponse.FromString(body)
    except DecodeError:
        return None


def is_about_size(message: str) -> bool:
    """Whether a server's message says that the request was too large.

    These are words of gRPC in C++ and Go, of Go's HTTP server, and of Tempo about a request that
    is larger than what it takes at once: no later time is any better for it.
    """
    return _TOO_LARGE.search(message) is not None


def one_line(text: str, config: OtlpConfig) -> str:
    """`text` as a message may show it: short, in one line, without any header's value."""
    values = config.headers.values()
    # A server may quote a token without the scheme before it.
    words = (word for value in values for word in value.split()[1:])
    return without_secrets(text, (*values, *words))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """`text` in one short line, `***` in the place of each of the `secrets`."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    text = _NOT_PRINTABLE.sub(" ", text).strip()
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


def retry_after_seconds(value: str) -> float | None:
    """What a Retry-After header says: seconds, or a date (RFC 9110, 10.2.3)."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def read_file(path: str | None, variable: str, config: OtlpConfig) -> bytes | None:
    """The certificate or key in `path`, which the setting `variable` names.

    Raises UsageError where it cannot be read.
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
    """The first cause of a failure in the network: what stands above it repeats the URL."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, TimeoutError):
        return "timed out"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
