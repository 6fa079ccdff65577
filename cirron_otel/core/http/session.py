"""HTTP requests that use the same environment settings as the library `requests`.

These are proxies, CA bundles and `~/.netrc`. Credentials in the URL and the server's cookies are
also sent in the same way. The module needs the package certifi, which the extra `otlp` installs.
"""

from __future__ import annotations

import functools
import netrc
import os
import re
import ssl
from collections.abc import Mapping
from email.message import Message
from http.cookiejar import CookieJar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import Request

import certifi
from urllib3.util import make_headers, parse_url
from urllib3.util.ssl_ import create_urllib3_context

from .client import HttpAnswer, HttpClient
from .proxies import basic_auth, host_and_port, proxy_of_requests

_HEADERS: Final = {
    "User-Agent": "",
    "Accept-Encoding": make_headers(accept_encoding=True)["accept-encoding"].replace(",", ", "),
    "Accept": "*/*",
    "Connection": "keep-alive",
}
"""The default headers, in order. The caller's headers replace those of the same name."""

_CERTIFI: Final = certifi.where()
"""The call imports modules. A fork during such an import would leave the child with a partly
imported module for good.
"""

_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9._~-]")
"""The characters that need no escape in a URL (RFC 3986, 2.3)."""


class HttpSession:
    """Sends requests to one server, over one persistent connection, from one thread."""

    def __init__(
        self,
        url: str,
        *,
        finds_login: bool = True,
        certificate: str | None = None,
        client_certificate: str | None = None,
        client_key: str | None = None,
    ) -> None:
        """Prepare the session, without opening a connection.

        With `finds_login`, requests use the login of `~/.netrc` (or `NETRC`), or else the one in
        `url`. `certificate` is a file of CA certificates. By default it is `REQUESTS_CA_BUNDLE`,
        `CURL_CA_BUNDLE`, or certifi's. The three files are read for each new connection.
        Raises ValueError and UsageError if `url` is unusable.
        """
        self._text, self._url = url, prepared_url(url)
        self._finds_login = finds_login
        self._client = HttpClient(
            f"{self._url.scheme}://{host_and_port(self._url)}",
            trust=functools.partial(_tls, certificate, client_certificate, client_key),
            find_proxy=proxy_of_requests,
        )
        self._cookies = CookieJar()

    def request(
        self,
        method: str,
        suffix: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        **limits: Any,
    ) -> HttpAnswer:
        """Send one request to the URL with `suffix` appended; `limits` are those of HttpClient.

        The response is decompressed. Raises the errors of `HttpClient.request`, ssl.SSLError if a
        file is not a certificate or key, and FileNotFoundError if one is missing.
        """
        url = prepared_url(self._text + suffix) if suffix else self._url
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        merged = self._merged(url, headers, body)
        answer = self._client.request(method, path, merged, body, decode=True, **limits)
        if answer.cookies:
            self._keep_cookies(url, answer.cookies)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _merged(
        self, url: SplitResult, headers: Mapping[str, str], body: bytes | None
    ) -> dict[str, str]:
        """Return all headers; a later one replaces an earlier one of the same name."""
        merged = {name.lower(): (name, value) for name, value in _HEADERS.items()}
        merged.update({name.lower(): (name, value) for name, value in headers.items()})
        if len(self._cookies) and "cookie" not in merged:
            request = Request(url.geturl())  # noqa: S310 - it is not opened
            self._cookies.add_cookie_header(request)
            if cookie := request.get_header("Cookie"):
                merged["cookie"] = ("Cookie", cookie)
        if body is not None:
            merged["content-length"] = ("Content-Length", str(len(body)))
        login = (_netrc_login(url) or _url_login(url)) if self._finds_login else None
        if login is not None:
            merged["authorization"] = ("Authorization", basic_auth(*login, "latin-1"))
        return dict(merged.values())

    def _keep_cookies(self, url: SplitResult, cookies: tuple[str, ...]) -> None:
        message = Message()
        for cookie in cookies:
            message["Set-Cookie"] = cookie
        response = cast(Any, SimpleNamespace(info=lambda: message))
        request = Request(url.geturl())  # noqa: S310 - it is not opened
        self._cookies.extract_cookies(response, request)


def prepared_url(text: str) -> SplitResult:
    """Parse a URL, and escape the characters that it must not contain. Raises ValueError."""
    url = parse_url(text.lstrip())
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("no http:// or https:// URL")
    return urlsplit(_ESCAPE.sub(_unescaped, url.url))


def _unescaped(match: re.Match[str]) -> str:
    character = chr(int(match[1], 16))
    return character if _UNRESERVED.fullmatch(character) else match[0]


def _tls(
    certificate: str | None, client_certificate: str | None, client_key: str | None
) -> ssl.SSLContext:
    variables = map(os.environ.get, ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    trusted = certificate or next(filter(None, variables), None) or _CERTIFI
    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    try:
        if Path(trusted).is_dir():
            context.load_verify_locations(capath=trusted)
        else:
            context.load_verify_locations(cafile=trusted)
        if client_certificate:
            context.load_cert_chain(client_certificate, client_key, _refuse_password)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ssl.SSLError(error.errno, error.strerror) from error
    return context


def _refuse_password() -> str:
    """Prevent OpenSSL from asking for a password at the terminal."""
    raise ssl.SSLError("the client's key is encrypted, and no password for it is set")


def _netrc_login(url: SplitResult) -> tuple[str, str] | None:
    name = os.environ.get("NETRC")
    names = ("~/.netrc", "~/_netrc") if name is None else (name,)
    # Unlike pathlib, these functions accept an account without a home, and one that is not ours.
    paths = map(os.path.expanduser, names)
    path = next(filter(os.path.exists, paths), None)
    if path is None:
        return None
    try:
        entry = netrc.netrc(path).authenticators(url.hostname or "")
    except (netrc.NetrcParseError, OSError):
        return None
    return (entry[0] or entry[1] or "", entry[2] or "") if entry and any(entry) else None


def _url_login(url: SplitResult) -> tuple[str, str] | None:
    if url.username is None or url.password is None or not (url.username or url.password):
        return None
    return unquote(url.username), unquote(url.password)
