"""An HTTP client for one server over urllib3: any method and body, one open connection.

It enforces a deadline for the complete response, another thread can cancel a request, and a forked
child can abandon the connection. It neither follows redirects nor resends requests.
"""

from __future__ import annotations

import contextlib
import encodings.idna
import functools
import http.client
import importlib.util
import io
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from urllib3 import HTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from ...errors import UsageError, root_cause
from .proxies import Proxy, host_and_port, proxy_by_scheme

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HAS_SOCKS: Final = importlib.util.find_spec("socks") is not None
if _HAS_SOCKS:
    from urllib3.contrib.socks import SOCKSProxyManager

_PRELOADED: Final = (encodings.idna,)
"""`socket` imports this module at its first name lookup. A fork during the import would leave the
child with a partly imported module for good.
"""

_left_by_parents: Final[list[HTTPConnection]] = []
"""In a forked child, the parent's connections, kept alive: their destructors would close them."""

_BASE: Final = http.client.HTTPConnection
"""The base class of urllib3's connections. Its methods write a request and read a response with two
thirds of the CPU time of urllib3's methods, which add features that are not used here."""

_LONGEST_ANSWER = 64 * 1024
_PIECE = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}


class HttpAnswer(NamedTuple):
    """A server's response. Redirects are returned, not followed."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Header values by lower-case name; if a header is repeated, its last value."""
    content: bytes
    problem: Exception | None = None
    """The reason why the end of the body is missing, if it is."""
    cookies: tuple[str, ...] = ()
    """The values of the Set-Cookie headers."""


class BrokenAnswerError(Exception):
    """The response is not valid HTTP."""


class AnswerTooLongError(Exception):
    """The body of a response is longer than the caller accepts."""


class AnswerTooLateError(TimeoutError):
    """The response was not complete at its deadline."""


