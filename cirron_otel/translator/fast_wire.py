"""Reading the wire exactly as our encoder writes it: what `fast_decode` is made of."""

from __future__ import annotations

from struct import Struct
from typing import TypeVar

import msgspec
from msgspec import Raw
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .. import exactjson
from .. import semconv as sc
from ..ids import is_id, span_id_for
from . import events as ev
from .pieces import MARK_DOUBLE, MARK_ID_PREFIX, mark_kind
from .typed import EMPTY, FallbackError, TypedMark, TypedSnapshot, TypedSpan, encode
from .values import read_typed

_TIME = Struct("<BQ").unpack_from
_DOUBLE = Struct("<d").unpack_from
_CACHED = 8192

INT_FIELDS = {
    sc.THREAD_ID: 0,
    sc.CPU_NS: 1,
    sc.GPU_NS: 2,
    sc.MEMORY_PEAK: 3,
    sc.PROCESS_PID: 4,
    sc.RANK: 5,
    sc.OVERHEAD_NS: 6,
}
"""Our int attributes, ids and index aside, by slot."""
SYNTHETIC_SLOT, USERS_SLOT = -1, -2


def length_at(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at` and where it ends."""
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    shift = 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            if byte == 0:
                raise FallbackError  # not the shortest form
            return value, at + 1
        shift += 7
        if shift > 63:
            raise FallbackError


def field_at(data: bytes, at: int, tag: int) -> tuple[int, int]:
    """Where the length-delimited field with this tag begins and ends."""
    if at >= len(data) or data[at] != tag:
        raise FallbackError
    size, start = length_at(data, at + 1)
    end = start + size
    if end > len(data):
        raise FallbackError
    return start, end


attributes: dict[bytes, tuple[int, int]] = {}
"""By KeyValue: its slot and value, as `attribute` found them."""


def attribute(body: bytes) -> tuple[int, int]:
    """Which of our int attributes a KeyValue is, and its value."""
    pair_owner = Span.FromString(b"\x4a" + bytes([len(body)]) + body)
    (pair,) = pair_owner.attributes
    result = (USERS_SLOT, 0)
    slot = INT_FIELDS.get(pair.key)
    if slot is not None:
        value = read_typed({pair.key: pair.value}, pair.key, "int_value")
        if value is None or pair_owner.SerializeToString()[2:] != body:
            raise FallbackError
        result = (slot, value)
    elif pair.key == sc.SYNTHETIC:
        result = (SYNTHETIC_SLOT, 0)
    if result[0] != USERS_SLOT and len(attributes) < _CACHED:
        attributes[body] = result
    return result


def other(told: str, derived: str, span_id: bytes) -> str:
    """An id that stands beside the one the rule derives: it must be another, and its own."""
    if not is_id(told) or told == derived or span_id_for(told) != span_id:
        raise FallbackError
    return told


def differing(value: int, default: int | None) -> int:
    """A value that stands on a span because the resource says another."""
    if value == default:
        raise FallbackError
    return value


_kinds: dict[bytes, str] = {}
for _kind in ("point", "summary"):
    _kinds[mark_kind(_kind)] = _kind


def plain_mark(body: bytes, span_id: str) -> TypedMark | None:
    """A mark with a float value and no attributes, the usual one; None for any other event."""
    tag, ts_ns = _TIME(body, 0)
    if tag != 0x09 or body[9] != 0x12 or not ts_ns:
        return None
    size = body[10]
    if size > 127 or size == 0:
        return None
    at = 11 + size
    name = body[11:at].decode()
    prefix = len(MARK_ID_PREFIX)
    if body[at : at + prefix] != MARK_ID_PREFIX:
        return None
    at += prefix
    own = body[at : at + 32].decode()
    at += 32
    double = len(body) - 8
    for made in _kinds:
        if body.startswith(made, at):
            at += len(made)
            break
    else:
        return None
    if at + len(MARK_DOUBLE) != double or body[at:double] != MARK_DOUBLE or not is_id(own):
        return None
    (value,) = _DOUBLE(body, double)
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return TypedMark(own, span_id, name, "float", Raw(encode(value)), EMPTY, ts_ns, _kinds[made])


_T = TypeVar("_T", TypedSpan, TypedMark, TypedSnapshot)


def time_and_id(record: TypedMark | TypedSnapshot) -> tuple[int, str]:
    """Canonical order of marks and snapshots."""
    return record.ts_ns, record.id


def typed_record(kind: type[_T], record: ev.Record, seq: int | None) -> _T:
    """A record that the exact mapper read, typed; FallbackError where the types do not hold it."""
    if seq is not None:
        raise FallbackError
    data = exactjson.dumps(record)
    try:
        typed = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        raise FallbackError from None
    if not exactjson.equal(exactjson.loads(encode(typed)), record):
        raise FallbackError
    return typed


def exact_mark(event: Span.Event, body: bytes, span_id: str) -> TypedMark:
    """A mark by the exact mapper. Raises FallbackError unless encoding gives it back."""
    mark, seq = ev.read_mark(event, span_id)
    again = Span.Event()
    ev.write_mark(again, mark, span_id, seq)
    if again.SerializeToString() != body:
        raise FallbackError
    return typed_record(TypedMark, mark, seq)


def exact_snapshot(event: Span.Event, body: bytes, span_id: str) -> TypedSnapshot:
    """A snapshot by the exact mapper, likewise."""
    snapshot, seq = ev.read_snapshot(event, span_id)
    again = Span.Event()
    ev.write_snapshot(again, snapshot, span_id, seq)
    if again.SerializeToString() != body:
        raise FallbackError
    return typed_record(TypedSnapshot, snapshot, seq)
