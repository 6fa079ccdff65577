"""HTTP to one server without a library: any method, any body, one connection that is kept.

OTLP goes through `requests`, which the extra `otlp` brings. The platform must be reached without an
extra, and more is asked of the connection here: a deadline over the whole of an answer, and that
another thread can break it off.
"""

from __future__ import annotations

import base64
import contextlib
import encodings.idna
import functools
import http.client
import io
import os
import select
import socket
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from ....errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PRELOADED: Final = (encodings.idna,)
"""What `socket` imports with the first name it looks up: to fork just then would leave the child
with half of it for good."""

_left_by_parents: Final[list[http.client.HTTPConnection]] = []
"""Connections of a forked child's parent, kept from destructors that would close them."""

_LONGEST_ANSWER = 64 * 1024
"""Bytes of an answer that are read; what is more is not looked at."""


class HttpAnswer(NamedTuple):
    """A server's answer; redirects are answers like any other and are not followed."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By names in lower case; of one that is repeated, the last."""
    content: bytes


class BrokenAnswerError(Exception):
    """What came back is no HTTP."""


class HttpClient:
    """Requests to the server of `endpoint`, for one thread; others may `interrupt` it.

    Proxies are those of `http_proxy`, `https_proxy` and `no_proxy`. Servers are verified against
    the system's certificates (or `SSL_CERT_FILE`), or those in the file `certificate`.
    """

    def __init__(self, endpoint: str, *, certificate: str | None = None) -> None:
        """Nothing is connected yet. Raises UsageError where `endpoint` or a file is unusable."""
        self._url = checked_url(endpoint)
        self._tls = _tls(certificate) if self._url.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None
        self._proxied_as = ""
        self._proxy_headers: dict[str, str] = {}

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        *,
        timeout: float,
    ) -> HttpAnswer:
        """Send one request, once. `path` follows the endpoint's own path; a file needs its length.

        `timeout`, seconds, is for connecting, for each piece of the body, and for the whole of the
        answer. Raises OSError (TimeoutError, ssl.SSLError, ...) where the network fails, and
        BrokenAnswerError.
        """
        connection = self._ready(timeout)
        connection.response_class = functools.partial(  # type: ignore[assignment]
            _response, timeout
        )
        try:
            try:
                connection.request(
                    method,
                    self._proxied_as + self._url.path.rstrip("/") + path,
                    body=body,
                    headers={**self._proxy_headers, **headers},
                )
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a body need not read it: it may have answered already.
                if connection.sock is None:
                    raise
            response = connection.getresponse()
            return self._read(response, method)
        except http.client.HTTPException as error:
            self.close()
            if isinstance(error, OSError):  # RemoteDisconnected is both
                raise
            raise BrokenAnswerError(type(error).__name__) from None
        except (OSError, ValueError):
            self.close()
            raise

    def _read(self, response: http.client.HTTPResponse, method: str) -> HttpAnswer:
        headers = {name.lower(): value for name, value in response.getheaders()}
        content = b""
        try:
            if method != "HEAD":
                content = response.read(_LONGEST_ANSWER)
            is_whole = response.isclosed() or not response.read(1)
        except (http.client.HTTPException, OSError, ValueError):
            is_whole = False  # the status line has said what counts
        if not is_whole or response.will_close:
            self.close()
        return HttpAnswer(response.status, response.reason, headers, content)

    def _ready(self, timeout: float) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is not None and connection.sock is not None:
            if not _is_readable(connection.sock):
                connection.sock.settimeout(timeout)
                return connection
            self.close()  # the server has hung up, or says what nobody asked for
        connection = self._connection = self._made(timeout)
        connection.connect()
        return connection

    def _made(self, timeout: float) -> http.client.HTTPConnection:
        url, proxy = self._url, _proxy_for(self._url)
        self._proxied_as, self._proxy_headers = "", {}
        host, port = url.hostname or "", url.port
        if proxy is None:
            if self._tls is None:
                return http.client.HTTPConnection(host, port, timeout)
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        via, via_port, login = proxy.hostname or "", proxy.port, _basic(proxy)
        if self._tls is None:
            self._proxied_as = f"http://{_host_and_port(url)}"
            self._proxy_headers = login
            return http.client.HTTPConnection(via, via_port, timeout)
        tunnel = http.client.HTTPSConnection(via, via_port, timeout=timeout, context=self._tls)
        tunnel.set_tunnel(host, port, login)
        return tunnel

    def interrupt(self) -> None:
        """Break off the request that another thread is in, if any: it ends with an OSError."""
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                # Not an SSLSocket's own: that would drop its TLS under the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: close its copy of the connection, without a word to the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # To close the connection could wait for a lock that a thread of the parent holds.
            _left_by_parents.append(connection)
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    os.close(connection.sock.detach())


def checked_url(endpoint: str) -> SplitResult:
    """`endpoint` as a URL. Raises UsageError where it is none that HTTP can be spoken with."""
    try:
        url = urlsplit(endpoint)
        is_good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_good = False
    if not is_good or any(ord(letter) <= 32 or ord(letter) >= 127 for letter in endpoint):
        raise UsageError("the endpoint is no http:// or https:// URL: say https://host or similar")
    if url.username is not None or url.query or url.fragment:
        raise UsageError("the endpoint holds a user, a query or a fragment: expected none of them")
    return url


def _tls(certificate: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=certificate)
    except OSError as error:
        raise UsageError(
            f"the certificates in {certificate or 'the usual place'} cannot be used:"
            f" {error.strerror or error}"
        ) from None


def _host_and_port(url: SplitResult) -> str:
    return url.netloc.rpartition("@")[2]


def _proxy_for(url: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for `url`, if any."""
    found = getproxies().get(url.scheme)
    if not found or proxy_bypass(_host_and_port(url)):
        return None
    proxy = urlsplit(found if "://" in found else f"http://{found}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise UsageError(
            f"the proxy for {url.scheme} is no http:// URL, the only kind that is supported here:"
            f" check {url.scheme}_proxy"
        )
    return proxy


def _basic(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _is_readable(sock: socket.socket) -> bool:
    try:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


class _Timed(io.RawIOBase):
    """What a socket receives, up to a deadline that no slow sender can put off."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", 0)  # keeps the socket open for as long as it is read
        self._deadline = time.monotonic() + seconds

    def makefile(self, _: str) -> io.BufferedReader:
        """As HTTPResponse asks a socket for what it reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _response(
    seconds: float, sock: socket.socket, debuglevel: int = 0, method: str | None = None
) -> http.client.HTTPResponse:
    source = cast(socket.socket, _Timed(sock, seconds))
    return http.client.HTTPResponse(source, debuglevel, method)
