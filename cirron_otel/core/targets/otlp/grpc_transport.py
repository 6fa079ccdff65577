"""The transport for OTLP/gRPC, with one unary call per attempt.

Source: OTLP specification, "OTLP/gRPC". This module needs the extra `otlp`, so it is imported only
when it is used.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from ....errors import UsageError
from .config import OtlpCompression, OtlpConfig, Signal
from .fork_gate import ForkGate
from .transport import (
    USER_AGENT,
    Outcome,
    Response,
    accepted,
    is_about_size,
    one_line,
    parse_response,
    read_file,
)

# grpc imports this module with the first channel. A fork during the import would leave the child
# with a partly imported module.
with contextlib.suppress(ImportError):
    import_module("grpc._channel")

_EXPORT = {
    Signal.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    Signal.METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}

_RETRYABLE = frozenset(
    (
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    )
)
"""The status codes that the OTLP specification calls retryable ("Failures").

RESOURCE_EXHAUSTED is not among them: it is retryable only with a RetryInfo.
"""

_NEVER_AVAILABLE = re.compile(r"handshake failed|CERTIFICATE|SSL_ERROR|http1\.x server", re.I)
"""Matches gRPC's description of an UNAVAILABLE connection that no retry can establish."""

gate = ForkGate()
"""The gate for every gRPC call of this package, including metrics."""

_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")

_OPTIONS = (
    ("grpc.primary_user_agent", USER_AGENT),
    # A new channel must open a new connection instead of sharing the backoff of the old one.
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcTransport:
    """Calls Export on one target over one channel, which is replaced if the connection is lost."""

    def __init__(self, config: OtlpConfig) -> None:
        """Prepare the transport for `config`.

        Raises UsageError if a certificate cannot be read or gRPC cannot send a header.
        """
        self._config = config
        self._metadata = tuple(_metadatum(*each, config) for each in config.headers.items())
        self._credentials: grpc.ChannelCredentials | None = None
        if not config.insecure:
            self._credentials = grpc.ssl_channel_credentials(
                read_file(config.certificate, "CERTIFICATE", config),
                read_file(config.client_key, "CLIENT_KEY", config),
                read_file(config.client_certificate, "CLIENT_CERTIFICATE", config),
            )
        self._channel: grpc.Channel | None = None

    def send(self, request: bytes, timeout: float) -> Response:
        """Make one call and return its result. Implements OtlpTransport.send."""
        channel = self._channel = self._channel or self._connected()
        export = channel.unary_unary(_EXPORT[self._config.signal], _unchanged, _unchanged)
        try:
            with gate.call():
                answer = export(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            return self._response_to(error)
        body = parse_response(answer)
        if body is None:
            warning = f"the answer to accepted {self._config.signal.units} cannot be read"
            return Response(Outcome.ACCEPTED, "OK", warnings=(warning,))
        response = accepted("OK", body)
        return replace(response, message=one_line(response.message, self._config))

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _connected(self) -> grpc.Channel:
        gzip = self._config.compression is OtlpCompression.GZIP
        compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
        if self._credentials is None:
            return grpc.insecure_channel(self._config.endpoint, _OPTIONS, compression)
        return grpc.secure_channel(self._config.endpoint, self._credentials, _OPTIONS, compression)

    def _response_to(self, error: grpc.RpcError) -> Response:
        code, details = error.code(), error.details() or ""
        message = one_line(details, self._config)
        after = _retry_delay(error.trailing_metadata() or ())
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and is_about_size(details):
            return Response(Outcome.TOO_LARGE, code.name, message)
        retry = code in _RETRYABLE or (
            code is grpc.StatusCode.RESOURCE_EXHAUSTED and after is not None
        )
        if code is grpc.StatusCode.UNAVAILABLE:
            self.close()
            retry = not _NEVER_AVAILABLE.search(details)
        outcome = Outcome.RETRY if retry else Outcome.REFUSED
        return Response(outcome, code.name, message, retry_after=after)


def _metadatum(name: str, value: str, config: OtlpConfig) -> tuple[str, str | bytes]:
    """Return a header as gRPC metadata (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md)."""
    binary = name.endswith("-bin")
    if not _NAME.fullmatch(name) or not (binary or _VALUE.fullmatch(value)):
        raise UsageError(
            f"gRPC cannot carry the header {name!a}: names are of a-z 0-9 _ . - and values of"
            f" printable ASCII, check {config.settings.said('HEADERS')}"
        )
    return name, value.encode() if binary else value


def _unchanged(data: bytes) -> bytes:
    return data


def _retry_delay(metadata: Iterable[Any]) -> float | None:
    """Return the delay in seconds from the RetryInfo in a call's trailing metadata, if any.

    Servers send the RetryInfo in `grpc-status-details-bin`. OTel Python reads only the separate
    entry `google.rpc.retryinfo-bin`.
    """
    for key, value in metadata:
        if not isinstance(value, bytes):
            continue
        info = RetryInfo()
        try:
            if key == "google.rpc.retryinfo-bin":
                info.ParseFromString(value)
                return _delay(info)
            if key == "grpc-status-details-bin":
                for detail in Status.FromString(value).details:
                    if detail.Unpack(info):
                        return _delay(info)
        except DecodeError:
            continue
    return None


def _delay(info: RetryInfo) -> float:
    delay: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    return max(delay, 0.0)
