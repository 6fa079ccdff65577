"""An HTTP client for one server, without third-party libraries, over one persistent connection.

OTLP uses `requests`, which comes with the extra `otlp`. The platform must be reachable without an
extra. This client also does more: it enforces a deadline for the complete response, and another
thread can cancel a request.
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
"""`socket` imports this module at its first name lookup. A fork during the import would leave the
child with a partly imported module for good.
"""

_left_by_parents: Final[list[http.client.HTTPConnection]] = []
"""In a forked child, the parent's connections, kept alive: their destructors would close them."""

_LONGEST_ANSWER = 64 * 1024
"""The maximum number of bytes that are read from a response; the rest is ignored."""


class HttpAnswer(NamedTuple):
    """A server's response. Redirects are returned, not followed."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Header values by lower-case name; if a header is repeated, its last value."""
    content: bytes


class BrokenAnswerError(Exception):
    """The response is not valid HTTP."""


class HttpClient:
    """Sends requests to the server of `endpoint`.

    Only one thread may send requests, but other threads may call `interrupt`. Proxies come from
    `http_proxy`, `https_proxy` and `no_proxy`. Servers are verified with the certificates in the
    file `certificate`, or else with the system's certificates (or `SSL_CERT_FILE`).
    """

    def __init__(self, endpoint: str, *, certificate: str | None = None) -> None:
        """Prepare the client, without opening a connection.

        Raises UsageError if `endpoint` or the certificate file is unusable.
        """
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
        """Send one request, without retrying it.

        `path` is appended to the endpoint's path. If `body` is a file, `headers` must contain its
        length. `timeout`, in seconds, applies to connecting, to each piece of the body, and to the
        complete response. Raises OSError (TimeoutError, ssl.SSLError, ...) if the network fails,
        and BrokenAnswerError if the response is not valid HTTP.
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
                # If a server refuses a request, it may respond without reading the body.
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
            is_whole = False  # the status line alone is sufficient
        if not is_whole or response.will_close:
            self.close()
        return HttpAnswer(response.status, response.reason, headers, content)

    def _ready(self, timeout: float) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is not None and connection.sock is not None:
            if not _is_readable(connection.sock):
                connection.sock.settimeout(timeout)
                return connection
            self.close()  # the server closed the connection, or sent data without a request
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
        """Cancel another thread's request, if any; that request raises OSError."""
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                # SSLSocket.shutdown would drop the TLS layer while the other thread reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: close the child's copy of the connection without sending anything."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closing the connection could wait for a lock that a thread of the parent held.
            _left_by_parents.append(connection)
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    os.close(connection.sock.detach())


def checked_url(endpoint: str) -> SplitResult:
    """Parse `endpoint`. Raises UsageError if it is not a usable HTTP URL."""
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
    """Return the proxy for `url` that the environment configures, if any."""
    proxy_url = getproxies().get(url.scheme)
    if not proxy_url or proxy_bypass(_host_and_port(url)):
        return None
    proxy = urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
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
    """Reads from a socket until a deadline, which a slow sender cannot extend."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", 0)  # keeps the socket open for as long as it is read
        self._deadline = time.monotonic() + seconds

    def makefile(self, _: str) -> io.BufferedReader:
        """Return a reader; HTTPResponse calls this method of a socket."""
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
