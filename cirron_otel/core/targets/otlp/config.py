"""The options of an OTLP endpoint: the `OTEL_EXPORTER_OTLP_*` variables, as OTel Python reads them.

Source: opentelemetry-exporter-otlp 1.45.2; tests compare the two. Each variable also exists with
`_TRACES_` in its name, and for metrics with `_METRICS_`; that variable takes precedence. An empty
value counts as unset (specification, "Environment variables"). OTel Python reads times in seconds,
although the specification defines milliseconds. If OTel Python's gRPC exporter supports less
than its HTTP exporter and the specification, this module follows the latter two: `none` is a valid
compression, a client certificate works without a CA certificate, and each certificate variable
falls back separately.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import ParseResult, unquote, urlparse

from ....errors import UsageError
from ....ids import digest
from ....semconv import DEFAULT_SERVICE_NAME

ENVIRONMENT_PREFIX = "OTEL_EXPORTER_OTLP_"
_GRPC_ENDPOINT = "http://localhost:4317"
_HTTP_ENDPOINT = "http://localhost:4318"
DEFAULT_TIMEOUT_S = 10.0
TENANT_HEADER = "x-scope-orgid"
"""The header that identifies a tenant in Tempo, Mimir and Loki."""


def default_service_name(environ: Mapping[str, str] | None = None) -> str:
    """Return the `service.name` for records without one: OTEL_SERVICE_NAME, or else `cirron`."""
    environ = os.environ if environ is None else environ
    return environ.get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE_NAME


class OtlpProtocol(StrEnum):
    """The values of `OTEL_EXPORTER_OTLP_PROTOCOL`."""

    GRPC = "grpc"
    HTTP_PROTOBUF = "http/protobuf"
    HTTP_JSON = "http/json"


class Signal(StrEnum):
    """The kinds of telemetry; each has its own variables and URL path."""

    TRACES = "traces"
    METRICS = "metrics"

    @property
    def units(self) -> str:
        """The units that an endpoint accepts or rejects, in the plural."""
        return "spans" if self is Signal.TRACES else "points"


class OtlpCompression(StrEnum):
    """The values of `OTEL_EXPORTER_OTLP_COMPRESSION`."""

    NONE = "none"
    GZIP = "gzip"
    DEFLATE = "deflate"


@dataclass(frozen=True, slots=True)
class SettingNames:
    """The names of the settings where the user set them, for use in error messages."""

    prefix: str = ENVIRONMENT_PREFIX
    again: str = "_"
    """Used instead of `prefix` for each name in a list except the first."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Other names for settings, by the name of the variable without its prefix."""

    def said(self, *names: str) -> str:
        """List settings for use in a sentence; `names` are variables without their prefix."""
        words = [self.words.get(name, name) for name in names]
        listed = [self.prefix + words[0], *(self.again + word for word in words[1:])]
        *others, last = listed
        return f"{', '.join(others)} and {last}" if others else last


@dataclass(frozen=True, slots=True)
class OtlpConfig:
    """An OTLP endpoint and the options of its connection."""

    protocol: OtlpProtocol = OtlpProtocol.GRPC
    endpoint: str = "localhost:4317"
    """For HTTP the complete URL, for gRPC the target, which is usually host:port."""
    insecure: bool = True
    """Whether gRPC runs without TLS. For HTTP, the URL's scheme determines whether TLS is used."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The headers of each request, with names in lower case. Their values are secrets."""
    timeout: float = DEFAULT_TIMEOUT_S
    """The maximum duration of one attempt, in seconds."""
    compression: OtlpCompression = OtlpCompression.NONE
    certificate: str | None = None
    """A file with the CA certificates to verify the endpoint; None for the system's certificates.
    """
    client_key: str | None = None
    client_certificate: str | None = None
    warnings: tuple[str, ...] = ()
    """Problems in the environment that are ignored, as OTel Python ignores them."""
    settings: SettingNames = field(default_factory=SettingNames)
    signal: Signal = Signal.TRACES
    """The kind of telemetry that the endpoint receives."""

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, signal: Signal = Signal.TRACES
    ) -> OtlpConfig:
        """Read `environ`, or the environment of the process if it is None.

        Raises UsageError if a value is invalid and OTel Python would fail as well.
        """
        return _Reader(os.environ if environ is None else environ, signal).config()

    @property
    def shown_endpoint(self) -> str:
        """The endpoint as shown in messages: without user, password and query."""
        if self.protocol is OtlpProtocol.GRPC:
            return self.endpoint.rpartition("@")[2]
        url = urlparse(self.endpoint)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def target_key(config: OtlpConfig) -> str:
    """Return the key of a delivery target: 16 hex digits that contain no secret.

    It depends on the endpoint without user and password, the protocol, and the tenant, but not on
    credentials, since an endpoint keeps its data when they change.
    """
    scheme, separator, address = config.endpoint.rpartition("://")
    authority, slash, path = address.partition("/")
    endpoint = f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
    tenant = config.headers.get(TENANT_HEADER, "")
    return digest("otlp target", endpoint, config.protocol, tenant)[:8].hex()


def _url(variable: str, value: str) -> ParseResult:
    try:
        return urlparse(value)
    except ValueError as error:
        raise UsageError(f"{variable} is not a URL: {error}") from None


