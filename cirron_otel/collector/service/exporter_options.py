"""The sections of exporters and of pushed metrics in the table of options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from ...core.config.engine import Key
from ...core.config.options import API_ENDPOINT, INGEST_PATH
from ...core.config.parsing import ENDPOINT, TEXT, URL_PATH, integer, number_above, one_of
from .values import FILE, HEADER_NAMES, HEADERS, SECRET_TEXT, Secret, SecretHeader

SECONDS: Final = number_above(0, 86_400, "seconds")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping in the configuration file."""


def default_of(field: Any) -> Any:
    """Return the default of a field of `msgspec.structs.fields`, or msgspec.NODEFAULT."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


HeadersFrom = Annotated[
    tuple[str, ...],
    Key(
        HEADER_NAMES,
        "headers of received requests to send with their data; each must be in"
        " `receivers.headers.pass`",
        at_once=True,
    ),
]


InFlight = Annotated[
    int,
    Key(
        integer(1),
        "the maximum number of requests in flight; only one of those with the same headers of"
        " `headers_from`",
        "requests",
        at_once=True,
    ),
]


class ClientTls(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificates for connecting to a server; the files are PEM."""

    ca: Annotated[
        Path | None,
        Key(
            FILE,
            "CAs, one of which must have issued the server's certificate; null: the system's",
            at_once=True,
        ),
    ] = None
    cert: Annotated[Path | None, Key(FILE, "the client certificate (mutual TLS)", at_once=True)] = (
        None
    )
    key: Annotated[Path | None, Key(FILE, "the private key of `cert`", at_once=True)] = None


class OtlpExporter(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exporter to an OTLP endpoint."""

    type: Annotated[str, Key(one_of("otlp"), "`otlp`", at_once=True)] = "otlp"
    endpoint: Annotated[
        str,
        Key(
            ENDPOINT,
            "`http://HOST:PORT`, or `https://` for TLS; over HTTP `/v1/traces` is appended unless"
            " the URL ends with it",
            at_once=True,
        ),
    ]
    protocol: Annotated[
        str,
        Key(
            one_of("grpc", "http/protobuf", "http/json"),
            "`grpc`, `http/protobuf` or `http/json`",
            at_once=True,
        ),
    ] = "grpc"
    headers: Annotated[
        Mapping[str, SecretHeader],
        Key(HEADERS, "sent with each request", at_once=True, is_secret=True),
    ] = msgspec.field(default_factory=dict)
    headers_file: Annotated[
        Path | None,
        Key(FILE, "a file of further headers, one `name: value` per line", at_once=True),
    ] = None
    headers_from: HeadersFrom = ()
    tenant: Annotated[str | None, Key(TEXT, "`X-Scope-OrgID` of each request", at_once=True)] = None
    tls: ClientTls | None = None
    compression: Annotated[
        str,
        Key(one_of("none", "gzip", "deflate"), "`none`, `gzip`; over HTTP `deflate`", at_once=True),
    ] = "gzip"
    timeout_s: Annotated[
        float, Key(SECONDS, "the longest time of one attempt", "s", at_once=True)
    ] = 10.0
    requests_in_flight: InFlight = 8


class CirronExporter(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exporter to the Cirron platform, or to a server with the same API."""

    type: Annotated[str, Key(one_of("cirron"), "`cirron`", at_once=True)] = "cirron"
    endpoint: Annotated[str, Key(ENDPOINT, "the URL of the platform", at_once=True)] = API_ENDPOINT
    ingest_path: Annotated[
        str, Key(URL_PATH, "the path below `endpoint` that receives batches", at_once=True)
    ] = INGEST_PATH
    api_key: Annotated[
        Secret | None,
        Key(SECRET_TEXT, "the API key of the workspace", at_once=True, is_secret=True),
    ] = None
    api_key_file: Annotated[
        Path | None, Key(FILE, "a file with the API key, instead of `api_key`", at_once=True)
    ] = None
    headers_from: HeadersFrom = ()
    ca: Annotated[
        Path | None,
        Key(FILE, "CAs, one of which must have issued the server's certificate", at_once=True),
    ] = None
    timeout_s: Annotated[
        float,
        Key(
            SECONDS,
            "the longest time for connecting, for sending, and for the response",
            "s",
            at_once=True,
        ),
    ] = 10.0
    requests_in_flight: InFlight = 8


EXPORTERS: Final[Mapping[str, type[Section]]] = {"otlp": OtlpExporter, "cirron": CirronExporter}
"""The classes of exporters by their `type`."""


class MetricsPushOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The collector's own metrics over OTLP."""

    endpoint: Annotated[
        str,
        Key(
            ENDPOINT,
            "as for an exporter; over HTTP `/v1/metrics` is appended unless the URL ends with it",
            at_once=True,
        ),
    ]
    protocol: Annotated[
        str,
        Key(one_of("grpc", "http/protobuf"), "`grpc` or `http/protobuf`", at_once=True),
    ] = "grpc"
    headers: Annotated[
        Mapping[str, SecretHeader],
        Key(HEADERS, "sent with each push", at_once=True, is_secret=True),
    ] = msgspec.field(default_factory=dict)
    interval_s: Annotated[float, Key(SECONDS, "the time between pushes", "s", at_once=True)] = 60.0
