"""Generators of hostile Cirron batches and of hostile OTLP messages."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel import exactjson, semconv
from cirron_otel.core.placement.batch_placement import Plan, RecordPlacement, Segment
from cirron_otel.core.translator.own import fast_batch, fast_events, parts
from cirron_otel.core.translator.own.spans import overhead_mark
from cirron_otel.ids import segment_trace_id, span_id_for

VOCABULARY = sorted(
    {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}
    | {
        "cirron.snapshot.id", "cirron.snapshot.mean", "cirron.snapshot.shape",
        "cirron.snapshot.histogram.bins", "cirron.attr.cirron.index", "cirron.rest.1", "cirron.",
        "cirron.attr.", "", "cirron.attr.cirron.unit_ns",
    }
)  # fmt: skip
SESSION_ID = "a1b2c3d4e5f60718" + "1122334455667788"
LOWER = SESSION_ID[16:]

surrogates = st.sampled_from(["\ud800", "k\udfff", "\ud83d"])
texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(VOCABULARY),
    surrogates,
    st.just("a\0b"),
    st.just("é" * 300),
)
integers = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63, 2**63 - 1, -(2**63), 2**64, 2**64 - 1]),
)
floats = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([-0.0, 1.0, 1e16, 5e-324])
raws = st.sampled_from(
    [
        exactjson.Raw(t)
        for t in (
            "1e400", "-0", "1" * 4100, '{"a":1,"a":2}', "0.1000000000000000055511",
            "1e-99999999999999999999", "1e99999999999999999999",
        )
    ]
)  # fmt: skip
scalars = st.one_of(st.none(), st.booleans(), integers, floats, texts, raws)


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"d": value}
    return value


json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
) | st.sampled_from([_nested(15), _nested(16), _nested(17), _nested(500)])

attrs = st.dictionaries(texts, json_values, max_size=4)
native_ids = st.sampled_from([f"{n:016x}{LOWER}" for n in range(1, 9)])
foreign_ids = st.sampled_from([f"{n:016x}{n:016x}" for n in range(1, 5)])
odd_ids = st.sampled_from(["", "root", "0" * 32, "0" * 16 + "f" * 16, "A" * 32, "x", "\ud800"])
ids = st.one_of(native_ids, native_ids, foreign_ids, odd_ids)
times = st.one_of(st.integers(0, 50), st.integers(0, 2**64 - 1), integers)
optional_ints = st.none() | integers

otel_objects = st.fixed_dictionaries(
    {},
    optional={
        "trace_id": st.sampled_from(
            [SESSION_ID, f"{0xE1:016x}{LOWER}", "c" * 16 + LOWER, "0" * 32, "zz", 5]
        ),
        "parent_span_id": st.sampled_from(["ab" * 8, "", "00" * 8, "abc", 7]),
        "kind": st.integers(0, 9),
        "status": st.fixed_dictionaries({}, optional={"code": st.integers(0, 3), "message": texts}),
        "flags": st.integers(0, 2**32),
        "trace_state": texts,
        "events": st.lists(
            st.fixed_dictionaries(
                {"name": texts, "time_ns": times},
                optional={"attributes": attrs, "dropped_attributes_count": st.integers(0, 5)},
            ),
            max_size=2,
        ),
        "links": st.lists(
            st.fixed_dictionaries(
                {"trace_id": st.just("ab" * 16), "span_id": st.sampled_from(["cd" * 8, "cd", "x"])},
                optional={"attributes": attrs, "flags": st.integers(0, 2**32 - 1)},
            ),
            max_size=2,
        ),
        "resource_spans": json_values,
        "unknown": json_values,
    },
)

OTHER_TRACES = [f"{n:016x}{LOWER}" for n in (0xE1, 0xE2)]
trace_ids = st.sampled_from([SESSION_ID, *OTHER_TRACES])
hostile_traces = trace_ids | st.sampled_from(["0" * 32, "E" * 32, "e1", "", 5, None])
named = st.just(SESSION_ID)
sessions = named | named | named | st.sampled_from(["0" * 32, "A" * 32, "5e55", "", 5, None, ["x"]])


def _entries(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists of objects: mostly as they should be, some without a key or with an odd value."""
    whole = st.fixed_dictionaries(fields)
    some = st.fixed_dictionaries({}, optional={key: v | json_values for key, v in fields.items()})
    return st.lists(whole | whole | some | json_values, min_size=1, max_size=3)


