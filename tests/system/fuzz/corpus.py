"""What fuzzing begins with, and how it is changed: valid requests, and changes to their structure.

The same seed gives the same inputs.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from cirron_otel.core.importers.traceml.framing import FrameDecoder, frame_of
from cirron_otel.core.otlp.json_codec import traces_to_json
from cirron_otel.core.otlp.wire import LEN, decode_varint, encode_varint
from cirron_otel.core.translator.translate import encode_own
from cirron_otel.errors import InputError
from tests.core.importers.dgrr.traces import (
    FILES,
    ODD,
    SMALL,
    batches_of,
    chain,
    trace,
)

RECORDED = Path(__file__).parents[2] / "testdata" / "spools"
TRACEML = RECORDED.parent / "traceml"
_SMALL = 6_000
_TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b"null",
    b"true",
    b"NaN",
    b"-Infinity",
    b"1e400",
    b"0e99999999999999999999",
    b"1e-99999999999999999999",
    b"-0",
    b"9" * 30,
    b'"\\ud800"',
    b"\xff",
    b"\0",
    b"1.0000000000000000000001",
    b'"spans":[{}]',
    b'"schema_version":1,',
    b'{"key":"k","value":{"arrayValue":{"values":[]}}}',
    b"[" * 60,
    b"{}," * 60,
)
_VARINTS = (
    b"\x00",
    b"\x7f",
    b"\x80\x01",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 10,
    b"\x8a\x80\x80\x80\x00",
)
_TAGS = tuple(encode_varint(number << 3 | LEN) for number in (1, 2, 3, 4, 5, 9, 11, 13, 15, 1000))
_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63,
    2**64,
    -(2**63) - 1,
    1.5,
    float("nan"),
    "",
    "x",
    "\0",
    "\ud800",
    [],
    {},
    [{}],
    {"stringValue": "s"},
    {"intValue": "1"},
    {"kvlistValue": {"values": [{}]}},
    "5b8efff798038103",
    10**40,
)


def rich() -> TracesData:
    """A request with something in every field."""
    data = TracesData()
    whole = data.resource_spans.add(schema_url="https://a")
    whole.resource.attributes.add(key="process.pid").value.int_value = 7
    scope = whole.scope_spans.add(schema_url="https://b")
    scope.scope.name, scope.scope.version = "scope", "1"
    for number in range(3):
        span = scope.spans.add(
            name=f"s{number}", trace_id=b"t" * 16, span_id=bytes([number + 1]) * 8,
            start_time_unix_nano=1, end_time_unix_nano=2**63, kind=number, flags=257,  # type: ignore[arg-type]
            trace_state="a=b", parent_span_id=b"p" * 8, dropped_events_count=1,
        )  # fmt: skip
        _fill(span)
    return data


def _fill(span: Span) -> None:
    span.status.code, span.status.message = 2, "no"  # type: ignore[assignment]
    event = span.events.add(name="e", time_unix_nano=5, dropped_attributes_count=2)
    span.links.add(trace_id=b"l" * 16, span_id=b"l" * 8, trace_state="c=d", flags=1)
    for holder in (span, event):
        add = holder.attributes.add
        add(key="text").value.string_value = "é\0"
        add(key="int").value.int_value = -(2**63)
        add(key="double").value.double_value = float("nan")
        add(key="bool").value.bool_value = False
        add(key="bytes").value.bytes_value = b"\xff\0"
        add(key="empty")
        inner = add(key="list").value.array_value.values.add().kvlist_value.values.add(key="k")
        inner.value.array_value.values.add().int_value = 1


def batches() -> list[bytes]:
    """Recorded batches of the SDKs, the smaller ones."""
    files = sorted(RECORDED.rglob("spool/*.json"))
    return [data for file in files if len(data := file.read_bytes()) < _SMALL][:40]


def connections() -> list[bytes]:
    """The beginnings of recorded connections of TraceML's, and their last frames."""
    found = []
    for file in sorted(TRACEML.glob("*/*/frames/*.frames")):
        frames = [frame_of(each) for each in FrameDecoder().feed(file.read_bytes())]  # type: ignore[arg-type]
        steps = [frame for frame in frames if b"StepTimeTable" in frame]
        found.append(b"".join([frames[0], *steps[:2], frames[-1]]))
    return found