class HttpClient:
    """Sends requests to the server of `endpoint`.

    Only one thread may send requests, but other threads may call `interrupt`. By default proxies
    come from `http_proxy`, `https_proxy` and `no_proxy`, and servers are verified with the system's
    certificates (or `SSL_CERT_FILE`).
    """

    def __init__(
        self,
        endpoint: str,
        *,
        certificate: str | None = None,
        trust: Callable[[], ssl.SSLContext] | None = None,
        find_proxy: Callable[[SplitResult], Proxy | None] = proxy_by_scheme,
    ) -> None:
        """Prepare the client, without opening a connection.

        `certificate` is a file of CA certificates to use instead of the system's. `trust` replaces
        both: it returns the TLS settings of one new connection. Raises UsageError if `endpoint` or
        the certificate file is unusable.
        """
        self._url = checked_url(endpoint)
        self._trust = trust or functools.cache(functools.partial(_tls, certificate))
        if trust is None and self._url.scheme == "https":
            self._trust()
        self._find_proxy = find_proxy
        self._connection: HTTPConnection | None = None
        self._proxied_as = ""
        self._proxy_headers: Mapping[str, str] = {}

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        *,
        timeout: float,
        connect_timeout: float | None = None,
        silence: float | None = None,
        longest: int = _LONGEST_ANSWER,
        decode: bool = False,
    ) -> HttpAnswer:
        """Send one request, without retrying it.

        `path` is appended to the endpoint's path. If `body` is a file, `headers` must contain its
        length.

        `timeout`, in seconds, applies to connecting (unless `connect_timeout` is given), to each
        piece of the body, and to the complete response, during which the server may pause for at
        most `silence` seconds. At most `longest` bytes of the response's body are read, counted
        after decompression if `decode` is set.

        Raises OSError (TimeoutError, ssl.SSLError, ...) if the network fails, ValueError if a
        header or the host cannot be sent, BrokenAnswerError, and UsageError for an unusable proxy.
        """
        try:
            connection = self._ready(timeout if connect_timeout is None else connect_timeout)
            connection.sock.settimeout(max(timeout, 0.001))
            _limit_response(connection, timeout, silence)
            self._send(connection, method, path, headers, body)
            response = _BASE.getresponse(connection)
            return self._read(response, longest, decode)
        except http.client.HTTPException as error:
            self.close()
            if isinstance(error, OSError):  # RemoteDisconnected has both types
                raise
            raise BrokenAnswerError(type(error).__name__) from error
        except BaseException:
            self.close()
            raise

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None,
    ) -> None:
        target = self._proxied_as + self._url.path.rstrip("/") + path
        try:
            _BASE.request(connection, method, target, body, {**self._proxy_headers, **headers})
        except (BrokenPipeError, ConnectionResetError):
            # If a server refuses a request, it may respond without reading the body.
            if connection.sock is None:
                raise

    def _read(self, response: http.client.HTTPResponse, longest: int, decode: bool) -> HttpAnswer:
        headers = {name.lower(): value for name, value in response.getheaders()}
        content, problem = _body(response, headers if decode else {}, longest)
        if problem is not None or response.will_close:
            self.close()
        cookies = response.headers.get_all("set-cookie", ()) if "set-cookie" in headers else ()
        return HttpAnswer(
            response.status, response.reason, headers, content, problem, tuple(cookies)
        )

    def _ready(self, timeout: float) -> HTTPConnection:
        connection = self._connection
        if connection is not None:
            if connection.sock is not None and not _is_readable(connection.sock):
                return connection
            self.close()  # the server closed the connection, or sent data without a request
        connection = self._connection = self._made(timeout)
        _limit_response(connection, timeout, None)
        _connect(connection)
        return connection

    def _made(self, timeout: float) -> HTTPConnection:
        url, proxy = self._url, self._find_proxy(self._url)
        is_tls = url.scheme == "https"
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        options: dict[str, Any] = {"timeout": timeout}
        if is_tls:
            options["ssl_context"] = self._trust()
        self._proxied_as, self._proxy_headers = "", {}
        kind: type[HTTPConnection] = _TlsConnection if is_tls else _Connection
        if proxy is None:
            return kind(host, port, **options)
        if proxy.scheme.startswith("socks"):
            return _over_socks(proxy, url.scheme)(host, port, **options)
        options["proxy"] = parse_url(proxy.url)
        if proxy.scheme == "https":
            kind = _TlsConnection
            options["ssl_context"] = self._trust()
            options["proxy_config"] = ProxyConfig(self._trust(), False, None, None)
        connection = kind(proxy.host, proxy.port or _PORTS[proxy.scheme], **options)
        if is_tls:
            connection.set_tunnel(host, port, proxy.login, scheme=proxy.scheme)
        else:
            self._proxied_as = f"http://{host_and_port(url)}"
            self._proxy_headers = proxy.login
        return connection

    def interrupt(self) -> None:
        """Cancel another thread's request, if any; that request raises OSError."""
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                # SSLSocket.shutdown would drop the TLS layer while the other thread reads.
                socket.socket.shutdown(_system_socket(sock), socket.SHUT_RDWR)

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
                    os.close(_system_socket(connection.sock).detach())


class _Connection(HTTPConnection):
    putheader = _BASE.putheader


class _TlsConnection(HTTPSConnection):
    putheader = _BASE.putheader


def checked_url(endpoint: str) -> SplitResult:
    """Parse `endpoint`. Raises UsageError if it is not a usable HTTP URL."""
    try:
        url = urlsplit(endpoint)
        is_good = url.scheme in _PORTS and bool(url.hostname) and url.port != 0
    except ValueError:
        is_good = False
    if not is_good or any(ord(letter) <= 32 or ord(letter) >= 127 for letter in endpoint):
        raise UsageError(
            "the endpoint is not an http:// or https:// URL: use https://host or similar"
        )
    if url.username is not None or url.query or url.fragment:
        raise UsageError("the endpoint must not contain a user, a query or a fragment")
    return url


