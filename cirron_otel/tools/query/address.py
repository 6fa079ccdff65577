"""Query addresses such as `jaeger:http://host:16686?session=ID`, with a backend, its URL and a
query.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from ...core.moments import parse_moment
from ...core.targets.otlp.config import TENANT_HEADER, parse_headers
from ...errors import UsageError

HEADERS_VARIABLE = "CIRRON_QUERY_HEADERS"
"""The variable with the headers of queries, `name=value,name=value` as in
OTEL_EXPORTER_OTLP_HEADERS. The latter is not read: its secrets are for the OTLP endpoint, which may
be another server."""


BACKENDS = ("jaeger", "tempo")
DEFAULT_LIMIT = 1000
"""The maximum number of traces of a search by service, unless `limit` is given."""
MOST_TRACES = 100_000

_KEYS = ("session", "trace", "service", "start", "end", "tenant", "limit")
_WHAT = ("session", "trace", "service")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_DEFAULT_AGE_S = 7 * 86400
"""The time range of a search without `start`, seconds: the longest range that Tempo allows by
default."""
_LONGEST_SEARCH_S = 5 * 366 * 86400
_AHEAD_S = 3600
"""A search without `end` extends this many seconds into the future, because clocks differ."""
_EXAMPLE = "use jaeger:http://localhost:16686?session=ID or tempo:http://localhost:3200?trace=ID"


@dataclass(frozen=True, slots=True)
class QueryAddress:
    """A backend and a query; exactly one of `session`, `traces`, `service` is set."""

    backend: str
    """`jaeger` or `tempo`."""
    url: str
    """The server, with the base path of its API; without credentials and query."""
    start_ns: int
    end_ns: int
    """The end of the time range, which begins at `start_ns`; both are Unix ns."""
    session: str | None = None
    traces: tuple[bytes, ...] = ()
    service: str | None = None
    limit: int = DEFAULT_LIMIT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The headers sent with each request; their values are secrets."""

    @property
    def shown(self) -> str:
        """The backend for messages."""
        return f"{self.backend} at {self.url}"


def is_query_address(text: str) -> bool:
    """Return whether `text` is a query address rather than a path."""
    return text.startswith(tuple(f"{name}:" for name in BACKENDS))


def parse_address(text: str, environ: Mapping[str, str]) -> QueryAddress:
    """Parse an address. Raises UsageError, whose message contains no credential.

    The headers are those in CIRRON_QUERY_HEADERS of `environ`; the parameter `tenant` sets the
    header X-Scope-OrgID.
    """
    backend, _, url_text = text.partition(":")
    if backend not in BACKENDS:
        raise UsageError(f"no query address: {_EXAMPLE}")
    url = _url(url_text)
    parameters = _parameters(url.query)
    headers = _headers(environ)
    if tenant := parameters.get("tenant"):
        headers[TENANT_HEADER] = tenant[-1]
    now = time.time_ns()
    end_ns = (
        _time(parameters["end"][-1], "end", now) if "end" in parameters else now + _AHEAD_S * 10**9
    )
    start_ns = end_ns - _DEFAULT_AGE_S * 10**9
    if "start" in parameters:
        start_ns = _time(parameters["start"][-1], "start", now)
    if start_ns >= end_ns:
        raise UsageError("start is not before end: expected the earlier of the two first")
    if end_ns - start_ns > _LONGEST_SEARCH_S * 10**9:
        raise UsageError("start and end are more than 5 years apart: name a shorter time")
    return QueryAddress(
        backend,
        urlunsplit((url.scheme, url.netloc, url.path.rstrip("/"), "", "")),
        start_ns,
        end_ns,
        session=parameters.get("session", [None])[-1],
        traces=tuple(map(_trace_id, parameters.get("trace", ()))),
        service=parameters.get("service", [None])[-1],
        limit=_limit(parameters.get("limit", [str(DEFAULT_LIMIT)])[-1]),
        headers=headers,
    )


def _url(rest: str) -> SplitResult:
    try:
        url = urlsplit(rest)
        is_good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_good = False
    if not is_good or any(ord(letter) < 32 for letter in rest):
        raise UsageError(f"the address names no http:// or https:// URL: {_EXAMPLE}")
    if url.username is not None:
        raise UsageError(
            "the address contains a user or a password: put them into"
            f" {HEADERS_VARIABLE}='authorization=Basic …' instead"
        )
    if url.fragment:
        raise UsageError("the address has a part after a '#': write %23, or remove it")
    return url


def _parameters(query: str) -> dict[str, list[str]]:
    parameters: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=1000, errors="strict")
    except ValueError:
        raise UsageError(
            "the parameters after the '?' cannot be read: expected key=value"
        ) from None
    for key, value in pairs:
        if key not in _KEYS:
            raise UsageError(f"unknown parameter {key[:40]!a}: expected {', '.join(_KEYS)}")
        if not value or any(ord(letter) < 32 for letter in value):
            raise UsageError(f"the parameter {key} is empty, or no text: expected a value")
        parameters.setdefault(key, []).append(value)
    selectors = [key for key in _WHAT if key in parameters]
    if len(selectors) != 1:
        names = " and ".join(selectors) or "none of them"
        raise UsageError(f"expected one of session=ID, trace=HEX and service=NAME, found {names}")
    for key, values in parameters.items():
        if key != "trace" and len(values) > 1:
            raise UsageError(f"the parameter {key} is there {len(values)} times: expected one")
    return parameters


def _trace_id(text: str) -> bytes:
    name = text.lower()
    if not _TRACE_ID.fullmatch(name) or not name.strip("0"):
        raise UsageError(
            f"trace={text[:40]!a} is not a trace id: expected 32 hex digits, not all 0"
        )
    return bytes.fromhex(name)


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= MOST_TRACES:
        raise UsageError(f"limit={text[:20]!a}: expected a number from 1 to {MOST_TRACES}")
    return int(text)


def _time(text: str, key: str, now: int) -> int:
    try:
        return parse_moment(text, now)
    except ValueError as error:
        raise UsageError(f"{key}={error}") from None


def _headers(environ: Mapping[str, str]) -> dict[str, str]:
    headers, bad = parse_headers(environ.get(HEADERS_VARIABLE, ""))
    if bad:
        raise UsageError(
            f"{HEADERS_VARIABLE}: {bad} of its entries cannot be read: expected"
            " name=value,name=value with the values URL-encoded"
        )
    return headers