running = _entries(
    id=ids,
    name=st.sampled_from(["epoch", "step"]) | texts,
    index=st.none() | integers,
    start_ns=times,
    parent_id=st.none() | ids,
    trace_id=hostile_traces,
) | st.just([{"id": SESSION_ID, "name": "epoch", "start_ns": 1, "parent_id": None}] * 2)
segments = _entries(
    number=st.integers(1, 3) | integers,
    trace_id=hostile_traces,
    previous_trace_id=hostile_traces,
    start_ns=times,
    unit_id=ids,
    parent_id=st.none() | ids,
    parent_trace_id=hostile_traces,
)
own_otel = st.fixed_dictionaries(
    {"session": sessions},
    optional={
        "session_trace_id": hostile_traces,
        "trace_id": hostile_traces,
        "resource": st.fixed_dictionaries({"attributes": attrs}) | json_values,
        "traces": st.dictionaries(ids | texts, hostile_traces, max_size=2) | json_values,
        "running": running | json_values,
        "segments": segments | json_values,
        "part": json_values,
        "unknown": json_values,
    },
)
"""What a batch says of itself where it names its session, or seems to."""

spans = st.fixed_dictionaries(
    {
        "id": ids,
        "name": st.sampled_from(["cirron.session", "epoch", "step", "forward"]) | texts,
        "parent_id": st.none() | ids,
        "index": st.none() | st.integers(-1, 5) | integers,
        "start_ns": times,
        "end_ns": times,
        "cpu_ns": optional_ints,
        "gpu_ns": optional_ints,
        "memory_peak_bytes": optional_ints,
        "thread_id": st.integers(0, 2**64),
        "pid": st.integers(1, 3),
        "rank": st.integers(0, 2),
        "attrs": attrs,
        "mark_ids": st.lists(ids, max_size=3),
    },
    optional={"otel": otel_objects, "custom": json_values},
)
marks = st.fixed_dictionaries(
    {
        "id": ids,
        "span_id": ids | st.just("root"),
        "name": texts,
        "value_type": st.sampled_from(["float", "int", "string", "bool", "odd"]),
        "value": scalars | json_values | st.none(),
        "attrs": attrs,
        "ts_ns": times,
        "kind": st.sampled_from(["point", "summary"]) | texts,
    },
    optional={"value_nonfinite": st.sampled_from(["nan", "inf", "-inf"]) | texts},
)
statistics = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("mean", "std", "min", "max", "norm", "extra"), floats | json_values),
        "histogram": st.fixed_dictionaries(
            {}, optional={"bins": st.lists(floats, max_size=3), "counts": st.lists(integers)}
        )
        | json_values,
    },
)
snapshots = st.fixed_dictionaries(
    {
        "id": ids,
        "span_id": ids,
        "tensor_name": texts,
        "shape": st.lists(integers, max_size=3) | json_values,
        "dtype": texts,
        "mode": st.sampled_from(["stats", "sampled", "full"]) | texts,
        "stats": st.none() | statistics | json_values,
        "blob_uri": st.none() | texts,
        "ts_ns": times,
        "attrs": attrs,
    }
)


