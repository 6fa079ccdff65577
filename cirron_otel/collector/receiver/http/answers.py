"""The statuses, headers and bodies of HTTP responses, without any I/O.

Source: OTLP specification 1.x, "OTLP/HTTP Response" (opentelemetry.io/docs/specs/otlp/), and
docs/cirron-http.md. The protobuf messages are encoded manually, since they have few fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ....core.otlp.wire import LEN, VARINT, encode_varint
from ..consumer import BodyEncoding, ConsumeResult, Reason, ReceivedSignal, RefusalError

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

_MEDIA_TYPES = {BodyEncoding.PROTOBUF: PROTOBUF, BodyEncoding.JSON: JSON}

_STATUSES = {
    Reason.INVALID: 400,
    Reason.TOO_LARGE: 413,
    Reason.BUSY: 429,
    Reason.UNAVAILABLE: 503,
    Reason.UNSUPPORTED: 404,
    Reason.HEADERS: 400,
    Reason.UNAUTHENTICATED: 401,
    Reason.ENCODING: 415,
    Reason.MALFORMED: 400,
}

_REASONS = {
    400: "invalid",
    401: "unauthenticated",
    404: "path",
    405: "method",
    408: "slow",
    413: "too_large",
    415: "media_type",
    417: "expectation",
    429: "busy",
    431: "header_size",
    503: "unavailable",
}
"""The default reasons under which refusals are counted."""

_CODES = {
    400: 3,
    401: 16,
    404: 12,
    405: 12,
    408: 4,
    413: 8,
    415: 3,
    417: 3,
    429: 14,
    431: 3,
    500: 13,
    503: 14,
}
"""google.rpc.Code by HTTP status."""

_BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"

_RETRY_AFTER_S = 1
"""The delay for retries if the refusal specifies none."""

_REJECTED = {
    ReceivedSignal.TRACES: "rejectedSpans",
    ReceivedSignal.METRICS: "rejectedDataPoints",
    ReceivedSignal.LOGS: "rejectedLogRecords",
}

_UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}
"""Escapes for JSON bodies, so that the body contains no markup if a browser renders it as a
page."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response before it is written."""

    status: int
    body: bytes = b""
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpError(Exception):
    """A request that fails with an HTTP error."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        """`message` is for the client; `reason` is the label under which the refusal is counted."""
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}
        self.reason = reason or _REASONS.get(status, "invalid")


def of_refusal(error: RefusalError) -> HttpError:
    """Return the HTTP error of a refusal, with Retry-After in whole seconds."""
    headers = {"WWW-Authenticate": "Bearer"} if error.reason is Reason.UNAUTHENTICATED else {}
    if error.reason in (Reason.BUSY, Reason.UNAVAILABLE):
        delay_s = error.retry_after_s
        seconds = _RETRY_AFTER_S if delay_s is None else max(math.ceil(delay_s), _RETRY_AFTER_S)
        headers["Retry-After"] = str(seconds)
    status = _STATUSES[error.reason]
    return HttpError(status, error.message, headers, reason=error.reason.value)


def error_reply(error: HttpError, encoding: BodyEncoding) -> Reply:
    """Return the response for an error: a google.rpc.Status, which Cirron's clients read as JSON.

    For status 400 its details contain a BadRequest, as OTLP requires ("Bad Data").
    """
    code = _CODES.get(error.status, 2)
    is_bad = error.status == 400
    if encoding is BodyEncoding.PROTOBUF:
        body = _number(1, code) + _text(2, error.message)
        if is_bad:
            violations = _bytes(1, _text(2, error.message))
            body += _bytes(3, _text(1, _BAD_REQUEST) + _bytes(2, violations))
    else:
        status: dict[str, object] = {"code": code, "message": error.message}
        if is_bad:
            violation = {"description": error.message}
            status["details"] = [{"@type": _BAD_REQUEST, "fieldViolations": [violation]}]
        body = _json(status)
    return Reply(error.status, body, _MEDIA_TYPES[encoding], error.headers)


def otlp_reply(answer: ConsumeResult, signal: ReceivedSignal, encoding: BodyEncoding) -> Reply:
    """Return an Export…ServiceResponse; `partial_success` is set only if it is not empty."""
    is_partial = bool(answer.rejected or answer.message)
    if encoding is BodyEncoding.PROTOBUF:
        body = b""
        if is_partial:
            partial = _number(1, answer.rejected) + _text(2, answer.message)
            body = _bytes(1, partial)
    else:
        # As in protobuf, a count of 0 is omitted; protobuf's JSON has 64-bit integers as strings.
        partial_success = {_REJECTED[signal]: str(answer.rejected)} if answer.rejected else {}
        if answer.message:
            partial_success["errorMessage"] = answer.message
        body = _json({"partialSuccess": partial_success} if is_partial else {})
    return Reply(200, body, _MEDIA_TYPES[encoding])


def cirron_reply(answer: ConsumeResult) -> Reply:
    """Return status 202 with the batch's id; a duplicate batch gets the same response."""
    content = {"batch_id": answer.batch_id}
    if answer.message:
        content["message"] = answer.message
    return Reply(202, _json(content))


def _json(value: object) -> bytes:
    return json.dumps(value).translate(_UNSAFE).encode("ascii")


def _number(number: int, value: int) -> bytes:
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode("utf-8", "replace")) if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return encode_varint(number << 3 | LEN) + encode_varint(len(value)) + value
