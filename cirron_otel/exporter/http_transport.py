"""OTLP/HTTP: requests as they are, one POST an attempt (OTLP specification, "OTLP/HTTP").

Needs the extra `otlp`; whoever wants it imports this module when it is wanted.
"""

from __future__ import annotations

import gzip
import json
import math
import socket
import ssl
import time
import zlib
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import requests
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from requests import exceptions

from ..errors import InputError, UsageError
from ..otlp.json_codec import json_losses, traces_to_json
from .config import Compression, OtlpConfig, Protocol
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

_RETRYABLE = frozenset((429, 502, 503, 504))
"""OTLP specification, "Retryable Response Codes"."""

_LONGEST_ANSWER = 1024 * 1024
"""Bytes of an answer that are read; what is more is not looked at."""

_WRONG_CONFIGURATION = (
    exceptions.InvalidHeader,
    exceptions.InvalidURL,
    exceptions.MissingSchema,
    exceptions.InvalidSchema,
    exceptions.InvalidProxyURL,
)


class HttpTransport:
    """POSTs to one URL over connections that are kept."""

    def __init__(self, config: OtlpConfig) -> None:
        """Raise UsageError where a certificate or key cannot be read."""
        for path, variable in (
            (config.certificate, "CERTIFICATE"),
            (config.client_certificate, "CLIENT_CERTIFICATE"),
            (config.client_key, "CLIENT_KEY"),
        ):
            read_file(path, variable)
        self._config = config
        self._json = config.protocol is Protocol.HTTP_JSON
        self._headers = {
            "content-type": "application/json" if self._json else "application/x-protobuf",
            "user-agent": USER_AGENT,
            **config.headers,
        }
        if config.compression is not Compression.NONE:
            self._headers.setdefault("content-encoding", config.compression)
        self._session = requests.Session()
        if "authorization" in config.headers:
            # Else requests puts what ~/.netrc has for the host in its place.
            self._session.auth = lambda request: request

    def send(self, request: bytes, timeout: float) -> Response:
        """One POST; see OtlpTransport."""
        body, warnings = self._encoded(request)
        deadline = time.monotonic() + timeout
        try:
            with self._post(body, timeout) as answer:
                response = self._judged(answer, _content(answer, deadline))
        except _WRONG_CONFIGURATION as error:
            raise UsageError(
                f"the configuration of {self._config.shown_endpoint} makes no HTTP request"
                f" ({type(error).__name__}): check the OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS"
                " and proxy variables"
            ) from None
        except exceptions.SSLError as error:
            return Response(Outcome.REFUSED, "no TLS connection", one_line(_cause(error), self._config))
        except exceptions.RequestException as error:
            return Response(Outcome.RETRY, "no answer", one_line(_cause(error), self._config))
        except OSError as error:  # requests reads certificates itself, and finds them bad
            raise UsageError(
                f"TLS cannot be set up with the certificates given: {error.strerror or 'unreadable'}"
            ) from None
        return Response(*response, warnings=warnings) if False else response

    def close(self) -> None:
        """Close the connections."""
        self._session.close()
