"""The proxies of the environment: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from ...errors import UsageError

_SCHEMES = ("http", "https", "socks4", "socks4a", "socks5", "socks5h")


@dataclass(frozen=True, slots=True, repr=False)
class Proxy:
    """A proxy, as the parts of its URL. Its `repr` does not show the password."""

    url: str
    scheme: str
    host: str
    port: int | None
    user: str | None
    password: str
    encoding: str
    """The encoding of user and password, for which there is no standard."""

    @property
    def login(self) -> Mapping[str, str]:
        """The header that contains user and password, if there are any."""
        if self.user is None:
            return {}
        return {"Proxy-Authorization": basic_auth(self.user, self.password, self.encoding)}


def basic_auth(user: str, password: str, encoding: str) -> str:
    """Return the value of a header for basic authentication. Raises UnicodeEncodeError."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode(encoding)).decode()}"


def proxy_by_scheme(url: SplitResult) -> Proxy | None:
    """Return the proxy of `http_proxy` or `https_proxy`, unless `no_proxy` excludes the host."""
    address = getproxies().get(url.scheme)
    if not address or proxy_bypass(host_and_port(url)):
        return None
    return _parse(address, url.scheme, "utf-8")


def proxy_of_requests(url: SplitResult) -> Proxy | None:
    """Return the proxy that the library `requests` would use.

    Unlike `proxy_by_scheme`, this also uses `all_proxy`. `no_proxy` may contain networks such as
    10.0.0.0/8, and IPv6 addresses without brackets.
    """
    proxies = getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    host = url.hostname or ""
    is_excluded = _is_in_network(host) or proxy_bypass(host) or proxy_bypass(host_and_port(url))
    if not address or is_excluded:
        return None
    return _parse(address, url.scheme, "latin-1")


def host_and_port(url: SplitResult) -> str:
    """Return the host and port as written in a URL, without user and password."""
    return url.netloc.rpartition("@")[2]


def _is_in_network(host: str) -> bool:
    """Return whether `host` is an IPv4 address in one of the networks of `no_proxy`."""
    entries = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    for entry in entries.replace(" ", "").split(","):
        with contextlib.suppress(ValueError):
            if ipaddress.IPv4Address(host) in ipaddress.IPv4Network(entry, strict=False):
                return True
    return False


def _parse(address: str, scheme: str, encoding: str) -> Proxy:
    """Parse a proxy's address. Raises UsageError, whose message does not contain `address`."""
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in _SCHEMES:
        raise UsageError(
            f"the proxy for {scheme} is not a URL of {', '.join(_SCHEMES)}: check {scheme}_proxy"
        )
    user = None if parts.username is None else unquote(parts.username)
    return Proxy(url, parts.scheme, host, port, user, unquote(parts.password or ""), encoding)
