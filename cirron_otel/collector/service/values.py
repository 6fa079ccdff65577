"""Parsers for the collector's options, in addition to those of core/config/parsing.py.

They also define the values that some options have: secrets, which are masked in text, and listen
addresses. A Parser converts a raw value from YAML, a variable or a flag. It raises ValueError if
the value is invalid.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ...core.config.parsing import DIRECTORY, SECRET, TEXT, Parser
from ...errors import UsageError

MASK = "****"


class Secret:
    """A string that neither `str` nor `repr` shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    @property
    def shown(self) -> str:
        """The masked text."""
        return MASK

    @property
    def parts(self) -> tuple[str, ...]:
        """The strings to mask in logs."""
        return (self._text,)

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._text))

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"


class SecretHeader(Secret):
    """The value of a header; the part after `Bearer` or another scheme is also a secret."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The strings to mask in logs: the value, and the credentials in it."""
        scheme, _, credentials = self._text.partition(" ")
        return (self._text, credentials) if scheme and credentials else (self._text,)


class SecretUrl(Secret):
    """A URL that contains secrets."""

    __slots__ = ("_parts", "_shown")

    def __init__(self, text: str, shown: str, parts: Iterable[str]) -> None:
        """`shown` is the masked URL, `parts` are the secrets in it."""
        super().__init__(text)
        self._shown, self._parts = shown, tuple(parts)

    @property
    def shown(self) -> str:
        """The URL without user, password and parameters."""
        return self._shown

    @property
    def parts(self) -> tuple[str, ...]:
        """The strings to mask in logs: the URL and its secrets; empty if it contains none."""
        return (self._text, *self._parts) if self._parts else ()


def _moment(value: object) -> datetime:
    """Parse a time; a date means its midnight, and a time without a zone is UTC."""
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day)
    else:
        moment = datetime.fromisoformat(TEXT.parse(value))
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    if not _EARLIEST <= moment < _LATEST:
        raise ValueError
    return moment.astimezone(UTC)


_EARLIEST, _LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
MOMENT = Parser("time", "a date or time as in 2026-08-31 or 2026-08-31T12:00:00Z", _moment)

_OFF = frozenset({"off", "none", "no", "false"})
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_PORT = re.compile(r"[0-9]{1,5}")
# RFC 9110, "Tokens" and "Field Values".
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,8000}[\x21-\x7e])?")
# fetch.spec.whatwg.org, "Origin header": a scheme, a host and a port that is not the default.
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[A-Za-z0-9.*_:\[\]-]{1,253}")
_CREDENTIALS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key"}
)
_MAX_ITEMS = 1000


def _hosts(host: str) -> set[str]:
    """Return the addresses of `localhost`, or another host itself."""
    host = host.lower()
    return {"127.0.0.1", "::1", host} if host == "localhost" else {host}


class ListenAddress(NamedTuple):
    """The address on which a server listens."""

    host: str
    port: int
    """0 selects a free port."""

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def includes(self, other: ListenAddress) -> bool:
        """Return whether a client that connects to `other`, on this machine, reaches this one."""
        if self.port != other.port:
            return False
        is_any = self.host in ("0.0.0.0", "::")  # noqa: S104 - compared
        return bool(_hosts(self.host) & _hosts(other.host)) or (is_any and other.is_local)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> ListenAddress | None:
    if value is False:  # YAML's `off`
        return None
    text = TEXT.parse(value)
    if text.lower() in _OFF:
        return None
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = str(IPv6Address(host[1:-1]))
    elif not _HOST.fullmatch(host):
        raise ValueError
    if not _PORT.fullmatch(port) or int(port) > 65_535:
        raise ValueError
    return ListenAddress(host, int(port))


ADDRESS = Parser("HOST:PORT", 'HOST:PORT, as in localhost:4317 or "[::1]:4317", or off', _address)

Network = IPv4Network | IPv6Network


def _networks(value: object) -> tuple[Network, ...]:
    items = _items(value) if value else []
    return tuple(dict.fromkeys(ip_network(TEXT.parse(each)) for each in items))