@st.composite
def _mutated(draw: st.DrawFn, records: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    record = dict(draw(records))
    for _ in range(draw(st.integers(0, 2))):
        how = draw(st.integers(0, 5))
        if record and how == 0:
            del record[draw(st.sampled_from(sorted(record)))]
        elif record and how == 1:
            record[draw(st.sampled_from(sorted(record)))] = draw(json_values)
        elif how == 2:
            record[draw(texts)] = draw(json_values)
    return record


def _lists(records: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[Any]]:
    return st.lists(_mutated(records), max_size=4)


_fields = {
    "schema_version": st.just(1),
    "sdk_version": st.just("0.3.0") | texts,
    "batch_id": st.just("0123456789abcdef0123456789abcdef") | texts,
    "created_ns": st.just(1_795_197_734_746_565_768) | times,
    "spans": _lists(spans),
    "marks": _lists(marks),
    "snapshots": _lists(snapshots),
}
plain_batches = st.fixed_dictionaries(
    _fields,
    optional={
        "otel": st.fixed_dictionaries(
            {},
            optional={
                "resource": st.just({"attributes": {"service.name": "x", "cirron.rank": 1}})
                | st.fixed_dictionaries({"attributes": attrs})
                | json_values,
                "trace_id": st.sampled_from(["d" * 16 + LOWER, "0" * 32, 1]),
                "part": json_values,
                "resource_spans": json_values,
            },
        ),
        "custom": json_values,
    },
)
named_batches = st.fixed_dictionaries(
    _fields | {"otel": own_otel}, optional={"custom": json_values}
)
"""Batches that name their session, or seem to."""
batches = _mutated(plain_batches | plain_batches | named_batches)


# --- OTLP ---------------------------------------------------------------------------------------

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_DOUBLE: floats,
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.sampled_from([0, 1, 0x100, 0x301, 2**32 - 1]),
    FieldDescriptor.TYPE_FIXED32: st.sampled_from([0, 1, 0x100, 0x301, 2**32 - 1]),
    FieldDescriptor.TYPE_FIXED64: st.integers(0, 2**64 - 1) | st.integers(0, 20),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 7),
    FieldDescriptor.TYPE_INT32: st.integers(-5, 5),
}
_wire_ids = st.one_of(
    st.binary(max_size=20),
    st.just(bytes(8)),
    st.just(bytes(16)),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=16, max_size=16),
)
_wire_texts = st.sampled_from(VOCABULARY) | st.text(max_size=8)
_NESTING = 4


