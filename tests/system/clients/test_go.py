"""The official SDK for Go as a client: what it says that it sent is what the spool holds."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tests.kit.backends.build import binary
from tests.kit.servers.otlp_clients import stored
from tests.kit.servers.serving import serving

SPANS = 300
"""The client sends 100 in a request."""
SLICES = {"BOOLSLICE", "INT64SLICE", "FLOAT64SLICE", "STRINGSLICE"}
LINK_STATE = "vendor=value,other@tenant=1"
STATUSES = {0: 0, 1: 2, 2: 1}
"""OTLP's code → that of the SDK for Go."""

pytestmark = pytest.mark.backends


def client(protocol: str, endpoint: str, *, is_gzipped: bool) -> list[dict[str, Any]]:
    """Run it; the spans that it made, as the SDK had them."""
    done = subprocess.run(
        [binary("goclient"), "-protocol", protocol, "-endpoint", endpoint,
         f"-gzip={str(is_gzipped).lower()}", "-spans", str(SPANS)],
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass(frozen=True)
class Exchange:
    """The spans that clients sent to a collector, and those in its spool."""

    sent: dict[tuple[str, bool], list[dict[str, Any]]]
    """By protocol, and whether requests are compressed."""
    found: list[dict[str, Any]]


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Exchange:
    """One collector that receives the spans of a client for each protocol and compression."""
    folder = tmp_path_factory.mktemp("clients") / "data"
    sent = {}
    with serving(folder) as here:
        for protocol, is_gzipped in itertools.product(("grpc", "http"), (False, True)):
            endpoint = here.grpc if protocol == "grpc" else here.http.removeprefix("http://")
            spans = client(protocol, endpoint, is_gzipped=is_gzipped)
            sent[protocol, is_gzipped] = spans
        assert here.end() == 0
    return Exchange(sent, list(shown(stored(folder))))


@pytest.mark.parametrize("is_gzipped", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_spool_contains_the_spans_the_client_sent(
    protocol: str, is_gzipped: bool, exchange: Exchange
) -> None:
    sent = exchange.sent[protocol, is_gzipped]
    ids = {span["SpanID"] for span in sent}
    found = [span for span in exchange.found if span["SpanID"] in ids]
    assert len(sent) == len(ids) == len(found) == SPANS
    by_id = {span["SpanID"]: span for span in found}
    for span in sent:
        assert by_id[span["SpanID"]] == normal(span)


def test_spool_contains_no_other_spans(exchange: Exchange) -> None:
    assert len(exchange.found) == len(exchange.sent) * SPANS


def test_sent_spans_cover_every_kind_of_field(exchange: Exchange) -> None:
    """Else the test above would compare little."""
    sent = exchange.sent["grpc", False]
    types = {each["Type"] for span in sent for each in span["Attributes"]}
    assert types == {"BOOL", "INT64", "FLOAT64", "STRING", *SLICES}
    assert {len(span["Events"] or ()) for span in sent} == {0, 1, 2, 3}
    assert {len(span["Links"] or ()) for span in sent} == {0, 1, 2}
    assert {span["Kind"] for span in sent} == {1, 2, 3, 4, 5}
    assert {span["Status"] for span in sent} == {0, 1, 2}
    assert {bool(span["Dropped"]) for span in sent} == {False, True}
    assert {bool(span["ParentID"]) for span in sent} == {False, True}
    assert {bool(span["State"]) for span in sent} == {False, True}
    assert {span["Scope"]["Version"] for span in sent} == {"", "1.2"}


# --- both sides in one form ---------------------------------------------------------------------


def normal(made: Any) -> Any:
    """As the program prints it, save that Go's nil lists are empty."""
    if isinstance(made, dict):
        return {key: normal(value) for key, value in made.items()}
    if isinstance(made, list):
        return [normal(each) for each in made]
    return [] if made is None else made


def shown(all_spans: Iterable[ResourceSpans]) -> Iterable[dict[str, Any]]:
    """Spans of OTLP as the program prints them."""
    for resource in all_spans:
        assert resource.schema_url == "https://opentelemetry.io/schemas/1.37.0"
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _span(span, scope, resource)


def _span(span: Span, scope: ScopeSpans, resource: ResourceSpans) -> dict[str, Any]:
    return {
        "Name": span.name,
        "TraceID": span.trace_id.hex(),
        "SpanID": span.span_id.hex(),
        "ParentID": span.parent_span_id.hex(),
        "State": span.trace_state,
        "StatusText": span.status.message,
        "Kind": span.kind,
        "Status": STATUSES[span.status.code],
        "Dropped": span.dropped_attributes_count,
        "Start": span.start_time_unix_nano,
        "End": span.end_time_unix_nano,
        "Attributes": attributes(span.attributes),
        "Resource": attributes(resource.resource.attributes),
        "Events": [
            {**_entry(event), "Name": event.name, "Time": event.time_unix_nano}
            for event in span.events
        ],
        "Links": [
            {
                **_entry(link),
                "TraceID": link.trace_id.hex(),
                "SpanID": link.span_id.hex(),
                # The SDK's exporter leaves it out (tracetransform/span.go of otlptrace 1.44).
                "State": link.trace_state or LINK_STATE,
            }
            for link in span.links
        ],
        "Scope": {
            "Name": scope.scope.name,
            "Version": scope.scope.version,
            "SchemaURL": scope.schema_url,
            "Attributes": attributes(scope.scope.attributes),
        },
    }


def _entry(event: Span.Event | Span.Link) -> dict[str, Any]:
    return {
        "Name": "", "TraceID": "", "SpanID": "", "State": "", "Time": 0,
        "Attributes": attributes(event.attributes), "Dropped": event.dropped_attributes_count,
    }  # fmt: skip


def attributes(given: Iterable[KeyValue]) -> list[dict[str, Any]]:
    return [
        {"Key": each.key, "Type": kind, "Value": value}
        for each in given
        for kind, value in [_value(each.value, each.key)]
    ]


def _value(value: AnyValue, key: str) -> tuple[str, Any]:
    match value.WhichOneof("value"):
        case "bool_value":
            return "BOOL", value.bool_value
        case "int_value":
            return "INT64", str(value.int_value)
        case "double_value":
            return "FLOAT64", struct.pack(">d", value.double_value).hex()
        case "string_value":
            return "STRING", value.string_value
        case "array_value":
            found = [_value(each, key) for each in value.array_value.values]
            kinds = {kind for kind, _ in found} or {"STRING"}  # an empty list has no type
            assert len(kinds) == 1
            return f"{kinds.pop()}SLICE", [each for _, each in found]
    raise AssertionError(f"{key}: {value}")
