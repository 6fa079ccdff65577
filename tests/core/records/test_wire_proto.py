"""JSON ↔ protobuf of the wire schema: equal both ways, whatever the batch holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cirron_otel import exactjson
from cirron_otel._proto.cirron.v1 import trace_pb2 as pb
from cirron_otel.core.records import schema
from cirron_otel.core.translator.own.wire_proto import from_proto, parse, to_proto
from cirron_otel.errors import InputError
from cirron_otel.exactjson import Raw
from tests.kit.examples import examples
from tests.kit.spools.made import (
    made,
    mark,
    snapshot,
    span,
)
from tests.kit.spools.mutations import batches, nested, values
from tests.kit.spools.recorded import ALL_BATCHES

ROOT = Path(__file__).parents[3]


def through_bytes(batch: Any) -> Any:
    return from_proto(parse(to_proto(batch).SerializeToString()))


def rests(message: Any) -> list[str]:
    """Every `rest` that is not empty, in a batch and all its records."""
    found = [message.rest]
    for each in (*message.spans, *message.marks):
        found.append(each.rest)
    for each in message.snapshots:
        found += [each.rest, each.stats.rest, each.stats.histogram.rest]
    return [rest for rest in found if rest]


@pytest.mark.parametrize("path", ALL_BATCHES, ids=lambda path: path.name)
def test_recorded_batches_come_back_equal(path: Path) -> None:
    batch = exactjson.loads(path.read_bytes())
    assert exactjson.equal(through_bytes(batch), batch)


def test_conforming_batches_leave_no_rest() -> None:
    for path in ALL_BATCHES:
        if any(odd in str(path) for odd in ("04_", "11_", "17_")):
            continue
        assert rests(to_proto(exactjson.loads(path.read_bytes()))) == []


def test_rest_contains_only_fields_the_schema_cannot_represent() -> None:
    batch = made(1, spans=[span(1, name=5, new=[1])])
    del batch["spans"][0]["pid"]
    message = to_proto(batch)
    assert rests(message) == ['{"set":{"name":5,"new":[1]},"missing":["pid"]}']
    assert message.spans[0].id == batch["spans"][0]["id"]


# (JSON value, the field of Value that holds it)
VALUES: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "boolean"),
    (0, "integer"),
    (-(2**63), "integer"),
    (2**63 - 1, "integer"),
    (2**63, "json"),
    (1.0, "number"),
    (-0.0, "number"),
    (float("nan"), "number"),
    (float("-inf"), "number"),
    (Raw("1e400"), "json"),
    (Raw("-0"), "json"),
    ("", "text"),
    ("a\0é", "text"),
    ("\ud800", "json"),
    ([], "list"),
    ({}, "object"),
    ({"": {"a": [1, None]}}, "object"),
    ({"\udfff": 1}, "json"),
    (Raw('{"a":1,"a":2}'), "json"),
]


@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda value: repr(value)[:20])
def test_values(value: Any, kind: str) -> None:
    batch = made(1, spans=[span(1, attrs={"a": value, "b": [value]})])
    message = to_proto(batch)
    assert message.spans[0].attrs.fields[0].value.WhichOneof("kind") == kind
    assert rests(message) == []
    assert exactjson.equal(through_bytes(batch), batch)


@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda value: repr(value)[:20])
def test_a_mark_may_hold_any_value(value: Any, kind: str) -> None:
    batch = made(1, marks=[mark(1, "root", value=value)])
    expected = None if kind == "null" else kind
    assert to_proto(batch).marks[0].value.WhichOneof("kind") == expected
    assert exactjson.equal(through_bytes(batch), batch)


@pytest.mark.parametrize("depth", [15, 16, 17, 100, 150])
def test_deep_values_are_parsed_again(depth: int) -> None:
    batch = made(1, spans=[span(1, attrs={"deep": nested(depth)}, otel={"deep": nested(depth)})])
    assert exactjson.equal(through_bytes(batch), batch)
    assert rests(to_proto(batch)) == []


def test_excessive_nesting_is_an_input_error() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        to_proto(made(1, spans=[span(1, attrs={"deep": nested(20_000)})]))


@pytest.mark.parametrize(
    "batch",
    [
        {},
        [],
        None,
        5,
        Raw('{"schema_version":1,"schema_version":1}'),
        {"spans": None},
        {"spans": {"a": 1}, "marks": [None, 5, [], {}], "snapshots": [{"stats": {}}]},
        {"otel": {}},
        {"otel": None},
        {"otel": {"\ud800": 1}},
        {"rest": "x", "is": 1, "set": {}, "missing": []},
        made(1, snapshots=[snapshot(1, 1, stats={"histogram": {"bins": [1], "counts": [1.0]}})]),
        made(1, snapshots=[snapshot(1, 1, stats={"mean": 1, "rest": "x", "histogram": None})]),
        made(1, snapshots=[snapshot(1, 1, stats=None, shape=[2**63])]),
        made(1, schema_version=-1),
        made(1, schema_version=True),
    ],
    ids=lambda batch: repr(batch)[:40],
)
def test_odd_shapes_come_back_equal(batch: Any) -> None:
    assert exactjson.equal(through_bytes(batch), batch)


@settings(max_examples=examples(1500), deadline=None)
@given(batches())
def test_mutated_batches_come_back_equal(batch: Any) -> None:
    before = exactjson.dumps(batch)
    message = to_proto(batch)
    assert exactjson.dumps(batch) == before
    assert exactjson.equal(from_proto(parse(message.SerializeToString())), batch)
    assert to_proto(from_proto(message)) == message


@settings(max_examples=examples(500), deadline=None)
@given(values)
@example({"is": 1})
def test_any_json_value_comes_back_equal(value: Any) -> None:
    assert exactjson.equal(through_bytes(value), value)


# --- from the other side ------------------------------------------------------------------------

_texts = st.text(max_size=5)
_ints = st.integers(-(2**63), 2**63 - 1)


def _values(depth: int = 0) -> st.SearchStrategy[pb.Value]:
    plain = st.one_of(
        st.builds(pb.Value),
        st.builds(pb.Value, null=st.booleans()),
        st.builds(pb.Value, boolean=st.booleans()),
        st.builds(pb.Value, integer=_ints),
        st.builds(pb.Value, number=st.floats()),
        st.builds(pb.Value, text=_texts),
        st.builds(
            pb.Value, json=st.sampled_from(["1", "1e400", '{"a":1,"a":2}', " [ 1 ] ", '"x"'])
        ),
    )
    if depth > 2:
        return plain
    deeper = _values(depth + 1)
    return st.one_of(
        plain,
        st.builds(pb.Value, list=st.builds(pb.List, values=st.lists(deeper, max_size=2))),
        st.builds(pb.Value, object=_objects(deeper)),
    )


def _objects(inside: st.SearchStrategy[pb.Value]) -> st.SearchStrategy[pb.Object]:
    field = st.builds(pb.Object.Field, key=_texts, value=inside)
    return st.builds(pb.Object, fields=st.lists(field, max_size=3))


_object = _objects(_values())
_rest = st.sampled_from(
    [
        "",
        "",
        '{"set":{"a":1}}',
        '{"missing":["id","x"]}',
        '{"set":{"id":5},"missing":[]}',
        '{"is":3}',
        "{}",
    ]
)
_some = st.none()
_spans = st.builds(
    pb.Span, id=_texts, name=_texts, parent_id=_some | _texts, index=_some | _ints, start_ns=_ints,
    end_ns=_ints, cpu_ns=_some | _ints, pid=_some | _ints, rank=_some | _ints,
    attrs=_some | _object, mark_ids=st.lists(_texts, max_size=2), otel=_some | _object, rest=_rest,
)  # fmt: skip
_marks = st.builds(
    pb.Mark, id=_texts, span_id=_texts, name=_texts, value_type=_texts, value=_some | _values(),
    attrs=_some | _object, ts_ns=_ints, kind=_texts, value_nonfinite=_some | _texts, rest=_rest,
)  # fmt: skip
_histograms = st.builds(
    pb.Histogram,
    bins=st.lists(st.floats(), max_size=3),
    counts=st.lists(_ints, max_size=3),
    rest=_rest,
)
_stats = st.builds(
    pb.Stats, mean=_some | st.floats(), norm=_some | st.floats(), histogram=_some | _histograms,
    rest=_rest,
)  # fmt: skip
_snapshots = st.builds(
    pb.Snapshot, id=_texts, shape=st.lists(_ints, max_size=2), stats=_some | _stats,
    blob_uri=_some | _texts, attrs=_some | _object, rest=_rest,
)  # fmt: skip
messages = st.builds(
    pb.Batch, schema_version=st.integers(0, 2**32 - 1), sdk_version=_texts, batch_id=_texts,
    created_ns=_ints, spans=st.lists(_spans, max_size=2), marks=st.lists(_marks, max_size=2),
    snapshots=st.lists(_snapshots, max_size=2), otel=_some | _object, rest=_rest,
)  # fmt: skip


@settings(max_examples=examples(800), deadline=None)
@given(messages)
def test_any_message_decodes_to_a_batch_and_reencodes_canonically(message: pb.Batch) -> None:
    batch = from_proto(message)
    ours = to_proto(batch)
    assert exactjson.equal(from_proto(ours), batch)
    again = to_proto(from_proto(ours))
    assert again.SerializeToString(deterministic=True) == ours.SerializeToString(deterministic=True)
    assert exactjson.equal(exactjson.loads(exactjson.dumps(batch)), batch)


@pytest.mark.parametrize(
    "rest",
    [
        "x",
        "[]",
        "5",
        '{"set":[]}',
        '{"missing":{}}',
        '{"missing":[1]}',
        '{"other":1}',
        '{"is":1,"set":{}}',
        '{"set":{},"set":{}}',
        "[" * 100_000,
    ],
)
def test_invalid_rest_is_an_input_error(rest: str) -> None:
    with pytest.raises(InputError):
        from_proto(pb.Batch(rest=rest))
    with pytest.raises(InputError):
        from_proto(pb.Batch(spans=[pb.Span(rest=rest)]))


def test_invalid_json_text_is_an_input_error() -> None:
    with pytest.raises(InputError, match="not JSON"):
        from_proto(pb.Batch(marks=[pb.Mark(value=pb.Value(json="{"))]))


@pytest.mark.parametrize("data", [b"\xff", b'{"schema_version":1}', b"\x2a\x05ab"])
def test_invalid_protobuf_bytes_are_an_input_error(data: bytes) -> None:
    with pytest.raises(InputError, match="not valid protobuf"):
        parse(data)


# --- the schema and the code --------------------------------------------------------------------


def test_generated_code_matches_the_schema(tmp_path: Path) -> None:
    """Whatever generator is installed here: what it makes of the file is what the code holds."""
    target = tmp_path / "trace.binpb"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'proto'}",
         f"--descriptor_set_out={target}", "cirron/v1/trace.proto"],
        check=True,
    )  # fmt: skip
    [expected] = FileDescriptorSet.FromString(target.read_bytes()).file
    found = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for message in (*expected.message_type, *found.message_type):
        _without_json_names(message)
    assert found == expected


def _without_json_names(message: Any) -> None:
    """Generators differ in whether they state the names of protobuf's own JSON."""
    for field in message.field:
        field.ClearField("json_name")
    for inner in message.nested_type:
        _without_json_names(inner)


def test_the_generated_code_runs_on_the_oldest_runtime_allowed() -> None:
    """Code of 5.27 and later checks the runtime's version at import; ours is older."""
    text = Path(str(pb.__file__)).read_text()
    assert "# Protobuf Python Version: 5.26.1" in text
    assert "ValidateProtobufRuntimeVersion" not in text


@pytest.mark.parametrize(
    ("message", "record"),
    [(pb.Batch, schema.Batch), (pb.Span, schema.Span), (pb.Mark, schema.Mark),
     (pb.Snapshot, schema.Snapshot)],
)  # fmt: skip
def test_every_model_field_has_a_protobuf_field(message: Any, record: Any) -> None:
    fields = {field.name for field in message.DESCRIPTOR.fields}
    assert fields == {*record.__struct_fields__, "rest"}
