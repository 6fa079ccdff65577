"""Detect the protocol of an endpoint with a few bytes, before a span is sent.

Sources: RFC 9113, 3.4 (an HTTP/2 server answers the preface with SETTINGS) and 4.1 (frames); RFC
9112, 2.1; RFC 8446, 5.1 (an alert record begins with the bytes 21, 3).
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto

from ...core.targets.otlp.transport import USER_AGENT
from .check import Check, Problem, ok, warning
from .network import Connector, tls_problem

SKEW_S = 5.0
"""The tolerated clock difference, seconds: the Date header has whole seconds, and the answer takes
time."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS, _GOAWAY = 4, 7
_FRAME_BYTES = 9
_ALERT = b"\x15\x03"
_MOST = 16 * 1024
_PATIENCE_S = 5.0
_OURS = b'{"status": "ok"}'


class DetectedProtocol(Enum):
    """A protocol, as far as it can be detected from outside."""

    HTTP1 = auto()
    HTTP2 = auto()
    TLS = auto()
    NOTHING = auto()
    """The server closes the connection without an answer."""
    SILENCE = auto()
    """The server neither answers nor closes the connection."""
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """An endpoint's answer."""

    spoken: DetectedProtocol
    data: bytes = b""
    skew_s: float | None = None
    """The time by which the endpoint's clock is ahead of ours according to the Date header,
    seconds; None without that header."""

    @property
    def is_ours(self) -> bool:
        """Whether the endpoint is this package's collector."""
        return self.spoken is DetectedProtocol.HTTP1 and self.data.rstrip().endswith(_OURS)


def probe_http1(line: Connector) -> ProbeReply:
    """Return the answer to a GET of `/health`, which our collector serves. Raises Problem."""
    request = (
        f"GET /health HTTP/1.1\r\nHost: {line.place.shown}\r\nUser-Agent: {USER_AGENT}\r\n"
        "Connection: close\r\n\r\n"
    )
    before = time.time()
    heard = _probe(line, request.encode("ascii", "ignore"), _is_complete)
    if heard.spoken is not DetectedProtocol.HTTP1:
        return heard
    return ProbeReply(heard.spoken, heard.data, _skew(heard.data, before, time.time()))


def probe_http2(line: Connector) -> ProbeReply:
    """Return the answer to the HTTP/2 preface, with which gRPC begins. Raises Problem."""
    return _probe(line, _PREFACE, lambda data: len(data) >= _FRAME_BYTES)


