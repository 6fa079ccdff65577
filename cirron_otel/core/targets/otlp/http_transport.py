"""The transport for OTLP/HTTP, with one POST per attempt.

Source: OTLP specification, "OTLP/HTTP". This module needs the extra `otlp`, so it is imported only
when it is used.
"""

from __future__ import annotations

import gzip
import json
import ssl
import zlib
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ....errors import InputError, UsageError
from ...http.client import BrokenAnswerError, HttpAnswer
from ...http.session import HttpSession
from ...otlp.json_codec import json_losses, traces_to_json
from ...otlp.json_metrics import metrics_to_json
from ...otlp.json_parse import parse
from .config import OtlpCompression, OtlpConfig, OtlpProtocol, Signal
from .transport import (
    USER_AGENT,
    Outcome,
    Response,
    accepted,
    cause_of,
    is_about_size,
    one_line,
    parse_response,
    read_file,
    retry_after_seconds,
)

_RETRYABLE = frozenset((429, 502, 503, 504))
"""The status codes that the OTLP specification calls retryable ("Retryable Response Codes")."""

_LONGEST_ANSWER = 1024 * 1024
"""The maximum size in bytes of a response. A longer response is not read to its end."""

_FILES = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")


class HttpTransport:
    """Sends POST requests to one URL over a persistent connection."""

    def __init__(self, config: OtlpConfig) -> None:
        """Prepare the transport for `config`. Raises UsageError if a certificate cannot be read."""
        read_file(config.certificate, "CERTIFICATE", config)
        read_file(config.client_certificate, "CLIENT_CERTIFICATE", config)
        read_file(config.client_key, "CLIENT_KEY", config)
        self._config = config
        self._json = config.protocol is OtlpProtocol.HTTP_JSON
        self._headers = {
            "content-type": "application/json" if self._json else "application/x-protobuf",
            "user-agent": USER_AGENT,
            **config.headers,
        }
        if config.compression is not OtlpCompression.NONE:
            self._headers.setdefault("content-encoding", config.compression)
        self._session: HttpSession | None = None

    def send(self, request: bytes, timeout: float) -> Response:
        """Send one POST and return its result. Implements OtlpTransport.send."""
        body, warnings = self._encoded(request)
        try:
            answer = self._post(body, timeout)
        except FileNotFoundError as error:
            raise UsageError(
                f"one of {self._config.settings.said(*_FILES)} holds"
                f" nothing that TLS can use: {one_line(cause_of(error), self._config)}"
            ) from None
        except ssl.SSLError as error:
            return self._failed(Outcome.REFUSED, "no TLS connection", cause_of(error))
        except (OSError, BrokenAnswerError) as error:
            return self._failed(Outcome.RETRY, "no answer", cause_of(error))
        except ValueError as error:  # an invalid header or URL
            raise UsageError(
                f"no HTTP request can be made for {self._config.shown_endpoint}"
                f" ({type(error).__name__}): check"
                f" {self._config.settings.said('ENDPOINT', 'HEADERS')}, and the proxy variables"
            ) from None
        response = self._response_to(answer)
        return replace(response, warnings=response.warnings + warnings)

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()

    def _encoded(self, request: bytes) -> tuple[bytes, tuple[str, ...]]:
        body, warnings = request, list[str]()
        if self._json:
            try:
                body, warnings = _ENCODERS[self._config.signal](request)
            except DecodeError:
                kind = "TracesData" if self._config.signal is Signal.TRACES else "MetricsData"
                raise InputError(f"{len(request)} bytes are not a {kind} in protobuf") from None
        if self._config.compression is OtlpCompression.GZIP:
            body = gzip.compress(body, 6, mtime=0)
        elif self._config.compression is OtlpCompression.DEFLATE:
            body = zlib.compress(body)
        return body, tuple(warnings)

    def _post(self, body: bytes, timeout: float) -> HttpAnswer:
        if self._session is None:
            config = self._config
            self._session = HttpSession(
                config.endpoint,
                finds_login="authorization" not in config.headers,
                certificate=config.certificate,
                client_certificate=config.client_certificate,
                client_key=config.client_key,
            )
        return self._session.request(
            "POST", "", self._headers, body, timeout=timeout, longest=_LONGEST_ANSWER
        )

    def _failed(self, outcome: Outcome, status: str, message: str) -> Response:
        return Response(outcome, status, one_line(message, self._config))

    def _response_to(self, answer: HttpAnswer) -> Response:
        code = answer.status
        content = answer.content if answer.problem is None else None
        status = one_line(f"{code} {answer.reason or ''}", self._config)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if 200 <= code < 300:
            return self._accepted_response(status, kind, content)
        message = one_line(_error_message(kind, content or b""), self._config)
        if code == 413 or (code in (400, 429) and is_about_size(message)):
            return Response(Outcome.TOO_LARGE, status, message)
        if code in _RETRYABLE:
            after = retry_after_seconds(answer.headers.get("retry-after", ""))
            return Response(Outcome.RETRY, status, message, retry_after=after)
        return Response(Outcome.REFUSED, status, message)

    def _accepted_response(self, status: str, kind: str, content: bytes | None) -> Response:
        if kind == "text/html":
            return Response(
                Outcome.REFUSED, status, "the answer is a web page: this is not an OTLP endpoint"
            )
        body = None
        if content is not None:
            is_json = kind.endswith("json")
            rejected = _REJECTED[self._config.signal]
            body = _parse_json(content, rejected) if is_json else parse_response(content)
        if body is None:
            units = self._config.signal.units
            warning = f"the answer to accepted {units} cannot be read ({kind or 'no content type'})"
            return Response(Outcome.ACCEPTED, status, warnings=(one_line(warning, self._config),))
        response = accepted(status, body)
        return replace(response, message=one_line(response.message, self._config))


def _traces_json(request: bytes) -> tuple[bytes, list[str]]:
    """Return a request of spans as JSON, and a line for each kind of loss."""
    message = TracesData.FromString(request)
    body = traces_to_json(message)
    return body, json_losses(message, body)


def _metrics_json(request: bytes) -> tuple[bytes, list[str]]:
    """Return a request of metrics as JSON, which loses nothing."""
    return metrics_to_json(MetricsData.FromString(request)), []


_ENCODERS = {Signal.TRACES: _traces_json, Signal.METRICS: _metrics_json}
_REJECTED = {Signal.TRACES: "rejectedSpans", Signal.METRICS: "rejectedDataPoints"}
"""The field of a partial success in JSON; in protobuf, it has the same number for each signal."""


def _parse_json(content: bytes, rejected: str) -> ExportTraceServiceResponse | None:
    try:
        partial = parse(content)[0].get("partialSuccess") or {}
        body = ExportTraceServiceResponse()
        body.partial_success.rejected_spans = int(partial.get(rejected) or 0)
        body.partial_success.error_message = str(partial.get("errorMessage") or "")
    except (InputError, ValueError, TypeError, AttributeError):
        return None
    return body


def _error_message(kind: str, content: bytes) -> str:
    """Return the message in the body of an error response.

    According to the specification, the body is a google.rpc.Status; some servers send text.
    """
    if kind in ("application/x-protobuf", "application/protobuf"):
        try:
            return str(Status.FromString(content).message)
        except DecodeError:
            return ""
    if kind.endswith("json"):
        try:
            body: Any = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        if isinstance(body, dict) and isinstance(body.get("message"), str):
            return str(body["message"])
    if kind == "text/html":
        return "the answer is a web page"
    return content[:4096].decode("utf-8", "replace")
