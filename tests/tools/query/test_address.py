"""Query addresses, valid and invalid."""

from __future__ import annotations

import time

import pytest

from cirron_otel.errors import UsageError
from cirron_otel.tools.query.address import HEADERS_VARIABLE, is_query_address, parse_address

HOUR_NS = 3600 * 10**9


def test_address_contains_backend_url_and_selection() -> None:
    address = parse_address("jaeger:http://localhost:16686/base/?session=abc", {})
    assert (address.backend, address.url) == ("jaeger", "http://localhost:16686/base")
    assert (address.session, address.traces, address.service) == ("abc", (), None)
    ids = ["ab" * 16, "00" * 15 + "01"]
    address = parse_address(f"tempo:https://tempo?trace={ids[0].upper()}&trace={ids[1]}", {})
    assert address.traces == tuple(map(bytes.fromhex, ids))
    address = parse_address(
        "tempo:http://t:3200?service=a%20b&limit=5&start=2026-01-02&end=2026-01-09", {}
    )
    assert (address.service, address.limit) == ("a b", 5)
    assert address.start_ns == 1_767_312_000 * 10**9


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-21T05:00:00Z", 1_795_237_200 * 10**9),
        ("2026-11-21T05:00:00", 1_795_237_200 * 10**9),
        ("2026-11-21T06:00:00.123456%2B01:00", 1_795_237_200_123_456_000),
    ],
)
def test_moments(text: str, ns: int) -> None:
    assert (
        parse_address(f"jaeger:http://h?service=s&end=2026-12-31&start={text}", {}).start_ns == ns
    )


def test_ages_are_relative_to_now_and_the_default_period_is_a_week() -> None:
    now = time.time_ns()
    address = parse_address("jaeger:http://h?service=s&start=2d&end=90m", {})
    assert abs(address.start_ns - (now - 48 * HOUR_NS)) < HOUR_NS
    assert abs(address.end_ns - (now - 90 * 60 * 10**9)) < HOUR_NS
    address = parse_address("jaeger:http://h?service=s", {})
    assert address.end_ns > now
    assert address.end_ns - address.start_ns == 7 * 24 * HOUR_NS


def test_headers_come_from_the_query_variable_and_tenant_from_the_address() -> None:
    said = {HEADERS_VARIABLE: "authorization=Bearer%20s3cret", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"}
    address = parse_address("tempo:http://h?service=s&tenant=blue", said)
    assert address.headers == {"authorization": "Bearer s3cret", "x-scope-orgid": "blue"}
    assert "s3cret" not in repr(address)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jaeger:localhost:16686?session=x", "names no http"),
        ("jaeger:?session=x", "names no http"),
        ("jaeger:http://?session=x", "names no http"),
        ("jaeger:http://h:0?session=x", "names no http"),
        ("jaeger:http://h:x?session=x", "names no http"),
        ("jaeger:http://user:s3cret@h?session=x", "CIRRON_QUERY_HEADERS"),
        ("jaeger:http://h", "found none of them"),
        ("jaeger:http://h?session=a&trace=" + "ab" * 16, "session and trace"),
        ("jaeger:http://h?session=a&session=b", "2 times"),
        ("jaeger:http://h?session=", "empty"),
        ("jaeger:http://h?session=a%00", "no text"),
        ("jaeger:http://h?session=%ff", "cannot be read"),
        ("jaeger:http://h?sesion=a", "unknown parameter 'sesion'"),
        ("jaeger:http://h?session=a#b", "'#'"),
        ("jaeger:http://h?trace=xyz", "not a trace id"),
        ("jaeger:http://h?trace=" + "0" * 32, "not a trace id"),
        ("jaeger:http://h?service=s&start=soon", "not a time"),
        ("jaeger:http://h?service=s&start=0001-01-01T00:00:00%2B23:00", "5 years"),
        ("jaeger:http://h?service=s&start=1h&end=2h", "not before end"),
        ("jaeger:http://h?service=s&limit=0", "from 1 to"),
        ("jaeger:http://h?service=s&limit=" + "9" * 5000, "from 1 to"),
    ],
)
def test_invalid_addresses_are_refused_without_secrets(text: str, says: str) -> None:
    assert is_query_address(text)
    with pytest.raises(UsageError, match=says) as error:
        parse_address(text, {})
    assert "s3cret" not in str(error.value)


def test_headers_that_cannot_be_read_are_not_shown() -> None:
    with pytest.raises(UsageError, match="1 of its entries") as error:
        parse_address("jaeger:http://h?session=x", {HEADERS_VARIABLE: "s3cret"})
    assert "s3cret" not in str(error.value)


def test_paths_are_not_query_addresses() -> None:
    assert not any(map(is_query_address, ("jaeger.jsonl", "./jaeger:x", "tempo", "-")))
