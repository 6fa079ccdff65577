"""The interface between the gRPC and HTTP servers and the consumer of their requests.

It defines the requests, their results, and the reasons for refusing them. The statuses that servers
return for these reasons follow the OTLP specification ("OTLP/gRPC Response", "OTLP/HTTP Response",
opentelemetry.io/docs/specs/otlp/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

NO_SIGNAL: Final = "-"
"""The `signal` of a refused connection, and of a request to an unknown path or method."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One refused request or connection."""

    signal: str
    """`traces`, `metrics`, `logs`, `cirron`, `traceml`, `blobs` or NO_SIGNAL."""
    reason: str
    """A value of `Reason`, or a reason specific to gRPC or HTTP."""
    status: str
    """The status that the client receives: an HTTP status number or the name of a gRPC code."""
    message: str
    """The text that the client receives."""


Observer = Callable[[Refused], None]
"""Called in the server's event loop for every refusal; it must not raise."""


def ignore(refused: Refused) -> None:
    """Ignore the refusal: the default observer."""
    del refused


class ReceivedSignal(Enum):
    """The kind of data in a request."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"
    CIRRON = "cirron"
    """A batch of the Cirron wire schema."""
    TRACEML = "traceml"
    """Frames of TraceML's connections (`traceml_groups`)."""


class BodyEncoding(Enum):
    """The encoding of a request's body."""

    PROTOBUF = "protobuf"
    JSON = "json"
    FRAMES = "frames"
    """A group of TraceML's frames."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request in the form in which it is stored: its decompressed body, byte for byte, and its
    headers.
    """

    signal: ReceivedSignal
    encoding: BodyEncoding
    body: bytes
    received_ns: int
    """Time of arrival, Unix ns."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The retained headers, by lower-case name. They identify the tenant and the run; credentials
    are never retained."""
    count: int = 1
    """The number of requests that are counted; of a group of TraceML's frames, the number of
    frames."""


@dataclass(frozen=True, slots=True)
class ConsumeResult:
    """The outcome of storing a request, for the response to the client."""

    rejected: int = 0
    """Number of rejected elements (spans, log records, data points); all other elements were
    stored."""
    message: str = ""
    """The reason for the rejection, or a warning."""
    batch_id: str = ""
    """The id of the batch, if the request is a Cirron batch."""
    is_duplicate: bool = False


class Reason(Enum):
    """The reason for refusing a request; each reason has an HTTP status and a gRPC status."""

    INVALID = "invalid"
    """Bad data: 400, INVALID_ARGUMENT. The client must not retry."""
    TOO_LARGE = "too_large"
    """Too many bytes or elements: 413, RESOURCE_EXHAUSTED without RetryInfo."""
    BUSY = "busy"
    """Temporary overload: 429, UNAVAILABLE with RetryInfo."""
    UNAVAILABLE = "unavailable"
    """Nothing can be stored now (disk full, shutdown): 503, UNAVAILABLE with RetryInfo."""
    UNSUPPORTED = "unsupported"
    """A signal that this collector does not accept: 404, UNIMPLEMENTED."""
    HEADERS = "headers"
    """A retained header is repeated, or its value is invalid: 400, INVALID_ARGUMENT."""
    UNAUTHENTICATED = "unauthenticated"
    """The token is missing or not accepted, or there are several: 401, UNAUTHENTICATED."""
    ENCODING = "encoding"
    """The compression is not supported: 415, UNIMPLEMENTED."""
    MALFORMED = "malformed"
    """The client violates the protocol below the body: 400, INTERNAL."""


class RefusalError(Exception):
    """The request is refused, and no part of it is stored."""

    def __init__(self, reason: Reason, message: str, retry_after_s: float | None = None) -> None:
        """`message` is for the client, which may retry after `retry_after_s` seconds."""
        super().__init__(message)
        self.reason, self.message, self.retry_after_s = reason, message, retry_after_s


class Consumer(Protocol):
    """Receives the requests of all servers; called in the servers' event loop."""

    async def consume(self, request: ReceivedRequest) -> ConsumeResult:
        """Store a request: when this returns, the request survives a power cut.

        Raises RefusalError if the request is not stored; it raises no other exception.
        """

    @property
    def max_body_bytes(self) -> int:
        """The size of the largest accepted body after decompression, bytes."""

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes for a body in flight until `release`; False if there is no room."""

    def release(self, size: int) -> None:
        """Release reserved bytes."""
