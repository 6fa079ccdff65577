"""The manual wire readers against protobuf's own parser: every byte of a message, changed.

A fast path may refuse any message, for the exact path takes it then. A message that it accepts is
one that protobuf accepts, and the records are those of the exact path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.core.translator.foreign.fast import ForeignText
from cirron_otel.core.translator.foreign.messages import RECEIVED, decode_foreign
from cirron_otel.core.translator.own.fast_decode import fast_decode
from cirron_otel.core.translator.translate import FromOtlp, encode_own
from cirron_otel.core.translator.typed import NotCanonicalError
from cirron_otel.errors import InputError

SESSION = "a1b2c3d4e5f607181122334455667788"
LOWER = SESSION[16:]
BATCH_ID = "d0" * 16


def span(number: int, **changed: Any) -> dict[str, Any]:
    return {
        "id": f"{number:016x}{LOWER}", "name": "step", "parent_id": SESSION, "index": None,
        "start_ns": 5, "end_ns": 9, "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
        "thread_id": 7, "pid": 1, "rank": 0, "attrs": {}, "mark_ids": [],
    } | changed  # fmt: skip


def mark(number: int, span_id: str, **changed: Any) -> dict[str, Any]:
    return {
        "id": f"{number:016x}{LOWER}", "span_id": span_id, "name": "loss", "value_type": "float",
        "value": 0.5, "attrs": {}, "ts_ns": number, "kind": "point",
    } | changed  # fmt: skip


def own_message() -> bytes:
    """A batch of this project's SDK: leaves alike, an index, marks, attributes, another id."""
    first, second = f"{1:016x}{LOWER}", f"{4:016x}{LOWER}"
    spans = [
        span(1, index=3, attrs={"k": "v"}, mark_ids=[f"{9:016x}{LOWER}"]),
        span(2), span(3), span(4, cpu_ns=200, mark_ids=[f"{10:016x}{LOWER}"]),
        span(5, end_ns=10, id="5" * 32), span(6, end_ns=11, parent_id=None, thread_id=300),
    ]  # fmt: skip
    batch = {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": BATCH_ID, "created_ns": 7,
        "spans": spans,
        "marks": [mark(9, first), mark(10, second, value=3, value_type="int", attrs={"a": 1})],
        "snapshots": [], "otel": {"session": SESSION},
    }  # fmt: skip
    return encode_own(exactjson.dumps(batch))


def foreign_message() -> bytes:
    """A request of another SDK with one of everything that a span may have."""
    data = TracesData()
    resource = data.resource_spans.add(schema_url="u")
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_spans.add(schema_url="v")
    scope.scope.name = "http"
    for number in (1, 2):
        made = scope.spans.add(
            trace_id=b"t" * 16, span_id=bytes([number]) * 8, parent_span_id=b"p" * 8, name="GET",
            kind=2, start_time_unix_nano=5, end_time_unix_nano=9, trace_state="a=b", flags=257,
        )  # fmt: skip
        made.attributes.add(key="text").value.string_value = "ä"
        made.attributes.add(key="int").value.int_value = 300
        made.attributes.add(key="flag").value.bool_value = True
        made.attributes.add(key="real").value.double_value = 0.5
        made.attributes.add(key="list").value.array_value.values.add().string_value = "x"
        made.events.add(name="e", time_unix_nano=3).attributes.add(key="k").value.int_value = 1
        link = made.links.add(trace_id=b"l" * 16, span_id=b"l" * 8, trace_state="c=d", flags=1)
        link.attributes.add(key="k").value.string_value = "v"
        made.status.message, made.status.code = "no", 2  # type: ignore[assignment]
    return data.SerializeToString()


def changed(data: bytes) -> Iterator[bytes]:
    """`data` with each byte replaced by some others, and cut, and with a byte more, there."""
    for at, byte in enumerate(data):
        others = {byte ^ 2, byte ^ 128, 0, 255, *((byte + n) % 256 for n in (1, 40, -1, 8))}
        for other in sorted(others - {byte}):
            yield data[:at] + bytes((other,)) + data[at + 1 :]
        yield data[:at] + data[at + 1 :]
        yield data[:at] + bytes((byte | 128, 0)) + data[at + 1 :]  # a varint longer than needed


def assert_own_agrees(data: bytes) -> bool:
    """Whether the fast path takes it; then the exact path gives the same."""
    try:
        whole = fast_decode(data)
    except NotCanonicalError:
        return False
    message = TracesData.FromString(data)
    (decoded,) = FromOtlp().feed(message.resource_spans)
    assert decoded.complete
    assert decoded.name == whole.name
    assert exactjson.equal(decoded.batch, exactjson.loads(whole.data))
    return True


def assert_foreign_agrees(data: bytes) -> bool:
    """Whether it is read; it is if protobuf reads it, and the records are the same."""
    made = ForeignText()
    try:
        message = TracesData.FromString(data)
    except DecodeError:
        with pytest.raises(InputError):
            made.add(data)
        return False
    made.add(data)
    expected = decode_foreign(list(message.resource_spans))
    expected["batch_id"], expected["created_ns"] = BATCH_ID, 7
    expected["otel"][RECEIVED] = 7
    assert exactjson.equal(exactjson.loads(made.text(BATCH_ID, 7)), expected)
    return True


def test_the_unchanged_messages_take_the_fast_path() -> None:
    assert assert_own_agrees(own_message())
    assert assert_foreign_agrees(foreign_message())


def test_modified_native_batches_decode_as_on_the_exact_path() -> None:
    taken = [assert_own_agrees(data) for data in changed(own_message())]
    assert 200 < sum(taken) < len(taken) * 0.9


def test_foreign_requests() -> None:
    taken = [assert_foreign_agrees(data) for data in changed(foreign_message())]
    assert 200 < sum(taken) < len(taken) * 0.9


def test_an_attribute_longer_than_its_span() -> None:
    data = bytearray(own_message())
    at = data.rfind(b"\x0a\x09thread.id")
    data[at - 1] += 40
    with pytest.raises(DecodeError):
        TracesData.FromString(bytes(data))
    assert not assert_own_agrees(bytes(data))