def _field(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return messages(field.message_type, depth + 1)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _wire_texts
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _wire_ids if field.name.endswith("_id") else st.binary(max_size=6)
    return _SCALARS[field.type]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> bytes:
    """Serialised messages of a type: any set of its fields, and now and then an unknown one."""
    out = bytearray()
    for field in descriptor.fields:
        repeated = field.is_repeated
        if depth > _NESTING and field.type == FieldDescriptor.TYPE_MESSAGE:
            continue
        if not draw(st.integers(0, 3 if depth else 1)) and not repeated:
            continue
        most = 2 if repeated else 1
        for _ in range(draw(st.integers(0, most))):
            out += _encoded(field, draw(_field(field, depth)))
        if field.containing_oneof and draw(st.booleans()):
            break
    if not draw(st.integers(0, 6)):
        out += _varint(5000 << 3 | 2) + b"\x03new"
    return bytes(out)


def _encoded(field: FieldDescriptor, value: Any) -> bytes:
    import struct

    tag = field.number << 3
    if isinstance(value, str):
        value = value.encode("utf-8")
    if isinstance(value, bytes):
        return _varint(tag | 2) + _varint(len(value)) + value
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _varint(tag | 1) + struct.pack("<d", value)
    if field.type == FieldDescriptor.TYPE_FIXED64:
        return _varint(tag | 1) + struct.pack("<Q", value)
    if field.type == FieldDescriptor.TYPE_FIXED32:
        return _varint(tag | 5) + struct.pack("<I", value)
    return _varint(tag) + _varint(value & (2**64 - 1))


def _from(kind: Any) -> st.SearchStrategy[Any]:
    return messages(kind.DESCRIPTOR).map(kind.FromString)


resource_spans = _from(ResourceSpans)
traces = st.lists(resource_spans, min_size=0, max_size=3).map(
    lambda items: TracesData(resource_spans=items)
)


def copy_of(value: Any) -> Any:
    """A deep copy, so that a test can see whether its input was changed."""
    return copy.deepcopy(value)


def show(value: Any) -> str:
    """Readable text of a batch, for failing examples."""
    return json.dumps(value, default=repr, indent=1)


# --- crowded batches: what rides apart from its span ---------------------------------------------

_DERIVED = span_id_for("\ud800").hex() + LOWER
"""The id that the rule gives for the wire ids of a span whose own id cannot be encoded."""
_scopes = st.sampled_from([f"{n:016x}{LOWER}" for n in (1, 2)] + ["\ud800", _DERIVED, "x", ""])
_mark_names = st.sampled_from([f"{n:016x}{LOWER}" for n in range(100, 112)])
_attrs = st.sampled_from([{}, {}, {"k": 1}, {"big": 2**64}, {"note": "n" * 120}, {"\udc00": "x"}])


@st.composite
def _mark_ids(draw: st.DrawFn, marks: list[Any], span_id: str) -> Any:
    """A span's list of its marks: right, in another order, with some missing or added, or none."""
    named = [mark["id"] for mark in marks if mark["span_id"] == span_id and "id" in mark]
    how = draw(st.integers(0, 9))
    if how < 4:
        return named
    if how == 4:
        return draw(st.permutations(named))
    if how == 5:
        return named + draw(st.lists(_mark_names, max_size=3))
    if how == 6:
        return named[: draw(st.integers(0, len(named)))]
    if how == 7:
        return named * 2
    return [] if how == 8 else draw(st.none() | json_values)


@st.composite
def crowded_batches(draw: st.DrawFn) -> dict[str, Any]:
    """Batches with several marks and snapshots a scope, of few scopes; some ids come twice."""
    pool = draw(st.lists(_scopes, min_size=1, max_size=3, unique=True))
    scopes = st.sampled_from(pool)
    made, listed, taken = [], [], []
    for _ in range(draw(st.integers(0, 3))):
        own = draw(scopes)
        made.append({
            "id": own, "name": draw(st.sampled_from(["step", "cirron.session"])),
            "parent_id": draw(st.none() | scopes | st.just(SESSION_ID)), "index": None,
            "start_ns": draw(st.integers(0, 9)), "end_ns": draw(st.integers(0, 9)), "cpu_ns": None,
            "gpu_ns": None, "memory_peak_bytes": None, "thread_id": 1, "pid": 1,
            "rank": draw(st.integers(0, 1)), "attrs": draw(_attrs),
        })  # fmt: skip
    for number in range(draw(st.integers(0, 9))):
        own_id = f"{number + 100:016x}{LOWER}" if draw(st.integers(0, 5)) else draw(_mark_names)
        listed.append({
            "id": own_id, "span_id": draw(scopes | scopes | st.just("root")), "name": "loss",
            "value_type": "int", "value": draw(st.integers(0, 2)), "attrs": draw(_attrs),
            "ts_ns": draw(st.integers(0, 5)), "kind": "point",
        })  # fmt: skip
        if not draw(st.integers(0, 7)):
            del listed[-1]["id"]
    for number in range(draw(st.integers(0, 3))):
        taken.append({
            "id": f"{number + 200:016x}{LOWER}", "span_id": draw(scopes), "tensor_name": "w",
            "shape": [2], "dtype": "f", "mode": "full", "stats": None, "blob_uri": None,
            "ts_ns": draw(st.integers(0, 5)), "attrs": {},
        })  # fmt: skip
    for span in made:
        if draw(st.booleans()):
            overhead = overhead_mark(span["id"], span["end_ns"], draw(st.integers(0, 2)))
            listed.insert(draw(st.integers(0, len(listed))), overhead)
    if draw(st.booleans()):
        listed.sort(key=lambda mark: (mark["ts_ns"], mark.get("id", "")))
    for span in made:
        span["mark_ids"] = draw(_mark_ids(listed, span["id"]))
        if not draw(st.integers(0, 9)):
            del span["mark_ids"]
    batch = {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": "c" * 32, "created_ns": 7,
        "spans": made, "marks": listed, "snapshots": taken,
    }  # fmt: skip
    if not draw(st.integers(0, 3)):
        batch["batch_id"] = draw(st.none() | texts)
    if not draw(st.integers(0, 3)):
        batch["custom"] = draw(json_values)
    if draw(st.booleans()):
        batch["otel"] = draw(own_otel | st.just({"part": {"mine": 1}}) | otel_resources)
    return batch


otel_resources = st.fixed_dictionaries(
    {}, optional={"resource": st.fixed_dictionaries({"attributes": attrs}), "part": json_values}
)

_small_limits = st.fixed_dictionaries(
    {},
    optional={
        "MAX_EVENTS": st.integers(1, 3),
        "MAX_SPAN_BYTES": st.sampled_from([1, 300, 700, 2_000]),
        "REST_PIECE": st.sampled_from([1, 20, 100]),
    },
)
limits = st.just({}) | _small_limits | _small_limits
"""Limits of the mapping, most often so small that even a small batch exceeds them."""


@contextmanager
def cut(some_limits: dict[str, int]) -> Iterator[None]:
    """Set limits of the mapping; on the fast paths, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in some_limits.items():
            patch.setattr(semconv, name, value)
        if "MAX_SPAN_BYTES" in some_limits:
            # It holds for the real limit that so many bytes surely fit.
            patch.setattr(fast_events, "SMALL", 0)
            patch.setattr(fast_batch, "SMALL", 0)
        yield


@st.composite
def crafted_parts(draw: st.DrawFn) -> dict[str, Any]:
    """Batches with the hash of a part whose `otel.part` no decoder wrote, or not for them."""
    batch = draw(crowded_batches())
    indexes = st.integers(0, 4) | st.just(-1)
    numbers = st.lists(indexes, max_size=4)
    otel = batch.get("otel")
    entry = st.fixed_dictionaries(
        {"ordinal": indexes}, optional={"marks": numbers, "snapshots": numbers}
    )
    seam = st.fixed_dictionaries({
        "name": st.sampled_from(
            [semconv.CONTINUATION_SPAN, semconv.SEGMENT_SPAN, semconv.RUNNING_SPAN, "x", "\ud800"]
        ),
        "trace_id": hostile_traces, "span_id": st.sampled_from(["ab" * 8, ""]),
        "parent_span_id": st.sampled_from(["ab" * 8, ""]), "start_ns": times, "index": indexes,
        "links": st.lists(st.lists(trace_ids, max_size=3), max_size=2),
    }, optional={"scope_id": texts, "scope_name": texts})  # fmt: skip
    size = st.integers(0, 4)
    part = draw(st.fixed_dictionaries(
        {"spans": size, "marks": size, "snapshots": size, "missing_synthetic": size},
        optional={
            "batch_id": json_values, "file": texts, "otel": json_values, "part": json_values,
            "seq": st.dictionaries(
                st.sampled_from(["spans", "marks", "snapshots"]),
                st.lists(st.none() | indexes, max_size=9),
            ),
            "more_marks": st.lists(st.tuples(indexes, indexes).map(list), max_size=2),
            "carriers": st.lists(entry | json_values, max_size=3),
            "seams": st.lists(seam | json_values, max_size=2),
            "short_header": st.booleans() | json_values,
            "omitted_attributes": st.lists(texts, max_size=2) | json_values,
        },
    ))  # fmt: skip
    batch["otel"] = (otel if isinstance(otel, dict) else {}) | {"part": part}
    batch["batch_id"] = parts._hash(batch)
    return batch


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """What is outside a batch: segments and places, so that there are traces and seams."""
    starts = draw(st.lists(st.tuples(st.integers(0, 9), native_ids), unique=True, max_size=3))
    segments: list[Segment] = []
    for number, (start, unit) in enumerate(sorted(starts), 1):
        before = segments[-1].trace_id if segments else bytes.fromhex(SESSION_ID)
        trace_id = segment_trace_id(SESSION_ID, unit, number, bytes.fromhex(SESSION_ID))
        parent = draw(st.none() | st.just(SESSION_ID) | native_ids)
        segments.append(Segment(start, unit, parent, number, trace_id, before))
    places = {
        own: RecordPlacement(SESSION_ID, bytes.fromhex(draw(trace_ids)), draw(st.integers(0, 3)))
        for own in draw(st.lists(native_ids, unique=True, max_size=2))
    }
    return Plan(SESSION_ID, places, {SESSION_ID: segments})