def traces() -> list[bytes]:
    """DGRR traces: valid and damaged ones, short ones."""
    short = (data for path in FILES if len(data := path.read_bytes()) < _SMALL)
    return [SMALL, ODD, trace([]), trace(chain(5, 1)), *short]


def seeds(target: str) -> list[bytes]:
    """Inputs of a target that are right."""
    plain = rich().SerializeToString()
    if target == "binary":
        return [b"", plain]
    if target in ("born-in-cirron", "wire"):
        return [plain, *_own()]
    if target == "text":
        return [b"{}", traces_to_json(rich())]
    if target == "batch":
        return batches()
    if target == "traceml":
        return connections()
    if target == "dgrr":
        return traces()
    if target == "dgrr-batch":
        return [batch.data for data in traces() for batch in batches_of(data)]
    return [gzip.compress(plain, mtime=0), zstandard.compress(plain), gzip.compress(b"", mtime=0)]


def _own() -> list[bytes]:
    """OTLP of those recorded batches that name their session."""
    found = []
    for data in batches():
        value = json.loads(data)
        value["otel"] = {"session": "ab" * 16}
        try:
            found.append(encode_own(json.dumps(value).encode()))
        except ValueError:
            continue
    return found


def inputs(target: str, seed: int) -> Iterator[bytes]:
    """Seeds, and what becomes of them by a few changes; without an end."""
    chance = random.Random(f"{target} {seed}")
    known = seeds(target)
    yield from known
    changes = {
        "text": _json, "batch": _json, "coded": _bytes, "traceml": _frames, "dgrr": _trace,
        "dgrr-batch": _json,
    }  # fmt: skip
    change = changes.get(target, _wire)
    while True:
        data = chance.choice(known)
        for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
            data = change(data, chance) if chance.random() < 0.9 else _spliced(data, known, chance)
        yield data


def _spliced(data: bytes, known: list[bytes], chance: random.Random) -> bytes:
    other = chance.choice(known)
    at, to = chance.randint(0, len(data)), chance.randint(0, len(data))
    begin = chance.randint(0, len(other))
    return data[:at] + other[begin : begin + chance.randint(0, 64)] + data[to:]


