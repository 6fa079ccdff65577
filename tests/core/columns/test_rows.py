"""Every batch comes back from its rows, without a file between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from cirron_otel import exactjson
from cirron_otel.core.columns import batch_rows
from cirron_otel.core.columns.batch_rows import BatchRows, batch_of, key_of, rows_of
from cirron_otel.core.columns.packed import arrow_rows
from cirron_otel.core.columns.schema import BATCHES, RECORD_TABLES, TABLES
from cirron_otel.core.records.check import check_batch
from cirron_otel.core.translator.typed import NotCanonicalError
from cirron_otel.errors import InputError
from tests.core.targets.sql.test_lossless import ODD, OURS
from tests.kit.examples import examples
from tests.kit.generators import strategies
from tests.kit.spools import mutations
from tests.kit.spools.made import (
    encoded,
    made,
    mark,
    snapshot,
    span,
)
from tests.kit.spools.recorded import ALL_BATCHES

NAME = "00000000000000000001-x.json"
MANY = settings(max_examples=examples(400), deadline=None)


def rows(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The rows of columns."""
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def restored(found: BatchRows) -> tuple[str, bytes]:
    for name, columns in TABLES.items():
        assert set(found.tables[name]) == {column.name for column in columns}
        assert len({len(values) for values in found.tables[name].values()}) == 1
    [header] = rows(found.tables[BATCHES])
    return batch_of(header, {table: rows(found.tables[table]) for table in RECORD_TABLES})


def round_trip(data: bytes) -> bytes:
    rows_of_batch = rows_of(NAME, data)
    arrow_rows(rows_of_batch)  # each value has the type of its column
    name, back = restored(rows_of_batch)
    assert name == NAME
    assert exactjson.equal(exactjson.loads(back), exactjson.loads(data))
    return back


def hostile(batch: Any) -> None:
    data = exactjson.dumps(batch)
    if check_batch(data) is None:
        round_trip(data)
    else:
        with pytest.raises(InputError):
            rows_of(NAME, data)


@MANY
@given(batch=strategies.batches)
def test_hostile_batches(batch: Any) -> None:
    hostile(batch)


@MANY
@given(batch=strategies.crowded_batches())
def test_marks_of_many_spans(batch: Any) -> None:
    hostile(batch)


@MANY
@given(batch=mutations.batches())
def test_recorded_batches_that_were_changed(batch: Any) -> None:
    hostile(batch)


@pytest.mark.parametrize("batch", ODD.values(), ids=ODD)
def test_odd_batches(batch: Any) -> None:
    hostile(batch)


def test_recordings() -> None:
    assert ALL_BATCHES
    for path in ALL_BATCHES:
        round_trip(path.read_bytes())


def test_batches_of_this_package_come_back_byte_for_byte() -> None:
    assert OURS
    for path in OURS:
        data = path.read_bytes()
        assert round_trip(data) == data


def test_both_paths_give_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact path is the oracle of the fast one, except for the spelling of JSON text."""
    for path in (*OURS, *ALL_BATCHES):
        data = path.read_bytes()
        fast = rows_of(path.name, data)
        with monkeypatch.context() as patched:
            patched.setattr(batch_rows, "fast_rows", _refuse)
            slow = rows_of(path.name, data)
        assert plain(fast) == plain(slow)


def _refuse(_data: bytes) -> Any:
    raise NotCanonicalError


def plain(found: BatchRows) -> Any:
    texts = {"otel", "stats", "extra"}
    tables = {
        name: [
            {
                k: exactjson.loads(v) if k in texts and v is not None else v
                for k, v in sorted(row.items())
            }
            for row in rows(table)
        ]
        for name, table in sorted(found.tables.items())
    }
    return repr((found._replace(tables={}), tables))


def test_plain_records_have_no_difference() -> None:
    batch = made(
        1,
        spans=[span(1, attrs={"mode": "train", "n": 5, "nested": [1, {"a": None}], "z": None})],
        marks=[
            mark(1, 1), mark(2, 1, value=float("nan")), mark(3, 1, value=3, value_type="int"),
            mark(4, 1, value="x", value_type="string"), mark(5, 1, value=True, value_type="bool"),
            mark(6, 1, value=None, value_nonfinite="-inf"),
        ],
        snapshots=[snapshot(1, 1)],
    )  # fmt: skip
    batch["spans"][0]["mark_ids"] = [each["id"] for each in batch["marks"]]
    found = rows_of(NAME, exactjson.dumps(batch))
    for table in RECORD_TABLES:
        assert found.tables[table]["extra"] == [None] * len(found.tables[table]["id"])
    assert found.tables["spans"]["mark_ids"] == [None]
    assert str(found.tables["marks"]["value_float"]) == "[0.5, nan, None, None, None, -inf]"


@pytest.mark.parametrize("value", [None, 1])
@pytest.mark.parametrize("nonfinite", ["nan", "-inf", "other"])
@pytest.mark.parametrize("value_type", ["float", "int", "string", "bool", "odd"])
def test_a_nonfinite_value_of_any_type(value_type: str, nonfinite: str, value: Any) -> None:
    odd_mark = mark(1, 1, value=value, value_type=value_type, value_nonfinite=nonfinite)
    round_trip(encoded(made(1, marks=[odd_mark])))


@pytest.mark.parametrize("levels", [250, 450, 508, 509, 510, 511, 512, 600])
@pytest.mark.parametrize(
    "place",
    ["attrs", "otel", "batch otel", "unknown key", "stats", "unknown key of a record"],
)
def test_nesting_up_to_the_limit_of_the_format(place: str, levels: int) -> None:
    marker = {"MARKER": 1}
    changes: dict[str, Any] = {
        "attrs": {"spans": [span(1, attrs={"a": marker})]},
        "otel": {"spans": [span(1, otel={"a": marker})]},
        "batch otel": {"otel": {"a": marker}},
        "unknown key": {"new": {"a": marker}},
        "stats": {"snapshots": [snapshot(1, 1, stats={"a": marker})]},
        "unknown key of a record": {"marks": [mark(1, 1, new={"a": marker})]},
    }[place]
    text = exactjson.dumps_ascii(made(1, **changes))
    data = text.replace('{"MARKER":1}', "[" * levels + "]" * levels).encode()
    try:
        exactjson.loads(data)
    except InputError:
        with pytest.raises(InputError, match="nested too deep"):
            rows_of(NAME, data)
        return
    round_trip(data)


def test_the_key_depends_on_name_and_content() -> None:
    keys = {key_of("a.json", b"x"), key_of("a.json", b"y"), key_of("b.json", b"x")}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == 3