NETWORKS = Parser(
    "list[str]", "networks as in 10.0.0.0/8 or fd00::/8, or single addresses", _networks
)


def _path(value: object) -> Path:
    text = TEXT.parse(DIRECTORY.parse(value))
    # An unknown home directory raises RuntimeError.
    try:
        return Path(text).expanduser() if text.startswith("~/") else Path(text)
    except RuntimeError:
        raise ValueError from None


FOLDER = Parser("path", "the name of a directory", _path)
FILE = Parser("path", "the name of a file", _path)


def _items(value: object) -> list[object]:
    """Return the items of a list or of comma-separated text."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or len(items) > _MAX_ITEMS:
        raise ValueError
    return items


def _header_name(value: object) -> str:
    name: str = TEXT.parse(value).lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError
    return name


def _header_names(value: object) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(map(_header_name, _items(value) if value else [])))
    if not _CREDENTIALS.isdisjoint(names):
        raise ValueError
    return names


HEADER_NAMES = Parser(
    "list[str]", "names of headers, none of which carries credentials", _header_names
)


def _cors_headers(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_header_name, _items(value) if value else [])))


CORS_HEADERS = Parser("list[str]", "names of headers, or *", _cors_headers)


def _origin(value: object) -> str:
    text: str = TEXT.parse(value)
    if not _ORIGIN.fullmatch(text) or text.count("*") > 1:
        raise ValueError
    return text


def _origins(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_origin, _items(value) if value else [])))


ORIGINS = Parser(
    "list[str]", "origins as in https://app.example, without a path, with one * at most", _origins
)


def _header_value(value: object) -> SecretHeader:
    text = TEXT.parse(value) if not isinstance(value, str) else str.strip(value)
    if not _HEADER_VALUE.fullmatch(text):
        raise ValueError
    return SecretHeader(str.__str__(text))


def _headers(value: object) -> dict[str, SecretHeader]:
    if not isinstance(value, dict) or len(value) > _MAX_ITEMS:
        raise ValueError
    return {_header_name(name): _header_value(each) for name, each in value.items()}


HEADERS = Parser("mapping", "a mapping of header names to values of one line of ASCII", _headers)


def _secret(value: object) -> Secret:
    return Secret(SECRET.parse(value))


SECRET_TEXT = Parser("str", SECRET.expected, _secret)


def _secrets(value: object) -> tuple[Secret, ...]:
    return tuple(dict.fromkeys(map(_secret, _items(value) if value else [])))


SECRETS = Parser("list[str]", "a list of texts, each of printable ASCII without spaces", _secrets)


def _database(value: object) -> SecretUrl:
    from ...core.targets.sql.url import parse_url  # noqa: PLC0415 - only if it is used

    text = TEXT.parse(value)
    try:
        location = parse_url(text)
    except UsageError:
        raise ValueError from None
    return SecretUrl(text, location.shown, location.secrets)


DATABASE = Parser(
    "URL",
    "sqlite:///FILE (four slashes for an absolute path) or postgresql://USER:PASSWORD@HOST/DB",
    _database,
)


def _blobs(value: object) -> str:
    text: str = TEXT.parse(value)
    if "://" not in text:
        return str(_path(text))
    url = urlsplit(text)
    is_plain = url.username is None and not url.query and not url.fragment
    is_right = {"file": not url.netloc and bool(url.path.strip("/")), "s3": bool(url.hostname)}
    if not is_plain or not is_right.get(url.scheme):
        raise ValueError
    return text


BLOBS = Parser("URL", "a directory, file:///DIR, or s3://BUCKET/PREFIX without credentials", _blobs)


def between(parser: Parser, low: int, high: int) -> Parser:
    """Return a parser that accepts the values of `parser` only from `low` to `high`."""

    def parse(value: object) -> int:
        number: int = parser.parse(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return Parser(parser.type, f"{parser.expected}, from {low} to {high}", parse)
