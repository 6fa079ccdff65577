"""The seam between the servers and what takes their requests: one `export` path behind them all.

The rules for statuses are those of the OTLP specification ("OTLP/gRPC Response", "OTLP/HTTP
Response", opentelemetry.io/docs/specs/otlp/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class ReceivedSignal(Enum):
    """What a request is about."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"
    CIRRON = "cirron"
    """A batch of the Cirron wire schema."""


class BodyEncoding(Enum):
    """How its body is written."""

    PROTOBUF = "protobuf"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it is to be kept: the very bytes, decompressed."""

    signal: ReceivedSignal
    encoding: BodyEncoding
    body: bytes
    received_ns: int
    """When it arrived, Unix ns."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that say whose it is (tenant, run), by lower-case name; never credentials."""


@dataclass(frozen=True, slots=True)
class ConsumeResult:
    """It is kept: what is left to be said to the client."""

    rejected: int = 0
    """Elements (spans, records, points) that were not taken; the rest was."""
    message: str = ""
    """Why, or a warning."""
    batch_id: str = ""
    """Of a Cirron batch: its own."""
    is_duplicate: bool = False


class Reason(Enum):
    """Why a request is not taken; each transport has its own status for it."""

    INVALID = "invalid"
    """Bad data: 400, INVALID_ARGUMENT. Never to be sent again."""
    TOO_LARGE = "too_large"
    """More bytes or elements than are taken at once: 413, RESOURCE_EXHAUSTED without RetryInfo."""
    BUSY = "busy"
    """Not now: 429, UNAVAILABLE with RetryInfo."""
    UNAVAILABLE = "unavailable"
    """Nothing can be kept now (disk full, going down): 503, UNAVAILABLE with RetryInfo."""
    UNSUPPORTED = "unsupported"
    """A signal that is not taken here: 404, UNIMPLEMENTED."""
    HEADERS = "headers"
    """A kept header is repeated, or its value is invalid: 400, INVALID_ARGUMENT."""
    UNAUTHENTICATED = "unauthenticated"
    """The token is missing or not accepted, or there are several: 401, UNAUTHENTICATED."""
    ENCODING = "encoding"
    """The compression is not supported: 415, UNIMPLEMENTED."""


class RefusalError(Exception):
    """A request is not taken, and nothing of it is kept."""

    def __init__(self, reason: Reason, message: str, retry_after_s: float | None = None) -> None:
        """`message` is for the client; `retry_after_s` is when it may try again, seconds."""
        super().__init__(message)
        self.reason, self.message, self.retry_after_s = reason, message, retry_after_s


class Consumer(Protocol):
    """What all servers hand their requests to; it is called in the servers' event loop."""

    async def consume(self, request: ReceivedRequest) -> ConsumeResult:
        """Keep it: when this returns, the request outlives a power cut.

        Raises RefusalError where it is not kept; nothing else.
        """

    @property
    def max_body_bytes(self) -> int:
        """The largest decompressed body that is taken."""

    def reserve(self, size: int) -> bool:
        """Whether there is room for `size` more bytes in flight: they count until `release`."""

    def release(self, size: int) -> None:
        """Bytes that were reserved are in flight no more."""
