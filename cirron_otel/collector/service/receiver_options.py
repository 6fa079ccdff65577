"""The collector's options for its receivers, a part of the table in options.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from ...core.config.engine import Key
from ...core.config.parsing import integer, one_of
from ..receiver.headers import KEPT_HEADERS
from .exporter_options import SECONDS, Section
from .values import (
    ADDRESS,
    CORS_HEADERS,
    FILE,
    HEADER_NAMES,
    NETWORKS,
    ORIGINS,
    SECRETS,
    ListenAddress,
    Network,
    Secret,
)


class ServerTlsOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificate of a server; the files are PEM."""

    cert: Annotated[Path, Key(FILE, "the server's certificate, followed by its chain")]
    key: Annotated[Path, Key(FILE, "the private key of `cert`, without a passphrase")]
    client_ca: Annotated[
        Path | None,
        Key(FILE, "CAs, one of which must have issued a client's certificate (mutual TLS)"),
    ] = None


class KeepaliveOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keepalive and the age limit of gRPC connections."""

    time_s: Annotated[
        float,
        Key(
            SECONDS,
            "a connection that is silent this long is pinged, and closed if it does not answer",
            "s",
        ),
    ] = 60.0
    min_time_s: Annotated[
        float, Key(SECONDS, "a connection that pings more often than this is closed", "s")
    ] = 10.0
    max_connection_age_s: Annotated[
        float | None,
        Key(SECONDS, "connections are closed after this time, so that load spreads again", "s"),
    ] = None
    max_connection_age_grace_s: Annotated[
        float, Key(SECONDS, "the time that requests on such a connection may still take", "s")
    ] = 30.0


class GrpcOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OTLP over gRPC."""

    address: Annotated[
        ListenAddress | None,
        Key(ADDRESS, "the address to listen on; port 0 selects a free port; `off` disables it"),
    ] = ListenAddress("localhost", 4317)
    tls: ServerTlsOptions | None = None
    max_concurrent_streams: Annotated[
        int, Key(integer(1), "concurrent requests on one connection", "requests")
    ] = 256
    max_connections: Annotated[
        int, Key(integer(1), "the maximum number of open connections", "connections")
    ] = 1000
    keepalive: KeepaliveOptions = msgspec.field(default_factory=KeepaliveOptions)


class CorsOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cross-origin requests of browsers (CORS). Without an allowed origin they are refused."""

    allowed_origins: Annotated[
        tuple[str, ...],
        Key(
            ORIGINS,
            "origins of pages that may send, such as `https://app.example`; each may contain one"
            " `*`, which matches any text",
        ),
    ] = ()
    allowed_headers: Annotated[
        tuple[str, ...],
        Key(
            CORS_HEADERS,
            "request headers that pages may send in addition to those of OTLP, such as"
            " `authorization`; `*` allows all",
        ),
    ] = ()
    max_age: Annotated[
        int | None,
        Key(integer(0), "how long a browser may cache the answer to a preflight request", "s"),
    ] = None


class HttpOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OTLP over HTTP, Cirron's batches and snapshot files, health and metrics."""

    address: Annotated[
        ListenAddress | None,
        Key(ADDRESS, "the address to listen on; port 0 selects a free port; `off` disables it"),
    ] = ListenAddress("localhost", 4318)
    tls: ServerTlsOptions | None = None
    max_connections: Annotated[
        int, Key(integer(1), "the maximum number of open connections", "connections")
    ] = 1000
    idle_s: Annotated[float, Key(SECONDS, "a connection that is idle this long is closed", "s")] = (
        75.0
    )
    cors: CorsOptions = msgspec.field(default_factory=CorsOptions)


class TracemlOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The frames of TraceML's processes."""

    address: Annotated[
        ListenAddress | None,
        Key(ADDRESS, "the address to listen on; port 0 selects a free port; `off` disables it"),
    ] = None
    allow: Annotated[
        tuple[Network, ...],
        Key(
            NETWORKS,
            "the networks that may connect; required if `address` is not local, because TraceML's"
            " protocol has no token; without any, all local clients may",
            at_once=True,
        ),
    ] = ()
    forward: Annotated[
        ListenAddress | None,
        Key(ADDRESS, "the address of TraceML's own aggregator, to which frames are passed on"),
    ] = None
    max_connections: Annotated[
        int, Key(integer(1), "the maximum number of open connections", "connections")
    ] = 1000
    idle_s: Annotated[float, Key(SECONDS, "a connection that is idle this long is closed", "s")] = (
        3600.0
    )


class AuthOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The clients that may send: all of them if neither key is set."""

    tokens: Annotated[
        tuple[Secret, ...],
        Key(SECRETS, "the accepted bearer tokens", at_once=True, is_secret=True),
    ] = ()
    tokens_file: Annotated[
        Path | None,
        Key(
            FILE,
            "a file of further tokens, one per line; it is read again when it changes",
            at_once=True,
        ),
    ] = None


class HeaderOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The headers that are stored with a request."""

    pass_: Annotated[
        tuple[str, ...],
        Key(
            HEADER_NAMES,
            "the names of the headers to store, case-insensitive; credentials are not allowed",
            at_once=True,
        ),
    ] = msgspec.field(default=KEPT_HEADERS, name="pass")


class SignalOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The treatment of signals other than traces."""

    logs: Annotated[
        str,
        Key(
            one_of("marks", "accept", "refuse"),
            "`marks`: records that are marks are stored, all others are dropped, and the response"
            " contains their number; `accept`: acknowledged and dropped; `refuse`: refused",
            at_once=True,
        ),
    ] = "marks"
    metrics: Annotated[
        str,
        Key(
            one_of("accept", "refuse"),
            "`accept`: acknowledged and dropped; `refuse`: refused",
            at_once=True,
        ),
    ] = "refuse"


class ReceiverOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The receivers, their clients, headers and signals."""

    grpc: GrpcOptions = msgspec.field(default_factory=GrpcOptions)
    http: HttpOptions = msgspec.field(default_factory=HttpOptions)
    traceml: TracemlOptions = msgspec.field(default_factory=TracemlOptions)
    auth: AuthOptions = msgspec.field(default_factory=AuthOptions)
    headers: HeaderOptions = msgspec.field(default_factory=HeaderOptions)
    signals: SignalOptions = msgspec.field(default_factory=SignalOptions)