class _Reader:
    """Reads the variables of one environment."""

    def __init__(self, environ: Mapping[str, str], signal: Signal) -> None:
        self._environ = environ
        self._signal = signal
        self._path = f"/v1/{signal}"
        self._own = f"{ENVIRONMENT_PREFIX}{signal.upper()}_"
        self._warnings: list[str] = []

    def config(self) -> OtlpConfig:
        protocol = self._protocol()
        http = protocol is not OtlpProtocol.GRPC
        endpoint, insecure = self._http_endpoint() if http else self._grpc_endpoint()
        return OtlpConfig(
            protocol=protocol,
            endpoint=endpoint,
            insecure=insecure,
            headers=self._headers(),
            timeout=self._http_timeout() if http else self._grpc_timeout(),
            compression=self._http_compression() if http else self._grpc_compression(),
            certificate=self._first("CERTIFICATE")[1],
            client_key=self._first("CLIENT_KEY")[1],
            client_certificate=self._first("CLIENT_CERTIFICATE")[1],
            warnings=tuple(self._warnings),
            signal=self._signal,
        )

    def _first(self, name: str) -> tuple[str, str | None]:
        """Return the variable that takes precedence, and its value."""
        for variable in (self._own + name, ENVIRONMENT_PREFIX + name):
            if value := self._environ.get(variable):
                return variable, value
        return f"{ENVIRONMENT_PREFIX}{name}", None

    def _protocol(self) -> OtlpProtocol:
        variable, value = self._first("PROTOCOL")
        try:
            return OtlpProtocol((value or OtlpProtocol.GRPC).strip())
        except ValueError:
            raise UsageError(
                f"{variable} is {value!a}: expected {', '.join(OtlpProtocol)}"
            ) from None

    def _grpc_endpoint(self) -> tuple[str, bool]:
        variable, value = self._first("ENDPOINT")
        endpoint = value or _GRPC_ENDPOINT
        url = _url(variable, endpoint)
        insecure = self._first("INSECURE")[1]
        if url.scheme == "https":
            plain = False
        elif insecure is not None:
            plain = insecure.lower() == "true"
        else:
            plain = url.scheme == "http"
        return url.netloc or endpoint, plain

    def _http_endpoint(self) -> tuple[str, bool]:
        variable, value = self._first("ENDPOINT")
        if value is None:
            variable, value = "its default", _HTTP_ENDPOINT
        if not variable.startswith(self._own):
            value = value.removesuffix("/") + self._path
        url = _url(variable, value)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise UsageError(
                f"{variable} is not an http:// or https:// URL, which the protocol needs: use"
                f" http://host:4318, or set {ENVIRONMENT_PREFIX}PROTOCOL=grpc"
            )
        return value, url.scheme == "http"

    def _http_timeout(self) -> float:
        variable, value = self._first("TIMEOUT")
        try:
            return self._positive(variable, float(value or DEFAULT_TIMEOUT_S))
        except ValueError:
            self._warnings.append(f"{variable} is {value!a}, no number of seconds: 10 is used")
            return DEFAULT_TIMEOUT_S

    def _grpc_timeout(self) -> float:
        for variable in (f"{self._own}TIMEOUT", f"{ENVIRONMENT_PREFIX}TIMEOUT"):
            value = self._environ.get(variable)
            try:
                seconds = float(value) if value else None
            except ValueError:
                raise UsageError(f"{variable} is {value!a}: expected a number of seconds") from None
            # OTel Python treats a zero in the first variable as unset, but not in the second.
            if seconds is not None and (seconds != 0 or not variable.startswith(self._own)):
                return self._positive(variable, seconds)
        return DEFAULT_TIMEOUT_S

    def _positive(self, variable: str, seconds: float) -> float:
        if seconds <= 0 or math.isnan(seconds):
            raise UsageError(f"{variable} is {seconds:g}: expected more than 0 seconds")
        return seconds

    def _http_compression(self) -> OtlpCompression:
        variable, value = self._first("COMPRESSION")
        try:
            return OtlpCompression((value or "none").lower().strip())
        except ValueError:
            self._warnings.append(
                f"{variable} is {value!a}, not one of {', '.join(OtlpCompression)}: none is used"
            )
            return OtlpCompression.NONE

    def _grpc_compression(self) -> OtlpCompression:
        variable, value = self._first("COMPRESSION")
        name = (value or "none").lower().strip()
        if name not in (OtlpCompression.NONE, OtlpCompression.GZIP):
            raise UsageError(f"{variable} is {value!a}: expected gzip or none for gRPC")
        return OtlpCompression(name)

    def _headers(self) -> dict[str, str]:
        variable, value = self._first("HEADERS")
        headers, bad = parse_headers(value or "")
        if bad:
            self._warnings.append(
                f"{variable}: {bad} of its entries ignored, expected name=value,name=value with"
                " the values URL-encoded"
            )
        return headers


# Source: OTel Python 1.45.2, opentelemetry/util/re.py. Its parse_env_headers is not used because it
# logs entries that it cannot parse, including secrets.
_NAME = r"[ \t]*[\x21\x23-\x27\x2a\x2b\x2d\x2e\x30-\x39\x41-\x5a\x5e-\x7a\x7c\x7e]+[ \t]*"
_ENCODED = re.compile(_NAME + r"=[ \t]*[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*[ \t]*")
_LIBERAL = re.compile(_NAME + r"=[ \t]*[\x20\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*[ \t]*")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


def parse_headers(text: str) -> tuple[dict[str, str], int]:
    """Parse `name=value,name=value`; return the headers and the number of invalid entries.

    Values are URL-decoded. A value with spaces is not URL-encoded and is used unchanged.
    """
    headers: dict[str, str] = {}
    bad = 0
    for entry in filter(None, _COMMA.split(text)):
        name, _, value = entry.strip().partition("=")
        if _ENCODED.fullmatch(entry.strip()):
            headers[unquote(name).strip().lower()] = unquote(value).strip()
        elif _LIBERAL.fullmatch(entry.strip()):
            headers[name.strip().lower()] = value.strip()
        else:
            bad += 1
    return headers, bad