def _tls(certificate: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=certificate)
    except OSError as error:
        raise UsageError(
            f"the certificates in {certificate or 'the usual place'} cannot be used:"
            f" {error.strerror or error}"
        ) from None


def _connect(connection: HTTPConnection) -> None:
    """Connect. Instead of urllib3's errors, raises the OSError or ValueError that caused them."""
    try:
        connection.connect()
        return
    except HTTPError as error:
        cause = root_cause(error)
    except ssl.SSLError as error:
        if connection.proxy is None or connection.has_connected_to_proxy:
            raise
        cause = OSError(f"no TLS connection to the proxy: {error.reason or error}")
    raise cause  # not above, where the error of urllib3 would become its context


def _over_socks(proxy: Proxy, scheme: str) -> Callable[..., HTTPConnection]:
    if not _HAS_SOCKS:
        raise UsageError(
            f"the proxy for {scheme} is a SOCKS proxy, which needs the package PySocks: install it,"
            f" or check {scheme}_proxy"
        )
    manager = SOCKSProxyManager(proxy.url, proxy.user, proxy.password)
    pools: Mapping[str, Any] = manager.pool_classes_by_scheme
    options = manager.connection_pool_kw["_socks_options"]
    return functools.partial(pools[scheme].ConnectionCls, options)


def _is_readable(sock: Any) -> bool:
    """Return whether a socket has data or is closed; urllib3 asks the same at more expense."""
    try:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def _system_socket(sock: Any) -> socket.socket:
    """Return the underlying socket, which a TLS connection through an https:// proxy wraps."""
    return sock if isinstance(sock, socket.socket) else cast(socket.socket, sock.socket)


def _body(
    response: http.client.HTTPResponse, headers: Mapping[str, str], longest: int
) -> tuple[bytes, Exception | None]:
    """Read a body up to its end or an error; return its content, and the error or None.

    The content is decompressed if `headers` name a coding.
    """
    coding = headers.get("content-encoding")
    source: http.client.HTTPResponse | HTTPResponse = response
    if coding is not None:
        source = HTTPResponse(response, {"content-encoding": coding}, preload_content=False)
    content = bytearray()
    try:
        while piece := source.read(min(_PIECE, longest + 1 - len(content))):
            content += piece
            if len(content) > longest:
                return bytes(content[:longest]), AnswerTooLongError(f"more than {longest} bytes")
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
    except (http.client.HTTPException, HTTPError, OSError, ValueError) as error:
        cause = root_cause(error)
        return bytes(content), cause if isinstance(cause, Exception) else error
    return bytes(content), None


class _Timed(io.RawIOBase):
    """Reads from a socket until a deadline, which a slow sender cannot extend."""

    def __init__(self, sock: socket.socket, seconds: float, silence: float | None) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", 0)  # keeps the socket open for as long as it is read
        self._deadline = time.monotonic() + seconds
        self._silence = silence

    def makefile(self, _: str) -> io.BufferedReader:
        """Return a reader; HTTPResponse calls this method of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise AnswerTooLateError("timed out")
        is_last = self._silence is None or left <= self._silence
        self._sock.settimeout(left if is_last else self._silence)
        try:
            return self._file.readinto(buffer)
        except TimeoutError:
            if not is_last:
                raise
        raise AnswerTooLateError("timed out")

    def close(self) -> None:
        self._file.close()
        super().close()


def _limit_response(connection: HTTPConnection, seconds: float, silence: float | None) -> None:
    """Limit the time to read the next response, counted from the end of the request."""

    def made(
        sock: socket.socket, debuglevel: int = 0, method: str | None = None
    ) -> http.client.HTTPResponse:
        source = cast(socket.socket, _Timed(sock, seconds, silence))
        return http.client.HTTPResponse(source, debuglevel, method)

    connection.response_class = made  # type: ignore[assignment]
