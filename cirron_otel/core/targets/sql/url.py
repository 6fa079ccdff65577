"""Parse storage URLs, which identify an SQLite file or a database on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ....errors import UsageError
from ....ids import digest

_USE = "use sqlite:///FILE (sqlite:////FILE for an absolute path) or postgresql://HOST/DATABASE"
_SECRET = ("user", "password", "passfile", "sslpassword", "sslkey", "sslcert")
"""Connection parameters that are credentials rather than part of the location."""


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a storage."""

    url: str = field(repr=False)
    """The URL as it was given, including the password."""
    shown: str
    """The URL as shown in messages: without user, password and parameters."""
    key: str
    """An identifier of the location, without secrets."""
    scheme: str
    """The kind of storage: a key of `store.STORES`."""
    path: Path | None = None
    """The SQLite file; None for PostgreSQL."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Strings that must not appear in messages."""


def is_storage_url(text: str) -> bool:
    """Whether `text` is a storage URL rather than a path."""
    return text.startswith(tuple(SCHEMES))


def parse_url(url: str) -> Location:
    """Parse a URL. Raises UsageError, whose message contains no password, if it is not valid."""
    for prefix, parse in SCHEMES.items():
        if url.startswith(prefix):
            return parse(url)
    scheme = url.partition("://")[0] if "://" in url else "none"
    raise UsageError(f"the storage URL has the unknown scheme {scheme[:20]!a}: {_USE}")


def _sqlite(url: str) -> Location:
    name = url.removeprefix("sqlite:///")
    if name == url or not name or name.startswith(":") or "\0" in name or "?" in name:
        raise UsageError(f"{url!a} does not name a file: {_USE}")
    path = Path(name)
    key = digest("storage", "sqlite", str(path.absolute()))[:8].hex()
    return Location(url, f"sqlite:///{name}", key, "sqlite", path)


def _postgres(url: str) -> Location:
    try:
        parts = urlsplit(url)
        parameters = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise UsageError(f"the storage URL is not valid: {_USE}") from None
    address = parts.netloc.rpartition("@")[2]
    database = unquote(parts.path.lstrip("/"))
    if (
        "@" in database or "\0" in url
    ):  # an unescaped / in the password makes the rest part of the path
        raise UsageError(
            f"the storage URL contains a special character: escape it (%2F for /); {_USE}"
        )
    values = dict(parameters)
    secrets = [parts.netloc.rpartition("@")[0].partition(":")[2], values.get("password", "")]
    secrets += [values.get("sslpassword", "")]
    place = sorted((k, v) for k, v in parameters if k not in _SECRET)
    named = values.get("dbname", database) or unquote(parts.username or values.get("user", ""))
    key = digest("storage", "postgresql", address, named, repr(place))[:8].hex()
    shown_address = address or values.get("host", "localhost")
    return Location(
        url,
        f"postgresql://{quote(shown_address, safe=':,[]./')}/{quote(named)}",
        key,
        "postgresql",
        secrets=tuple({s for each in secrets for s in (each, unquote(each)) if s}),
    )


SCHEMES: dict[str, Callable[[str], Location]] = {
    "sqlite:": _sqlite,
    "postgresql://": _postgres,
    "postgres://": _postgres,
}
"""The parser of each URL prefix."""
