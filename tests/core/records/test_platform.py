"""The platform's records: all fields of the schemas page, and every batch back from them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from cirron_otel import exactjson
from cirron_otel.core.records.columns import PlatformRecords, TraceMark, TraceSnapshot, TraceSpan
from cirron_otel.core.translator.own.platform import PlatformContext, from_platform, to_platform
from cirron_otel.errors import InputError
from cirron_otel.exactjson import Raw
from tests.kit.examples import examples
from tests.kit.spools.made import (
    made,
    mark,
    snapshot,
    span,
    span_id,
)
from tests.kit.spools.mutations import batches, nested
from tests.kit.spools.recorded import ALL_BATCHES

# The schemas page, "Platform wire schemas": field, type, whether it may be null.
TABLES: dict[type[Any], dict[str, tuple[str, bool]]] = {
    TraceSpan: {
        "id": ("string", False), "traceId": ("string", False), "parentSpanId": ("string", True),
        "name": ("string", False), "index": ("int", True), "attrs": ("json", True),
        "startNs": ("bigint", False), "endNs": ("bigint", False), "cpuNs": ("bigint", True),
        "gpuNs": ("bigint", True), "memoryPeakBytes": ("bigint", True),
        "threadId": ("bigint", True), "rank": ("int", False), "workspaceId": ("string", False),
        "pipelineId": ("string", True), "runId": ("string", False),
        "deploymentId": ("string", True), "modelId": ("string", True),
    },
    TraceMark: {
        "id": ("string", False), "spanId": ("string", False), "name": ("string", False),
        "valueType": ("string", False), "valueFloat": ("float", True),
        "valueInt": ("bigint", True), "valueString": ("string", True),
        "valueBool": ("bool", True), "attrs": ("json", True), "tsNs": ("bigint", False),
        "kind": ("string", False),
    },
    TraceSnapshot: {
        "id": ("string", False), "spanId": ("string", False), "tensorName": ("string", False),
        "shape": ("json", False), "dtype": ("string", False), "mode": ("string", False),
        "stats": ("json", True), "blobUri": ("string", True),
    },
}  # fmt: skip


def rows_of(records: PlatformRecords) -> list[Any]:
    return [*records.spans, *records.marks, *records.snapshots]


def stored(record: Any) -> dict[str, Any]:
    """A record as its columns, through JSON text and back."""
    found: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(record), allow_nan=False))
    return found


def assert_fits(value: Any, kind: str, nullable: bool) -> None:
    """A column of that type can hold the value, in a database that checks."""
    if value is None:
        assert nullable
        return
    if kind in ("int", "bigint"):
        limit = 2**31 if kind == "int" else 2**63
        assert type(value) is int
        assert -limit <= value < limit
    elif kind == "float":
        assert type(value) is float
    elif kind == "bool":
        assert type(value) is bool
    elif kind == "string":
        assert "\0" not in value
        value.encode("utf-8")
    else:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        assert "\\u0000" not in text
        text.encode("utf-8")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_field_of_the_page_is_there(table: type[Any]) -> None:
    assert list(table.__struct_encode_fields__) == [*TABLES[table], "extra"]


@pytest.mark.parametrize("path", ALL_BATCHES, ids=lambda path: path.name)
def test_recorded_batches_come_back_equal(path: Path) -> None:
    batch = exactjson.loads(path.read_bytes())
    records = to_platform(batch)
    assert exactjson.equal(from_platform(records), batch)
    again = msgspec.json.decode(msgspec.json.encode(records), type=PlatformRecords)
    assert exactjson.equal(from_platform(again), batch)


def test_a_span() -> None:
    batch = made(1, spans=[span(2, 1, cpu_ns=5, attrs={"a": 1})])
    [row] = to_platform(batch, PlatformContext(pipeline_id="p", model_id="m")).spans
    start = batch["spans"][0]["start_ns"]
    assert stored(row) == {
        "id": span_id(2), "traceId": span_id(1), "parentSpanId": span_id(1), "name": "step",
        "index": 2, "attrs": {"a": 1}, "startNs": start, "endNs": start + 500, "cpuNs": 5,
        "gpuNs": None, "memoryPeakBytes": None, "threadId": 7, "rank": 0,
        "workspaceId": "default", "pipelineId": "p", "runId": span_id(1), "deploymentId": None,
        "modelId": "m", "extra": '{"set":{"pid":1}}',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value_type", "value", "column"),
    [("float", 0.5, "value_float"), ("int", 7, "value_int"), ("string", "x", "value_string"),
     ("bool", False, "value_bool")],
)  # fmt: skip
def test_a_mark_has_the_column_of_its_type(value_type: str, value: Any, column: str) -> None:
    batch = made(1, marks=[mark(1, 2, value_type=value_type, value=value)])
    [row] = to_platform(batch).marks
    columns = ("value_float", "value_int", "value_string", "value_bool")
    assert {name: getattr(row, name) for name in columns} == dict.fromkeys(columns) | {
        column: value
    }
    assert row.extra is None


@pytest.mark.parametrize(
    ("value_type", "value", "column", "expected"),
    [
        ("string", "é" * 200, "value_string", "é" * 128),
        ("string", "x" * 257, "value_string", "x" * 256),
        ("string", "a\0b\ud800", "value_string", "a\ufffdb\ufffd"),
        ("string", 5, "value_string", None),
        ("int", 2**63, "value_int", None),
        ("int", True, "value_int", None),
        ("float", 3, "value_float", 3.0),
        ("float", float("nan"), "value_float", None),
        ("float", Raw("1e400"), "value_float", None),
        ("bool", 1, "value_bool", None),
    ],
)
def test_a_value_that_its_column_cannot_hold(
    value_type: str, value: Any, column: str, expected: Any
) -> None:
    batch = made(1, marks=[mark(1, 2, value_type=value_type, value=value)])
    records = to_platform(batch)
    assert getattr(records.marks[0], column) == expected
    assert "value" in exactjson.loads(records.marks[0].extra or "")["set"]
    assert exactjson.equal(from_platform(records), batch)


def test_a_snapshot_and_its_uploaded_blob() -> None:
    recorded = snapshot(1, 2, mode="full", blob_uri="file:///x/snapshots/2/weights.safetensors")
    batch = made(1, snapshots=[recorded])
    plain = to_platform(batch).snapshots[0]
    assert plain.blob_uri == recorded["blob_uri"]
    assert plain.stats == recorded["stats"]
    context = PlatformContext(blob_uri=lambda record: f"s3://b/traces/w/r/{record['span_id']}/1.st")
    records = to_platform(batch, context)
    assert records.snapshots[0].blob_uri == f"s3://b/traces/w/r/{span_id(2)}/1.st"
    assert from_platform(records) == batch
    # Nothing is uploaded where there is nothing.
    assert to_platform(made(1, snapshots=[snapshot(1, 2)]), context).snapshots[0].blob_uri is None


class TestTraceIds:
    spans = (span(3, 2), span(2, 1), span(4, 3), span(5, 9), span(6))

    def ids(self, context: PlatformContext) -> list[tuple[str, str]]:
        records = to_platform(made(1, spans=list(self.spans)), context)
        return [(row.trace_id, row.run_id) for row in records.spans]

    def test_the_topmost_parent_by_default(self) -> None:
        tops = [1, 1, 1, 9, 6]
        assert self.ids(PlatformContext()) == [(span_id(top), span_id(top)) for top in tops]

    def test_a_mapping_or_a_function(self) -> None:
        given = {span_id(number): "session" for number in range(3, 6)}
        expected = [("session", "run")] * 1 + [(span_id(1), "run")] + [("session", "run")] * 2
        expected.append((span_id(6), "run"))
        assert self.ids(PlatformContext(run_id="run", trace_ids=given)) == expected
        function = PlatformContext(run_id="run", trace_ids=lambda record: given.get(record["id"]))
        assert self.ids(function) == expected

    def test_a_circle_of_parents_ends(self) -> None:
        records = to_platform(made(1, spans=[span(1, 2), span(2, 1), span(3, 3)]))
        assert all(row.trace_id for row in records.spans)


def test_mark_ids_are_known_by_the_marks() -> None:
    ids = [f"{number:032x}" for number in (1, 2)]
    marks = [mark(1, 5), mark(9, 6), mark(2, 5)]
    inside = to_platform(made(1, spans=[span(5, mark_ids=ids)], marks=marks))
    assert inside.spans[0].extra == '{"set":{"pid":1}}'
    for order in (ids[::-1], ids[:1], [*ids, ids[0]], []):
        batch = made(1, spans=[span(5, mark_ids=order)], marks=marks)
        assert from_platform(to_platform(batch)) == batch


@pytest.mark.parametrize(
    "batch",
    [{}, [], None, 5, Raw('{"a":1,"a":2}'), {"spans": None, "marks": [5, None, []]},
     made(1, spans=[span(1, rank=None, pid=None)]), made(1, spans=[{}], extra="x"),
     made(1, marks=[mark(1, "root", value=None, value_nonfinite="inf")])],
    ids=lambda batch: repr(batch)[:30],
)  # fmt: skip
def test_odd_shapes_come_back_equal(batch: Any) -> None:
    assert exactjson.equal(from_platform(to_platform(batch)), batch)


@settings(max_examples=examples(1500), deadline=None)
@given(batches())
def test_mutated_batches_come_back_equal(batch: Any) -> None:
    before = exactjson.dumps(batch)
    records = to_platform(batch)
    assert exactjson.dumps(batch) == before
    assert exactjson.equal(from_platform(records), batch)
    for row in rows_of(records):
        columns = stored(row)
        for name, (kind, nullable) in TABLES[type(row)].items():
            assert_fits(columns[name], kind, nullable)
        (columns["extra"] or "").encode("ascii")
    again = msgspec.convert(
        json.loads(json.dumps(msgspec.to_builtins(records), allow_nan=False)), PlatformRecords
    )
    assert exactjson.equal(from_platform(again), batch)


@settings(max_examples=examples(200), deadline=None)
@given(batches())
def test_batches_round_trip_through_a_database(batch: Any) -> None:
    records = to_platform(batch)
    for name, table in (("spans", TraceSpan), ("marks", TraceMark), ("snapshots", TraceSnapshot)):
        rows = [msgspec.to_builtins(row) for row in getattr(records, name)]
        found = through_sqlite(rows, [*TABLES[table], "extra"], TABLES[table])
        setattr(records, name, [msgspec.convert(row, table) for row in found])
    assert exactjson.equal(from_platform(records), batch)


def through_sqlite(
    rows: list[dict[str, Any]], columns: list[str], kinds: dict[str, tuple[str, bool]]
) -> list[dict[str, Any]]:
    """The rows as a real database gives them back."""
    json_columns = {name for name, (kind, _) in kinds.items() if kind == "json"}
    booleans = {name for name, (kind, _) in kinds.items() if kind == "bool"}
    database = sqlite3.connect(":memory:")
    names = ", ".join(f'"{name}"' for name in columns)
    database.execute(f"CREATE TABLE t ({names})")
    for row in rows:
        values = [json.dumps(row[n]) if n in json_columns else row[n] for n in columns]
        database.execute(f"INSERT INTO t VALUES ({', '.join('?' * len(columns))})", values)
    found = []
    for values in database.execute("SELECT * FROM t ORDER BY rowid"):
        row = dict(zip(columns, values, strict=True))
        for name in json_columns:
            row[name] = json.loads(row[name])
        for name in booleans:
            row[name] = None if row[name] is None else bool(row[name])
        found.append(row)
    database.close()
    return found


@pytest.mark.parametrize("extra", ["x", "[]", '{"set":1}', '{"what":{}}'])
def test_invalid_extra_is_an_input_error(extra: str) -> None:
    records = to_platform(made(1, spans=[span(1)]))
    records.spans[0].extra = extra
    with pytest.raises(InputError):
        from_platform(records)


def test_excessive_nesting_is_an_input_error() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        to_platform(made(1, spans=[span(1, attrs={"deep": nested(20_000)})]))
