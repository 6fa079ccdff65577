"""Check the host name, connection and TLS of an endpoint, and explain the first failure."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from .check import Check, Deadline, Problem, ok, unreachable, warning, within

DAYS_LEFT = 14
"""A certificate that expires in fewer days gets a warning."""

_EXPIRED, _NOT_YET = 10, 9
_SELF_SIGNED = (18, 19)
_NO_ISSUER = (2, 20, 21)
_OTHER_NAME = (62, 64)
_WANTS_CERTIFICATE = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")
_REFUSES_CERTIFICATE = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "ACCESS_DENIED")
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF")


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The names of an endpoint's settings, for use in advice."""

    endpoint: str
    certificate: str
    client_certificate: str = ""
    """"" if the endpoint does not support client certificates."""


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """The address of an endpoint, and the credentials for TLS."""

    host: str
    port: int
    is_tls: bool
    words: EndpointSettings
    alpn: str = "http/1.1"
    ca: str | None = None
    """A file of CA certificates; None means the system's certificates."""
    client_certificate: str | None = None
    client_key: str | None = None

    @property
    def shown(self) -> str:
        """The address for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the address belongs to this machine."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost" or self.host.endswith(".localhost")


AddressInfo = tuple[Any, ...]
"""An entry of the result of `getaddrinfo`."""


def resolve_host(place: EndpointAddress, deadline: Deadline) -> list[AddressInfo]:
    """Resolve the host. Raises Problem."""
    try:
        return within(
            deadline.left(),
            lambda: list(socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)),
        )
    except TimeoutError:
        why = "the name server does not answer"
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
    raise Problem(
        f"{place.host} has no address: {why}",
        f"check the name in {place.words.endpoint}; in a container, check whether it is"
        " known there",
    )


def connect(place: EndpointAddress, found: list[AddressInfo], deadline: Deadline) -> socket.socket:
    """Connect to the first address that accepts a connection. Raises Problem."""
    failures: list[tuple[str, OSError]] = []
    for number, (family, kind, protocol, _, address) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        # Share the remaining time among the remaining addresses: any of them may not answer.
        sock.settimeout(deadline.left() / (len(found) - number))
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            failures.append((address[0], error))
        else:
            return sock
    raise _unconnected(place, failures, deadline)


def _unconnected(
    place: EndpointAddress, failures: list[tuple[str, OSError]], deadline: Deadline
) -> Problem:
    kinds = [type(error) for _, error in failures]
    tried = ", ".join(dict.fromkeys(address for address, _ in failures))
    if ConnectionRefusedError in kinds:
        advice = f"start a receiver there, or check the port in {place.words.endpoint}"
        if place.is_loopback:
            advice += "; in a container this is the container itself"
        return Problem(f"{place.shown} refuses connections ({tried})", advice)
    if TimeoutError in kinds:
        return Problem(
            f"{place.shown} does not answer within {deadline.seconds:.3g} s ({tried})",
            f"check the host and the port in {place.words.endpoint}, and whether a firewall"
            " blocks it",
        )
    why = failures[-1][1].strerror or str(failures[-1][1]) if failures else "no address"
    return Problem(
        f"{place.shown} cannot be reached: {why}",
        f"check {place.words.endpoint}, and the network of this machine",
    )


class Connector:
    """Opens connections to a resolved endpoint, with TLS if the endpoint uses it."""

    def __init__(
        self, place: EndpointAddress, found: list[AddressInfo], deadline: Deadline
    ) -> None:
        """Store the resolved addresses; `open` connects."""
        self.place, self.deadline = place, deadline
        self._found = found

    @contextlib.contextmanager
    def open(self, *, tls: bool | None = None, verify: bool = True) -> Iterator[socket.socket]:
        """Yield a connection; `tls` overrides whether the endpoint uses TLS. Raises Problem."""
        sock = connect(self.place, self._found, self.deadline)
        try:
            sock.settimeout(self.deadline.left())
            if self.place.is_tls if tls is None else tls:
                sock = self._secured(sock, verify)
            yield sock
        finally:
            sock.close()

    def _secured(self, sock: socket.socket, verify: bool) -> ssl.SSLSocket:
        context = self._context(verify)
        try:
            return context.wrap_socket(sock, server_hostname=self.place.host)
        except (OSError, ValueError) as error:
            sock.close()
            raise tls_problem(self.place, error) from None

    def _context(self, verify: bool) -> ssl.SSLContext:
        place = self.place
        try:
            context = ssl.create_default_context(cafile=place.ca)
            if place.client_certificate:
                context.load_cert_chain(place.client_certificate, place.client_key)
        except OSError as error:
            raise Problem(
                f"the certificates cannot be used: {error.strerror or error}",
                f"check {place.words.certificate}"
                + (f" and {place.words.client_certificate}" if place.client_certificate else ""),
            ) from None
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols([place.alpn])
        return context

    def speaks_tls(self) -> bool:
        """Return whether the endpoint answers a TLS handshake, even with an invalid certificate."""
        try:
            with self.open(tls=True, verify=False):
                return True
        except Problem:
            return False


def tls_problem(place: EndpointAddress, error: Exception) -> Problem:
    """Explain a TLS error."""
    words, shown = place.words, place.shown
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(place, error)
    reason = (getattr(error, "reason", None) or "").upper()
    detail = f"{type(error).__name__}" if not reason else reason.replace("_", " ").lower()
    if any(word in reason for word in _NO_TLS) or isinstance(error, ConnectionResetError):
        return Problem(
            f"{shown} does not speak TLS ({detail})",
            f"use http:// in {words.endpoint} for a server without TLS, or check the port",
        )
    if words.client_certificate and any(word in reason for word in _REFUSES_CERTIFICATE):
        return Problem(
            f"{shown} does not accept our client certificate ({detail})",
            f"check {words.client_certificate}, its issuer and its expiry date",
        )
    if words.client_certificate and any(word in reason for word in _WANTS_CERTIFICATE):
        if place.client_certificate is None:
            return Problem(
                f"{shown} requires a client certificate ({detail})",
                f"set {words.client_certificate}",
            )
        return Problem(
            f"{shown} ends the handshake ({detail})",
            f"check {words.client_certificate}, and which TLS versions the endpoint supports",
        )
    if isinstance(error, TimeoutError):
        return Problem(
            f"{shown} does not answer the TLS handshake in time",
            f"use http:// in {words.endpoint} if it does not use TLS; otherwise it may hang",
        )
    return Problem(f"no TLS with {shown}: {detail}", f"check {words.endpoint}")


def _untrusted(place: EndpointAddress, error: ssl.SSLCertVerificationError) -> Problem:
    code, shown, words = error.verify_code, place.shown, place.words
    if code == _EXPIRED:
        return Problem(f"the certificate of {shown} has expired", "renew it there")
    if code == _NOT_YET:
        return Problem(
            f"the certificate of {shown} is not valid yet",
            "check the clock of this machine, and when it was issued",
        )
    if code in _OTHER_NAME:
        return Problem(
            f"the certificate of {shown} is for another name: {error.verify_message}",
            f"use the name in the certificate for {words.endpoint}",
        )
    if code in _SELF_SIGNED or code in _NO_ISSUER:
        which = "itself" if code in _SELF_SIGNED else "an unknown CA"
        known = f"those in {place.ca}" if place.ca else "the system's"
        return Problem(
            f"the certificate of {shown} is issued by {which}; the trusted CAs are {known}",
            f"set {words.certificate} to a file with the certificate of its CA",
        )
    return Problem(
        f"the certificate of {shown} is not trusted: {error.verify_message}",
        f"check {words.certificate}",
    )


def certificate_check(name: str, sock: socket.socket) -> Check:
    """Check how long the server's certificate remains valid; the certificate is trusted."""
    if not isinstance(sock, ssl.SSLSocket):
        return ok(name, "no TLS")
    peer: dict[str, Any] = dict(sock.getpeercert() or {})
    finding = f"{sock.version()}, a trusted certificate"
    ends = peer.get("notAfter")
    days = (ssl.cert_time_to_seconds(ends) - time.time()) / 86_400 if ends else None
    if days is None:
        return ok(name, finding, version=sock.version())
    finding += f" until {ends}"
    if days < DAYS_LEFT:
        return warning(name, f"{finding}: {days:.0f} days", "renew it", version=sock.version())
    return ok(name, finding, version=sock.version(), not_after=ends)