def _is_complete(data: bytes) -> bool:
    """Return whether the answer is complete; an answer without a length ends with the
    connection.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    if not data.startswith(b"HTTP/"):
        return len(data) >= _FRAME_BYTES
    for each in head.lower().split(b"\r\n"):
        if each.startswith(b"content-length:"):
            with contextlib.suppress(ValueError):
                return bool(end) and len(body) >= int(each.partition(b":")[2])
    return False


def _probe(line: Connector, words: bytes, is_enough: Callable[[bytes], bool]) -> ProbeReply:
    """Send `words` on a new connection, and return the answer. Raises Problem."""
    data = b""
    with line.open() as sock:
        end = time.monotonic() + line.deadline.left(_PATIENCE_S)
        try:
            sock.sendall(words)
            while not is_enough(data) and len(data) < _MOST:
                sock.settimeout(max(end - time.monotonic(), 0.001))
                piece = sock.recv(4096)
                if not piece:
                    break
                data += piece
        except TimeoutError:
            return ProbeReply(DetectedProtocol.SILENCE if not data else _kind(data), data)
        except OSError:
            pass  # the server closed the connection, perhaps because of the bytes that it received
    if not data and line.place.is_tls:
        _read_refusal(line)
    return ProbeReply(_kind(data), data)


def _read_refusal(line: Connector) -> None:
    """Raise Problem if the server refuses us after the handshake, as TLS 1.3 allows.

    Nothing is sent before the alert is read: a server with unread input would reset the connection,
    and the reason would be lost.
    """
    with line.open() as sock:
        sock.settimeout(line.deadline.left(_PATIENCE_S))
        try:
            sock.recv(1)
        except ssl.SSLError as error:
            if (error.reason or "").upper() not in ("", "UNEXPECTED_EOF_WHILE_READING"):
                raise tls_problem(line.place, error) from None
        except OSError:
            pass


def _kind(data: bytes) -> DetectedProtocol:
    if not data:
        return DetectedProtocol.NOTHING
    if data.startswith(b"HTTP/"):
        head = data.partition(b"\r\n")[0]
        # Go's servers and nginx answer plain text on a TLS port with a plain-text 400.
        return (
            DetectedProtocol.TLS if b" 400" in head and b"HTTPS" in data else DetectedProtocol.HTTP1
        )
    if data.startswith(_ALERT):
        return DetectedProtocol.TLS
    if len(data) >= _FRAME_BYTES and data[3] in (_SETTINGS, _GOAWAY) and data[5:9] == bytes(4):
        return DetectedProtocol.HTTP2
    return DetectedProtocol.OTHER


def _skew(data: bytes, before: float, after: float) -> float | None:
    for each in data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        name, _, value = each.partition(b":")
        if name.strip().lower() == b"date":
            with contextlib.suppress(ValueError, OverflowError):
                server_time = parsedate_to_datetime(value.strip().decode("latin-1")).timestamp()
                # The server read its clock between `before` and `after`, in whole seconds.
                if server_time + 1 < before:
                    return server_time + 1 - before
                return max(server_time - after, 0.0)
    return None


def skew_check(name: str, heard: ProbeReply) -> list[Check]:
    """Check the clock of an endpoint that sends its time."""
    skew = heard.skew_s
    if skew is None:
        return []
    if abs(skew) <= SKEW_S:
        return [ok(name, "the endpoint's clock agrees with ours", skew_s=round(skew, 1))]
    ahead = "ahead of" if skew > 0 else "behind"
    return [
        warning(
            name,
            f"the endpoint's clock is {abs(skew):,.0f} s {ahead} ours",
            "set both by NTP: backends drop or misplace spans with a wrong time",
            skew_s=round(skew, 1),
        )
    ]


@dataclass(frozen=True, slots=True)
class ExpectedProtocol:
    """The expected protocol, and the names of the settings for the protocol and the endpoint."""

    is_grpc: bool
    protocol_setting: str
    endpoint_setting: str


def find_protocol(line: Connector, expected: ExpectedProtocol) -> ProbeReply:
    """Return the endpoint's answer in the expected protocol. Raises Problem for another
    protocol.
    """
    heard = (probe_http2 if expected.is_grpc else probe_http1)(line)
    protocol = DetectedProtocol.HTTP2 if expected.is_grpc else DetectedProtocol.HTTP1
    if heard.spoken is protocol:
        return heard
    if heard.spoken in (DetectedProtocol.NOTHING, DetectedProtocol.OTHER):
        other = (probe_http1 if expected.is_grpc else probe_http2)(line)
        if other.spoken in (DetectedProtocol.HTTP1, DetectedProtocol.HTTP2, DetectedProtocol.TLS):
            heard = other
        elif not line.place.is_tls and line.speaks_tls():
            heard = ProbeReply(DetectedProtocol.TLS)
    if heard.spoken is protocol:
        return heard
    raise _other_protocol(line, expected, heard)


def _other_protocol(line: Connector, expected: ExpectedProtocol, heard: ProbeReply) -> Problem:
    shown, setting = line.place.shown, expected.protocol_setting
    protocol = "gRPC" if expected.is_grpc else "HTTP/1.1"
    if heard.spoken is DetectedProtocol.TLS:
        return Problem(
            f"{shown} speaks TLS, but {expected.endpoint_setting} specifies no TLS",
            f"use https:// in {expected.endpoint_setting}",
        )
    if heard.spoken is DetectedProtocol.HTTP1:
        return Problem(
            f"{shown} answers HTTP/1.1, not gRPC",
            f"set {setting}=http/protobuf, or use the port for gRPC (usually 4317)",
        )
    if heard.spoken is DetectedProtocol.HTTP2:
        return Problem(
            f"{shown} answers HTTP/2, as gRPC does, not HTTP/1.1",
            f"set {setting}=grpc, or use the port for HTTP (usually 4318)",
        )
    client = line.place.words.client_certificate
    if heard.spoken is DetectedProtocol.NOTHING and line.place.is_tls and client:
        refusal = (
            "does not accept our client certificate, or" if line.place.client_certificate else ""
        )
        return Problem(
            f"{shown} closes the connection after the TLS handshake: perhaps it"
            f" {refusal or 'requires a client certificate, or'} something else is there",
            f"{'check' if refusal else 'set'} {client}, or check the port",
        )
    what = {
        DetectedProtocol.NOTHING: "closes the connection without an answer",
        DetectedProtocol.SILENCE: "accepts the connection, but sends nothing",
    }.get(heard.spoken, f"answers with something other than {protocol}")
    return Problem(
        f"{shown} {what}", f"check the port in {expected.endpoint_setting}: something else is there"
    )
