"""Cross-origin requests: only pages of listed origins may send, and read the answers."""

from __future__ import annotations

import pytest

from cirron_otel.collector.receiver.auth import Tokens
from cirron_otel.collector.receiver.http.cors import Cors

from .http_serving import (
    PROTOBUF,
    Said,
    Served,
    serving,
    traces,
)

ORIGIN = "https://app.example"
ALLOW, HEADERS = "access-control-allow-origin", "access-control-allow-headers"


def preflight(server: Served, origin: str, path: str = "/v1/traces", asked: str = "") -> Said:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    if asked:
        headers["Access-Control-Request-Headers"] = asked
    return server.ask("OPTIONS", path, None, headers)


def test_off_by_default() -> None:
    with serving() as server:
        assert preflight(server, ORIGIN).status == 405
        said = server.post(traces(), Origin=ORIGIN)
        assert said.status == 200
        assert not [name for name in said.headers if name.startswith("access-control")]
        assert "vary" not in said.headers


def test_a_listed_origin() -> None:
    """A preflight request carries no token; a refusal can be read by the page, too."""
    cors = Cors([ORIGIN], ["Authorization"], 600)
    with serving(cors=cors, auth=Tokens(["right"])) as server:
        for path in ("/v1/traces", "/v1/logs", "/api/traces"):
            said = preflight(server, ORIGIN, path, "content-type, Authorization, x-more, a\tb")
            assert (said.status, said.body) == (204, b"")
            assert said.headers[ALLOW] == ORIGIN
            assert said.headers["access-control-allow-methods"] == "POST"
            assert said.headers[HEADERS] == "content-type, authorization"
            assert said.headers["access-control-max-age"] == "600"
            assert said.headers["access-control-allow-credentials"] == "true"
            assert said.headers["vary"] == "Origin"
        for token, status in (("right", 200), ("wrong", 401)):
            said = server.post(traces(), Origin=ORIGIN, Authorization=f"Bearer {token}")
            assert (said.status, said.headers[ALLOW]) == (status, ORIGIN)
            assert said.headers["vary"] == "Origin"
            assert said.headers["access-control-expose-headers"] == "Retry-After"
        assert preflight(server, ORIGIN, "/v1/nothing").status == 404
        assert ALLOW not in preflight(server, ORIGIN, "/metrics").headers
        assert server.ask("OPTIONS", "/v1/traces", None, {"Origin": ORIGIN}).status == 405


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://app.example", f"{ORIGIN}.evil", "null", ORIGIN + ":8"],
)
def test_another_origin(origin: str) -> None:
    """What is not a browser may still send: this is no access control, tokens are."""
    with serving(cors=Cors([ORIGIN])) as server:
        said = preflight(server, origin)
        assert said.status == 403
        assert not [name for name in said.headers if name.startswith("access-control")]
        said = server.post(traces(), kind=PROTOBUF, Origin=origin)
        assert said.status == 200
        assert ALLOW not in said.headers
        assert said.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    ("allowed", "origin", "is_allowed"),
    [
        ("https://*.example", "https://app.example", True),
        ("https://*.example", "https://a.b.example", True),
        ("https://*.example", "https://app.example.evil", False),
        ("https://*.example", "https://appxexample", False),
        ("http://localhost:*", "http://localhost:3000", True),
        ("HTTPS://App.Example", ORIGIN, True),
        ("*", ORIGIN, True),
    ],
)
def test_wildcards(allowed: str, origin: str, is_allowed: bool) -> None:
    assert Cors([allowed]).allows(origin) == is_allowed
    assert Cors(["https://other.test", allowed]).allows(origin) == is_allowed
    assert Cors([], []).allows(origin) is False


def test_any_origin_sends_without_credentials() -> None:
    """A wildcard with credentials would let each page use a browser's client certificate."""
    with serving(cors=Cors(["*", ORIGIN])) as server:
        for origin in (ORIGIN, "null"):
            for said in (preflight(server, origin), server.post(traces(), Origin=origin)):
                assert said.status in (200, 204)
                assert said.headers[ALLOW] == "*"
                assert "access-control-allow-credentials" not in said.headers


def test_all_headers() -> None:
    with serving(cors=Cors([ORIGIN], ["*"])) as server:
        said = preflight(server, ORIGIN, asked="x-any, X-Other, a b, , x:y")
        assert said.headers[HEADERS] == "x-any, x-other"
        assert "access-control-max-age" not in said.headers


def test_headers_that_are_not_asked_for() -> None:
    """Those that OTLP needs are named, so that a cache of a browser has them."""
    with serving(cors=Cors([ORIGIN])) as server:
        said = preflight(server, ORIGIN)
        assert said.headers[HEADERS] == "accept, content-encoding, content-type, x-requested-with"