def proxy_of(scheme: str, netloc: str, *, is_grpc: bool = False) -> SplitResult | None:
    """Return the proxy from the environment that `requests` or gRPC would use for an address."""
    proxies = getproxies()
    names = ("grpc", "https", "http") if is_grpc else (scheme,)
    address = next((proxies[name] for name in names if proxies.get(name)), None)
    if address is None or proxy_bypass(netloc):
        return None
    try:
        proxy = urlsplit(address if "://" in address else f"http://{address}")
        return proxy if proxy.hostname and proxy.port != 0 else None
    except ValueError:
        return None


def check_connection(
    prefix: str, place: EndpointAddress, deadline: Deadline
) -> tuple[list[Check], Connector | None]:
    """Resolve the name and connect; return the checks, and a Connector if both succeed."""
    begun = time.monotonic()
    try:
        infos = resolve_host(place, deadline)
    except Problem as problem:
        return [unreachable(f"{prefix} dns", problem)], None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in infos))
    took = f"{1000 * (time.monotonic() - begun):.0f} ms"
    checks = [ok(f"{prefix} dns", f"{place.host} is {', '.join(addresses)}", addresses=addresses)]
    if place.host in addresses:
        checks = []  # the host is an address, so no name was resolved
    line = Connector(place, infos, deadline)
    begun = time.monotonic()
    try:
        with line.open(tls=False) as sock:
            took = f"{1000 * (time.monotonic() - begun):.0f} ms"
            peer = sock.getpeername()[0]
    except Problem as problem:
        return [*checks, unreachable(f"{prefix} tcp", problem)], None
    checks.append(ok(f"{prefix} tcp", f"{place.shown} accepts connections ({peer}, {took})"))
    return checks, line
