"""What usual spans have is read by hand, all of it; what is in another form is for the slow way."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from cirron_otel import exactjson
from cirron_otel.core.translator.foreign.messages import Process, span_record
from cirron_otel.core.translator.foreign.span_json import Texts, add_rows

FIXED = ',"pid":null,"rank":0,"attrs":{'
SLOW = "the slow way"
NOBODY = Process(None, 0)
USUAL: dict[str, Any] = {
    "trace_id": bytes(range(16)), "span_id": b"s" * 8, "name": "GET", "kind": 2, "flags": 257,
    "start_time_unix_nano": 1_795_197_734_691_234_492, "end_time_unix_nano": 2**64 - 1,
}  # fmt: skip


def row(data: bytes) -> str:
    """The row of a serialised span, or SLOW."""
    rows: list[str] = []
    add_rows([data], FIXED, Texts(), lambda _: SLOW, rows)
    (found,) = rows
    return found


def text(value: str, key: str = "k") -> dict[str, Any]:
    return {"key": key, "value": {"string_value": value}}


EVENT = {"name": "e", "time_unix_nano": 7}
LINK = {"trace_id": b"u" * 16, "span_id": b"v" * 8}
READ: dict[str, dict[str, Any]] = {
    "no more than usual": {},
    "no kind, no flags": {"kind": 0, "flags": 0},
    "a parent": {"parent_span_id": b"p" * 8},
    "a state": {"trace_state": "a=b"},
    "a state and a parent": {"trace_state": "a=" + "b" * 400, "parent_span_id": b"p" * 8},
    "a long name": {"name": "nä" * 200},
    "attributes": {
        "attributes": [
            text("v", "s"), text("ü\U0001f600\"\n\\", "ö"), text("", "e"), text("l" * 300, "l"),
            text("ü" * 10_000, "long"), text("x" * 125, "125"), text("x" * 126, "126"),
            {"key": "i", "value": {"int_value": 2**63 - 1}},
            {"key": "n", "value": {"int_value": -1}},
            {"key": "b", "value": {"bool_value": True}},
            {"key": "d", "value": {"double_value": -0.0}},
            {"key": "a", "value": {"array_value": {"values": [
                {"string_value": "ä"}, {"int_value": 300}, {"bool_value": False},
                {"double_value": 0.1}, {"string_value": ""},
            ]}}},
            {"key": "none", "value": {"array_value": {}}},
            {"key": "many", "value": {"array_value": {"values": [{"string_value": "ä"}] * 99}}},
        ],
    },
    "a thread": {"attributes": [{"key": "thread.id", "value": {"int_value": 7}}]},
    "no thread": {"attributes": [text("7", "thread.id")]},
    "events": {
        "events": [
            EVENT, EVENT | {"name": "é" * 100},
            EVENT | {"attributes": [text("v"), text("t" * 3000, "exception.stacktrace")]},
        ]
    },
    "links": {
        "links": [
            LINK, LINK | {"flags": 257}, LINK | {"trace_state": "a=" + "b" * 300},
            LINK | {"attributes": [text("v")], "trace_state": "ü", "flags": 2**32 - 1},
        ]
    },
    "what was dropped": {
        "dropped_attributes_count": 1, "dropped_events_count": 2, "dropped_links_count": 127,
    },
    "a status": {"status": {"code": 2, "message": "no ä " * 200}},
    "an empty status": {"status": {}},
    "everything": {
        "trace_state": "a=b", "parent_span_id": b"p" * 8, "attributes": [text("v")],
        "dropped_attributes_count": 1, "events": [EVENT], "dropped_events_count": 2,
        "links": [LINK, LINK], "dropped_links_count": 3, "status": {"code": 1},
    },
}  # fmt: skip


@pytest.mark.parametrize("fields", READ.values(), ids=READ)
def test_fast_path_reads_usual_spans_exactly(fields: dict[str, Any]) -> None:
    span = Span(**(USUAL | fields))
    found = row(span.SerializeToString())
    assert found != SLOW
    told = exactjson.loads(found.encode("latin-1"))
    assert exactjson.equal(told, span_record(span, NOBODY))


@pytest.mark.parametrize("name", READ)
def test_a_byte_too_many_or_too_few_is_not_overlooked(name: str) -> None:
    """At some 300 places: with a byte less, more or another, the row is what the bytes say."""
    data = Span(**(USUAL | READ[name])).SerializeToString()
    step = max(1, len(data) // 300)
    for at in range(0, len(data), step):
        before, behind = data[:at], data[at + 1 :]
        others = [before, before + behind, before + b"\x01" + data[at:]]
        others += [before + bytes([byte]) + behind for byte in (0, 1, 127, 128, 255)]
        for other in others:
            is_same_or_slow(other)


TIME = (7).to_bytes(8, "little")
EVENT_OF = b"\x5a\x0c\x09" + TIME + b"\x12\x01e"
LINK_IDS = b"\x0a\x10" + b"u" * 16 + b"\x12\x08" + b"v" * 8
FIELDS = {
    "state": (b"\x1a\x03x=y", b"\x1a\x00"),
    "parent": (b"\x22\x08" + b"p" * 8, b"\x22\x00"),
    "name": (b"\x2a\x03GET", b"\x2a\x00"),
    "kind": (b"\x30\x02", b"\x30\x00"),
    "start": (b"\x39" + TIME, b"\x39" + bytes(8)),
    "end": (b"\x41" + TIME, b"\x41" + bytes(8)),
    "attribute": (b"\x4a\x08\x0a\x01k\x12\x03\x0a\x01v", b"\x4a\x00"),
    "key": (b"\x4a\x08\x0a\x01q\x12\x03\x0a\x01v", b"\x4a\x07\x0a\x00\x12\x03\x0a\x01v"),
    "dropped": (b"\x50\x01", b"\x50\x00"),
    "event": (EVENT_OF, b"\x5a\x00"),
    "event's name": (EVENT_OF, b"\x5a\x0b\x09" + TIME + b"\x12\x00"),
    "event's time": (EVENT_OF, b"\x5a\x03\x12\x01e"),
    "link": (b"\x6a\x1c" + LINK_IDS, b"\x6a\x00"),
    "link's state": (b"", b"\x6a\x1e" + LINK_IDS + b"\x1a\x00"),
    "link's flags": (b"", b"\x6a\x21" + LINK_IDS + b"\x35" + bytes(4)),
    "status": (b"\x7a\x02\x18\x01", b"\x7a\x00"),
    "flags": (b"\x85\x01\x01\x01\x00\x00", b"\x85\x01" + bytes(4)),
}  # fmt: skip
"""What a span may have behind its ids, in order: usual bytes, and those that say nothing."""


def assembled(zero: str | None) -> bytes:
    ids = b"\x0a\x10" + b"t" * 16 + b"\x12\x08" + b"s" * 8
    return ids + b"".join(pair[name == zero] for name, pair in FIELDS.items())


def test_assembled_span_is_canonical_and_takes_the_fast_path() -> None:
    data = assembled(None)
    assert Span.FromString(data).SerializeToString() == data
    assert row(data) != SLOW


@pytest.mark.parametrize("zero", FIELDS)
def test_empty_field_gives_the_exact_row_or_the_slow_path(zero: str) -> None:
    """As canonical form has none, but for messages."""
    is_same_or_slow(assembled(zero))


def is_same_or_slow(data: bytes) -> None:
    try:
        found = row(data)
    except (DecodeError, UnicodeDecodeError):  # the whole request is for the slow way, and refused
        with pytest.raises(DecodeError):
            Span.FromString(data)
        return
    if found != SLOW:
        record = span_record(Span.FromString(data), NOBODY)
        assert exactjson.equal(exactjson.loads(found.encode("latin-1")), record), data.hex()


OTHER = {
    "of a zero id": USUAL | {"span_id": bytes(8)},
    "of a zero trace": USUAL | {"trace_id": bytes(16)},
    "of a zero parent": USUAL | {"parent_span_id": bytes(8)},
    "without an end": USUAL | {"end_time_unix_nano": 0},
    "of a large kind": USUAL | {"kind": 128},
    "with a key twice": USUAL | {"attributes": [text("v"), text("w")]},
    "with a key twice, once long": USUAL
    | {"attributes": [text("v", "ä"), {"key": "ä", "value": {"int_value": -1}}]},
    "with bytes": USUAL | {"attributes": [{"key": "k", "value": {"bytes_value": b""}}]},
    "with nan": USUAL | {"attributes": [{"key": "k", "value": {"double_value": float("nan")}}]},
    "with an event without a time": USUAL | {"events": [{"name": "e"}]},
    "with a link of no ids": USUAL | {"links": [{}]},
    "with a dropped count of two bytes": USUAL | {"dropped_links_count": 128},
    "with a key of a table": USUAL | {"attributes": [KeyValue(key_strindex=5)]},
}


@pytest.mark.parametrize("fields", OTHER.values(), ids=OTHER)
def test_spans_in_another_form_are_left_to_the_slow_path(fields: dict[str, Any]) -> None:
    assert row(Span(**fields).SerializeToString()) == SLOW


def test_spans_of_several_traces_get_their_correct_trace_ids() -> None:
    """Spans of several traces, one after the other and back again, in one request."""
    rows: list[str] = []
    traces = [b"a" * 16, b"b" * 16, b"a" * 16, b"c" * 16]
    spans = [Span(**(USUAL | {"trace_id": trace})) for trace in traces]
    add_rows([s.SerializeToString() for s in spans], FIXED, Texts(), lambda _: SLOW, rows)
    for span, found in zip(spans, rows, strict=True):
        told = exactjson.loads(found.encode("latin-1"))
        assert exactjson.equal(told, span_record(span, NOBODY))
