"""What JSON at /v1/traces is taken for: OTLP or a Cirron batch, told by its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel.collector.receiver.consumer import ReceivedSignal
from cirron_otel.collector.receiver.http.bodies import json_signal
from tests.kit.examples import examples

from .http_serving import (
    BATCH,
    JSON,
    Served,
    serving,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


# What is sent as JSON to /v1/traces, and what it is taken for.
HEADS: list[tuple[bytes, int]] = [
    (json.dumps(BATCH).encode(), 202),
    (json.dumps(dict(reversed(BATCH.items()))).encode(), 202),
    (json.dumps({"x": [{"resourceSpans": 1}], **BATCH}).encode(), 202),
    (json.dumps({"x": '\\"resourceSpans": {[', **BATCH}).encode(), 202),
    (b'{"schema_version": NaN, "batch_id": "a"}', 202),
    (b' \n{"batch_id": "a"}', 202),
    (b'{"spans": []}', 202),
    (b'{"schem\\u0061_version": 1}', 202),
    (b'{"resourceSpans": [], "schema_version": 1}', 200),
    (b'{"resource_spans": []}', 200),
    (b'\xef\xbb\xbf{"resourceSpans": []}', 200),
    (b'{"x": {"schema_version": 1, "batch_id": "a"}}', 200),
    (b'{"x": ["schema_version"], "y": "batch_id"}', 200),
    (b'{"\\ud800": 1, "\\q": 2, "resourceSpans": []}', 200),
    (b"{}", 200),
    (b'{"resourceSpans"', 200),
    (b"{", 200),
    (b'{"x": "' + b"a" * 5_000 + b'", "schema_version": 1}', 202),
    (b'{"x": "' + b"a" * 300_000 + b'", "schema_version": 1}', 400),
    (b'{"x": ' + b"[" * 300_000, 400),
    (b'{"x": "' + b'\\"' * 150_000, 400),  # took minutes once
    (b'{"x": ' + b'"\\' * 150_000, 400),
    (b" " * 300_000 + b"{}", 400),
]


@pytest.mark.parametrize(("body", "status"), HEADS)
def test_json_kind_is_detected_by_its_keys(server: Served, body: bytes, status: int) -> None:
    server.intake.requests.clear()
    assert server.post(body, kind=JSON).status == status
    assert len(server.intake.requests) == (0 if status == 400 else 1)


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
names = st.text().filter(lambda name: name not in BATCH and name != "resource_spans")


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(names, values, max_size=5), st.booleans(), st.booleans())
def test_unknown_keys_change_nothing(
    unknown: dict[str, Any], is_cirron: bool, is_ascii: bool
) -> None:
    unknown.pop("resourceSpans", None)
    key = "batch_id" if is_cirron else "resourceSpans"
    text = json.dumps({**unknown, key: []}, ensure_ascii=is_ascii)
    body = text.encode("utf-8", "surrogatepass")
    assert json_signal(body) is (ReceivedSignal.CIRRON if is_cirron else ReceivedSignal.TRACES)
