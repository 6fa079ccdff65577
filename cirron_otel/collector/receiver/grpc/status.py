"""The responses to gRPC calls (opentelemetry.io/docs/specs/otlp/, "OTLP/gRPC Response")."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ..consumer import ConsumeResult, Reason, RefusalError

_CODES = {
    Reason.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.BUSY: grpc.StatusCode.UNAVAILABLE,
    Reason.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    Reason.HEADERS: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.ENCODING: grpc.StatusCode.UNIMPLEMENTED,
    Reason.MALFORMED: grpc.StatusCode.INTERNAL,
}

_RETRY_AFTER_S = 1.0
"""The delay for retries if the refusal specifies none."""

_LONGEST_MESSAGE = 1000
"""The longest message, characters."""

_MOST_MESSAGE_BYTES = 7000
"""The maximum encoded size of a message's two copies in the trailing metadata, bytes. gRPC clients
accept 8 KiB of metadata, and reject larger metadata at random."""


def answer_bytes(answer: ConsumeResult) -> bytes:
    """Return the serialized response, which has the same wire format for all three services."""
    if not answer.rejected and not answer.message:
        return b""
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = answer.rejected
    response.partial_success.error_message = answer.message
    return response.SerializeToString()


def status_of(refusal: RefusalError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the code of a refused call, its message and its trailing metadata.

    The metadata contains a RetryInfo, which makes clients retry, only if the same request may
    succeed later.
    """
    code = _CODES[refusal.reason]
    message = _shortened(refusal.message)
    if code is not grpc.StatusCode.UNAVAILABLE:
        return code, message, ()
    after = _RETRY_AFTER_S if refusal.retry_after_s is None else max(refusal.retry_after_s, 0.0)
    delay = Duration()
    delay.FromMilliseconds(round(after * 1000))
    detail = Any()
    detail.Pack(RetryInfo(retry_delay=delay))
    status = Status(code=code.value[0], message=message, details=[detail])
    return code, message, (("grpc-status-details-bin", status.SerializeToString()),)


def _shortened(message: str) -> str:
    """Truncate a message so that the trailing metadata, which contains it twice, is not too large.

    `grpc-message` is percent-encoded (gRPC over HTTP/2, "Responses"); the copy in the details is
    base64 if the client does not support binary metadata.
    """
    size = 0
    for position, character in enumerate(message[:_LONGEST_MESSAGE]):
        length = len(character.encode("utf-8", "surrogatepass"))
        is_plain = " " <= character <= "~" and character != "%"
        size += (1 if is_plain else 3 * length) + 2 * length
        if size > _MOST_MESSAGE_BYTES:
            return message[:position]
    return message[:_LONGEST_MESSAGE]