def _bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, lengths replaced, parts cut, doubled or nested in one another."""
    at = chance.randint(0, len(data))
    match chance.randint(0, 4):
        case 0:
            return data[:at] + bytes([chance.randint(0, 255)]) + data[at + 1 :]
        case 1:
            return data[:at] + chance.choice(_VARINTS) + data[at + 1 :]
        case 2:
            return data[:at]
        case 3:
            return (
                data[:at] + data[at : at + chance.randint(1, 40)] * chance.randint(2, 9) + data[at:]
            )
        case _:
            tag = chance.choice((b"\x0a", b"\x12", b"\x4a", b"\x2a", b"\x32", b"\x1a", b"\x7a"))
            return data[:at] + tag + bytes([min(len(data) - at, 127)]) + data[at:]


def _wire(data: bytes, chance: random.Random) -> bytes:
    """A message in which a field, at any depth, is gone, doubled, moved or another.

    Lengths fit; but one may be another, or longer than it needs to be.
    """
    fields = _fields(data)
    if not fields or chance.random() < 0.1:
        return _bytes(data, chance)
    at = chance.randrange(len(fields))
    tag, content = fields[at]
    if content is not None and chance.random() < 0.85:
        fields[at] = (tag, _wire(content, chance))
    else:
        match chance.randint(0, 5):
            case 0:
                del fields[at]
            case 5 if content is not None:
                size = len(content) + chance.choice((-2, -1, 1, 2, 8, 40, 128))
                length = encode_varint(max(size, 0))
                if chance.random() < 0.2:
                    length = length[:-1] + bytes((length[-1] | 0x80, 0))
                fields[at] = (tag + length + content, None)
            case 1:
                fields.insert(chance.randint(0, len(fields)), fields[at])
            case 2:
                fields.append((chance.choice(_TAGS), content))
            case 3:
                fields[at] = (chance.choice(_TAGS), content)
            case _:
                chance.shuffle(fields)
    return b"".join(
        tag if content is None else tag + encode_varint(len(content)) + content
        for tag, content in fields
    )


def _fields(data: bytes) -> list[tuple[bytes, bytes | None]]:
    """(tag, content) of fields with a length, (field, None) of others; empty for no message."""
    found: list[tuple[bytes, bytes | None]] = []
    at = 0
    try:
        while at < len(data):
            start = at
            tag, at = decode_varint(data, at)
            if tag & 7 == LEN:
                size, value = decode_varint(data, at)
                at = value + size
                if at > len(data):
                    return []
                found.append((encode_varint(tag), data[value:at]))
            elif tag & 7 in (1, 5):
                at += 8 if tag & 7 == 1 else 4
                found.append((data[start:at], None))
            elif tag & 7 == 0:
                _, at = decode_varint(data, at)
                found.append((data[start:at], None))
            else:
                return []
    except InputError:
        return []
    return found


def _frames(data: bytes, chance: random.Random) -> bytes:
    """A frame in which a value, at any depth, is another; or bytes that are changed."""
    frames = [each for each in FrameDecoder().feed(data) if isinstance(each, bytes)]
    if not frames or chance.random() < 0.3:
        return _bytes(data, chance)
    at = chance.randrange(len(frames))
    try:
        frames[at] = msgspec.msgpack.encode(replaced(msgspec.msgpack.decode(frames[at]), chance))
    except (msgspec.DecodeError, TypeError, ValueError, OverflowError):
        frames[at] = _bytes(frames[at], chance)
    return b"".join(map(frame_of, frames))


_HEADER_FIELDS = ((0, 4), (4, 2), (6, 2), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4), (40, 8),
                  (48, 16))  # fmt: skip
_RECORD_FIELDS = (*((at, 8) for at in range(0, 64, 8)), (64, 4), (68, 4))
_FIELDS = tuple(
    bytes.fromhex(text)
    for text in ("00", "01", "ff", "ffffffffffffffff", "0000000000000080", "000000000000f07f",
                 "010000000000f07f", "000000000000f8ff", "0000000000001000", "000000000000f03f")
)  # fmt: skip
"""Values of fields: integers, a negative zero, infinity, and two NaNs."""


def _trace(data: bytes, chance: random.Random) -> bytes:
    """A trace with another field, or with records removed, repeated or exchanged.

    The CRCs, or some of them, are often right again. Sometimes only bytes are changed.
    """
    if len(data) < 64 or chance.random() < 0.2:
        return _bytes(data, chance)
    head, body = bytearray(data[:64]), data[64:]
    records = [bytearray(body[at : at + 72]) for at in range(0, len(body), 72)]
    match chance.randint(0, 3):
        case 0:
            _set(head, *chance.choice(_HEADER_FIELDS), chance)
        case 1 if records:
            _set(chance.choice(records), *chance.choice(_RECORD_FIELDS), chance)
        case 2 if records:
            chance.shuffle(records)
            records = records[: chance.randint(0, len(records))]
        case _:
            records += records[: chance.randint(0, 3)]
    if chance.random() < 0.5:
        for each in records:
            if len(each) == 72:
                each[64:68] = struct.pack("<I", zlib.crc32(each[:64]))
        head[16:24] = struct.pack("<Q", len(records))
    if chance.random() < 0.5:
        head[32:36] = struct.pack("<I", zlib.crc32(b"".join(records)))
        head[36:40] = struct.pack("<I", zlib.crc32(head[:36]))
    return bytes(head) + b"".join(records)


def _set(part: bytearray, at: int, size: int, chance: random.Random) -> None:
    value = chance.choice((*_FIELDS, chance.randbytes(8)))
    part[at : at + size] = value[:size].ljust(min(size, len(part) - at), b"\0")


def _json(data: bytes, chance: random.Random) -> bytes:
    """A token put in the text, or a value in the document put in the place of another."""
    if chance.random() < 0.2:
        at = chance.randint(0, len(data))
        return data[:at] + chance.choice(_TOKENS) + data[at + chance.randint(0, 3) :]
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data + chance.choice(_TOKENS)
    return json.dumps(replaced(value, chance)).encode()


def replaced(value: Any, chance: random.Random) -> Any:
    """`value`, in which something at a random depth is another."""
    if not isinstance(value, (dict, list)) or not value or chance.random() < 0.15:
        return chance.choice(_VALUES)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return [replaced(each, chance) if n == at else each for n, each in enumerate(value)]
    key = chance.choice(list(value))
    other = key if chance.random() < 0.9 else base64.b64encode(chance.randbytes(3)).decode()
    return {(other if k == key else k): (replaced(v, chance) if k == key else v)
            for k, v in value.items()}  # fmt: skip
