"""Check the OTLP endpoint with the exporters' settings: network, protocol, and one span."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from ...core.targets.otlp.config import OtlpConfig
from ...core.targets.otlp.pusher import transport_for
from ...core.targets.otlp.transport import Outcome, Response
from ...errors import CirronOtelError, MissingExtraError, UsageError
from .check import Check, Deadline, Problem, failed, ok, unreachable, warning, within
from .network import (
    EndpointAddress,
    EndpointSettings,
    certificate_check,
    check_connection,
    proxy_of,
)
from .otlp_settings import TRACES_PATH, headers_check, is_grpc, settings_check, variable
from .protocol import ExpectedProtocol, ProbeReply, find_protocol, skew_check

SPAN_NAME = "cirron-otel doctor"


@dataclass(frozen=True, slots=True)
class OtlpRequest:
    """The options of an examination of the OTLP endpoint."""

    environ: Mapping[str, str]
    timeout: float
    """The time limit for all checks together, seconds."""
    is_sent: bool
    """Whether to send a span, rather than a request without spans."""
    service: str


def examine_otlp(request: OtlpRequest) -> Iterator[Check]:
    """Yield the checks in order, up to the first failure that makes the remaining checks
    impossible.
    """
    environ = request.environ
    try:
        config = OtlpConfig.from_env(environ)
        place = _address(config, environ)
    except UsageError as error:
        yield failed("otlp settings", str(error), "correct it")
        return
    yield settings_check(config, environ)
    yield from headers_check(config, environ)
    deadline = Deadline(request.timeout)
    proxy = None if place is None else proxy_of(*_scheme_and_place(config), is_grpc=is_grpc(config))
    heard = None
    if proxy is not None and place is not None:
        yield _proxied(place, f"{proxy.hostname}:{proxy.port or 80}")
    elif place is not None:
        checks, heard = _check_route(place, config, environ, deadline)
        yield from checks
        if heard is None:
            return
    yield _send_span(request, config, deadline)


def _scheme_and_place(config: OtlpConfig) -> tuple[str, str]:
    if is_grpc(config):
        return "grpc", config.endpoint
    url = urlsplit(config.endpoint)
    return url.scheme, url.netloc.rpartition("@")[2]


def _address(config: OtlpConfig, environ: Mapping[str, str]) -> EndpointAddress | None:
    """Return the address; None for gRPC targets without host and port, such as `unix:…`."""
    by_grpc = is_grpc(config)
    text = config.endpoint.removeprefix("dns:///") if by_grpc else config.endpoint
    named = variable(environ, "ENDPOINT")
    text = text if text not in ("http://", "https://") else ""
    if by_grpc and _has_no_address(text):
        return None
    try:
        url = urlsplit(f"//{text}" if by_grpc else text)
        host, port = url.hostname, url.port
    except ValueError:
        raise UsageError(f"{named} has no host and port: expected http://host:4317") from None
    if not host or port == 0:
        what = "host" if not host else "port"
        raise UsageError(f"{named} has no {what}: expected http://host:4317")
    is_tls = not config.insecure
    return EndpointAddress(
        host=host,
        port=port or (443 if by_grpc or is_tls else 80),
        is_tls=is_tls,
        words=EndpointSettings(
            named,
            variable(environ, "CERTIFICATE"),
            variable(environ, "CLIENT_CERTIFICATE"),
        ),
        alpn="h2" if by_grpc else "http/1.1",
        ca=config.certificate or (_ca_file(by_grpc) if is_tls else None),
        client_certificate=config.client_certificate,
        client_key=config.client_key,
    )


def _has_no_address(target: str) -> bool:
    """Return whether a gRPC target does not consist of a host and a port."""
    return target.startswith(("unix:", "unix-abstract:", "xds:")) or "://" in target


def _ca_file(by_grpc: bool) -> str | None:
    """Return the CA file that the exporter's library uses; None means the system's certificates."""
    if by_grpc:
        return os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        import certifi  # noqa: PLC0415 - a dependency of `requests`
    except ModuleNotFoundError:
        return None
    return str(certifi.where())


def _proxied(place: EndpointAddress, proxy: str) -> Check:
    if place.is_loopback:
        return warning(
            "otlp proxy",
            f"connections to {place.shown}, this machine, go through the proxy {proxy}",
            f"set no_proxy={place.host}",
        )
    return ok("otlp proxy", f"connections to {place.shown} go through the proxy {proxy}")


def _check_route(
    place: EndpointAddress, config: OtlpConfig, environ: Mapping[str, str], deadline: Deadline
) -> tuple[list[Check], ProbeReply | None]:
    """Check name, connection, TLS and protocol; also return the endpoint's answer, None on
    failure.
    """
    checks, line = check_connection("otlp", place, deadline)
    if line is None:
        return checks, None
    protocol = variable(environ, "PROTOCOL")
    expected = ExpectedProtocol(is_grpc(config), protocol, place.words.endpoint)
    step = "otlp tls" if place.is_tls else "otlp protocol"
    try:
        if place.is_tls:
            with line.open() as sock:
                tls = certificate_check("otlp tls", sock)
        heard = find_protocol(line, expected)
        if place.is_tls:
            checks.append(tls)
    except Problem as problem:
        is_tls = place.is_tls and "answers" not in problem.found
        checks.append(unreachable(step if is_tls else "otlp protocol", problem))
        return checks, None
    what = "HTTP/2, which gRPC needs" if is_grpc(config) else "HTTP/1.1"
    finding = f"{place.shown} speaks {what}"
    if heard.is_ours:
        finding += "; it is a cirron-otel collector"
    checks.append(ok("otlp protocol", finding, is_our_collector=heard.is_ours))
    return [*checks, *skew_check("otlp clock", heard)], heard


def _send_span(request: OtlpRequest, config: OtlpConfig, deadline: Deadline) -> Check:
    """Send one span, or a request without spans, and report the answer."""
    name = "otlp span" if request.is_sent else "otlp request"
    trace_id = os.urandom(16)
    body = one_span(trace_id, request.service) if request.is_sent else b""
    begun = time.monotonic()
    try:
        response = _send(config, body, deadline)
    except MissingExtraError as error:
        return failed(name, str(error), "install it: without it, nothing is sent")
    except CirronOtelError as error:
        return failed(name, str(error), "correct it")
    except TimeoutError:
        problem = Problem(
            f"no answer within {request.timeout:.3g} s", "try again with a longer --timeout"
        )
        return unreachable(name, problem)
    took = 1000 * (time.monotonic() - begun)
    details = {
        "status": response.status,
        "message": response.message,
        "rejected_spans": response.rejected_spans,
        "took_ms": round(took, 1),
        "trace_id": trace_id.hex() if request.is_sent else None,
    }
    suffix = f": {response.message}" if response.message else ""
    if response.outcome is not Outcome.ACCEPTED:
        advice = _advice(request, config, response, deadline)
        finding = f"not accepted: {response.status}{suffix}"
        return replace(unreachable(name, Problem(finding, advice)), details=details)
    if response.rejected_spans and request.is_sent:
        finding = f"{response.status}, and the span was rejected{suffix}"
        return replace(
            unreachable(name, Problem(finding, "the endpoint's message is the reason")),
            details=details,
        )
    if not request.is_sent:
        return ok(
            name, f"{response.status} in {took:.0f} ms for a request without spans", **details
        )
    finding = (
        f"accepted: {response.status} in {took:.0f} ms{suffix}; look for trace {trace_id.hex()}"
    )
    if response.warnings:
        return warning(name, finding, "; ".join(response.warnings), **details)
    return ok(name, finding, **details)


def _send(config: OtlpConfig, body: bytes, deadline: Deadline) -> Response:
    """Send a request once. Raises CirronOtelError, and TimeoutError if it takes too long."""
    transport = transport_for(config)

    def send() -> Response:
        return transport.send(body, deadline.left(config.timeout))

    try:
        return within(deadline.left() + 1, send)
    finally:
        transport.close()


def _advice(
    request: OtlpRequest, config: OtlpConfig, response: Response, deadline: Deadline
) -> str:
    """Return the remedy for a refusal, by its status."""
    headers = variable(request.environ, "HEADERS")
    status = response.status
    code = status[:3]
    if code in ("401", "407") or status == "UNAUTHENTICATED":
        if not config.headers:
            return f"it requires credentials: set {headers} (usually authorization=…)"
        return f"it does not accept the credentials in {headers}: copy them again, URL-encoded"
    if code == "403" or status == "PERMISSION_DENIED":
        return f"it does not allow the sender to write: check {headers} (key, tenant)"
    if code in ("404", "405", "200") or code.startswith("3"):
        return _other_path(request, config, deadline)
    if status in ("UNIMPLEMENTED", "UNKNOWN", "INTERNAL"):
        return (
            f"it accepts no traces over gRPC: set {variable(request.environ, 'PROTOCOL')}"
            "=http/protobuf, or use the port for gRPC (usually 4317)"
        )
    if code == "415":
        return (
            f"check {variable(request.environ, 'PROTOCOL')} (http/protobuf or http/json) and "
            + (variable(request.environ, "COMPRESSION"))
        )
    if code == "429" or status == "RESOURCE_EXHAUSTED":
        return "its rate limit is exceeded: try later, or raise the limit"
    if code.startswith("5") or status in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        return "it cannot accept data now: check its log; recorded data waits in the spool"
    return "check its log"


def _other_path(request: OtlpRequest, config: OtlpConfig, deadline: Deadline) -> str:
    """Probe the same host for the path that accepts traces, without sending a span."""
    name = variable(request.environ, "ENDPOINT")
    if is_grpc(config):
        return f"check {name}"
    url = urlsplit(config.endpoint)
    base = url.path.replace(TRACES_PATH, "").rstrip("/")
    for path in dict.fromkeys((base + TRACES_PATH, TRACES_PATH, "/otlp" + TRACES_PATH)):
        other = replace(config, endpoint=url._replace(path=path).geturl())
        if other.endpoint == config.endpoint or deadline.is_over:
            continue
        try:
            response = _send(other, b"", deadline)
        except (CirronOtelError, TimeoutError):
            break
        if response.outcome is Outcome.ACCEPTED and not response.warnings:
            shown = other.shown_endpoint
            short = shown if "TRACES" in name else shown.removesuffix(TRACES_PATH)
            return f"traces are accepted at {shown}: set {name}={short}"
    return f"check the path in {name}: usually it is {TRACES_PATH}"


def one_span(trace_id: bytes, service: str) -> bytes:
    """Return a request with a single span, named `SPAN_NAME`."""
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData  # noqa: PLC0415

    data = TracesData()
    resource = data.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = service
    scope = resource.scope_spans.add()
    scope.scope.name = SPAN_NAME
    now = time.time_ns()
    scope.spans.add(
        trace_id=trace_id,
        span_id=os.urandom(8),
        name=SPAN_NAME,
        kind=1,
        start_time_unix_nano=now,
        end_time_unix_nano=now + 1_000_000,
        flags=0x101,
    )
    return bytes(data.SerializeToString())
