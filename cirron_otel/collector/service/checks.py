"""Check rules that involve several keys, and warn about options that are allowed but unwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.targets.otlp.config import OtlpConfig, target_key
from ...errors import UsageError
from ..receiver.journal.files import GROUP_BYTES
from ..receiver.journal.writer import DEFAULT_SEGMENT_BYTES
from . import descriptors
from .exporter_options import CirronExporter, OtlpExporter
from .options import CollectorOptions
from .options_tree import leaves
from .readiness import FRAME_BYTES
from .receiver_options import GrpcOptions, HttpOptions
from .targets import api_key, otlp_config
from .values import FILE

_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})

_GROWTH = 4
"""The factor by which a request may grow when protobuf becomes a batch in JSON."""

Problem = tuple[str, str]
"""The path of a key, and the description of the problem."""


def problems_of(options: CollectorOptions) -> list[Problem]:
    """Return contradictions between keys, and files that cannot be read."""
    return [
        *_files(options),
        *_addresses(options),
        *_limits(options),
        *_spool(options),
        *_exporters(options),
    ]


def _files(options: CollectorOptions) -> Iterator[Problem]:
    for path, key, value in leaves(options):
        if key.parser is FILE and value is not None and (reason := _unreadable(value)):
            yield path, f"names {str(value)!a}, which cannot be read: {reason}"


def _unreadable(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or "not a valid name"
    return None


def _addresses(options: CollectorOptions) -> Iterator[Problem]:
    grpc, http = options.receivers.grpc.address, options.receivers.http.address
    if grpc is None and http is None and options.receivers.traceml.address is None:
        yield "receivers", "are all off: give grpc or http an address"
    elif grpc == http and grpc is not None and grpc.port:
        yield "receivers.http.address", f"is {grpc}, which is also that of grpc: expected two ports"
    yield from _traceml(options)


def _traceml(options: CollectorOptions) -> Iterator[Problem]:
    receivers, path = options.receivers, "receivers.traceml"
    address, forward = receivers.traceml.address, receivers.traceml.forward
    if address is None:
        return
    if not address.is_local and not receivers.traceml.allow:
        yield (
            f"{path}.address",
            f"is {address}, which other hosts can reach, and TraceML's protocol has no token:"
            f" list the networks that may send in {path}.allow, or listen on localhost",
        )
    if address.port:
        for name, other in (("grpc", receivers.grpc.address), ("http", receivers.http.address)):
            if other == address:
                yield (
                    f"{path}.address",
                    f"is {address}, which is also that of {name}: expected two ports",
                )
    if forward is not None and (not forward.port or address.includes(forward)):
        yield f"{path}.forward", f"is {forward}: expected the address of TraceML's aggregator"


def _limits(options: CollectorOptions) -> Iterator[Problem]:
    limits = options.limits
    largest = limits.request_bytes
    if limits.in_flight_bytes < largest:
        yield (
            "limits.in_flight_bytes",
            f"is {limits.in_flight_bytes:,}: expected at least request_bytes, which is {largest:,}",
        )
    # Two segments, because the last one is not removed before the next one begins.
    least = 2 * max(DEFAULT_SEGMENT_BYTES, largest + FRAME_BYTES)
    if limits.journal_bytes < least:
        yield (
            "limits.journal_bytes",
            f"is {limits.journal_bytes:,}: expected at least {least:,}, twice the larger of"
            f" {DEFAULT_SEGMENT_BYTES:,} and the space of the largest request, since request_bytes"
            f" is {largest:,}",
        )


def _spool(options: CollectorOptions) -> Iterator[Problem]:
    largest, cap = options.limits.request_bytes, options.spool.max_bytes
    least = _GROWTH * (largest + GROUP_BYTES)
    if cap < least:
        yield (
            "spool.max_bytes",
            f"is {cap:,}: expected at least {least:,}, which the batch of the largest request may"
            f" take, since limits.request_bytes is {largest:,}",
        )


def _exporters(options: CollectorOptions) -> Iterator[Problem]:
    positions: dict[Any, int] = {}
    for at, exporter in enumerate(options.exporters):
        path = f"exporters[{at}]"
        if isinstance(exporter, CirronExporter):
            problems = list(_cirron(exporter, path))
            key: Any = (exporter.endpoint, exporter.ingest_path)
        else:
            problems = list(_otlp(exporter, path))
            key = _key(exporter)
        problems += _unknown_headers(exporter, path, options.receivers.headers.pass_)
        yield from problems
        first = at if key is None else positions.setdefault(key, at)
        if first != at:
            yield path, f"has the same target as exporters[{first}]: remove one of them"


def _key(exporter: OtlpExporter) -> str | None:
    try:
        return target_key(otlp_config(exporter))
    except UsageError:  # its file is invalid, which is reported as a problem of that key
        return None


def _cirron(exporter: CirronExporter, path: str) -> Iterator[Problem]:
    if (exporter.api_key is None) == (exporter.api_key_file is None):
        what = "neither" if exporter.api_key is None else "both"
        yield path, f"has {what} of api_key and api_key_file: expected one of them"
        return
    yield from _tried(lambda: api_key(exporter), path, "api_key_file", exporter.api_key_file)


def _otlp(exporter: OtlpExporter, path: str) -> Iterator[Problem]:
    if exporter.tls is not None:
        if exporter.endpoint.startswith("http:"):
            yield f"{path}.tls", "is set, but the endpoint begins with http: use https"
        if exporter.tls.key is not None and exporter.tls.cert is None:
            yield f"{path}.tls.key", "is set without cert: set both"
    if exporter.protocol == "grpc":
        if exporter.compression == "deflate":
            yield f"{path}.compression", "is deflate, which gRPC does not support: use gzip or none"
        if exporter.endpoint.count("/") > 2:
            yield f"{path}.endpoint", "has a path, which gRPC does not use: omit it"
    yield from _tried(lambda: otlp_config(exporter), path, "headers_file", exporter.headers_file)


def _unknown_headers(
    exporter: OtlpExporter | CirronExporter, path: str, passed: tuple[str, ...]
) -> Iterator[Problem]:
    for name in exporter.headers_from:
        if name not in passed:
            yield (
                f"{path}.headers_from",
                f"names {name!a}, which is not stored: add it to receivers.headers.pass",
            )


def _tried(read: Any, path: str, name: str, file: Path | None) -> Iterator[Problem]:
    """Yield the problem of a file that can be read but is invalid."""
    if file is not None and _unreadable(file) is None:
        try:
            _: str | OtlpConfig = read()
        except UsageError as error:
            yield f"{path}.{name}", f"is wrong: {error}"


def warnings_of(options: CollectorOptions) -> Iterator[str]:
    """Yield a sentence for each option that is allowed but unwise."""
    auth = options.receivers.auth
    is_guarded = bool(auth.tokens) or auth.tokens_file is not None
    for name, receiver in (("grpc", options.receivers.grpc), ("http", options.receivers.http)):
        yield from _exposure(f"receivers.{name}", receiver, is_guarded)
    health = options.health.address
    if is_guarded and options.metrics.prometheus and health is not None and not health.is_local:
        yield f"health.address is {health}, without TLS: tokens for /metrics are sent unencrypted"
    is_reachable = (options.receivers.http.address or health) is not None
    if not is_reachable and (options.health.enabled or options.metrics.prometheus):
        yield "receivers.http is off: health and metrics are not available"
    if options.receivers.traceml.address is None and options.receivers.traceml.forward is not None:
        yield "receivers.traceml.forward is set, but receivers.traceml.address is off: no effect"
    if options.storage.url is None and options.storage.retention_days is not None:
        yield "storage.retention_days is set without storage.url: no rows are written"
    if problem := descriptors.problem(wanted_connections(options), descriptors.available()):
        yield problem
    for at, exporter in enumerate(options.exporters):
        yield from _unencrypted(f"exporters[{at}]", exporter)


def wanted_connections(options: CollectorOptions) -> descriptors.ConnectionLimits:
    """Return the configured limits of connections; 0 for a receiver that is off."""
    receivers = options.receivers
    grpc, http, traceml = receivers.grpc, receivers.http, receivers.traceml
    return descriptors.ConnectionLimits(
        grpc=0 if grpc.address is None else grpc.max_connections,
        http=0 if http.address is None else http.max_connections,
        traceml=0 if traceml.address is None else traceml.max_connections,
    )


def _exposure(path: str, receiver: GrpcOptions | HttpOptions, is_guarded: bool) -> Iterator[str]:
    address = receiver.address
    if address is None or address.is_local:
        return
    is_known = is_guarded or (receiver.tls is not None and receiver.tls.client_ca is not None)
    if not is_known:
        yield f"{path} listens on {address} without tokens or client_ca: any client may send"
    if is_guarded and receiver.tls is None:
        yield f"{path} listens on {address} without tls: tokens are sent unencrypted"


def _unencrypted(path: str, exporter: OtlpExporter | CirronExporter) -> Iterator[str]:
    has_secret = isinstance(exporter, CirronExporter) or bool(
        exporter.headers or exporter.headers_file
    )
    scheme, _, address = exporter.endpoint.partition("://")
    host = address.partition("/")[0]
    name = host if host in _LOCAL else host.rpartition(":")[0]
    if has_secret and scheme == "http" and name not in _LOCAL:
        yield f"{path} sends credentials to {exporter.endpoint} without TLS: use https"
