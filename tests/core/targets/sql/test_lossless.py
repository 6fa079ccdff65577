"""Every batch comes back from the tables as it went in, from both databases."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import cirron_otel.tools.cli
from cirron_otel import exactjson
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.errors import RefusedError
from cirron_otel.core.records.check import check_batch, check_value
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.exactjson import Raw
from tests.kit.generators import strategies
from tests.kit.spools import mutations
from tests.kit.spools.made import (
    made,
    mark,
    snapshot,
    span,
    span_id,
)
from tests.kit.spools.recorded import ALL_BATCHES

from .helpers import (
    assert_stored,
    clear,
    files,
    sealed,
)

OURS = sorted((Path(cirron_otel.tools.cli.__file__).parent / "recording" / "spool").glob("*.json"))

VECTORS = Path(__file__).parents[2] / "translator" / "vectors"

SHARED = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_recorded_batches(storage: Storage) -> None:
    batches = files({path.name: path for path in ALL_BATCHES}.values())
    written = storage.write(batches)
    assert written.new == len(batches)
    assert_stored(storage, batches)


def test_batches_of_this_package_come_back_byte_for_byte(storage: Storage) -> None:
    batches = files(OURS)
    assert batches
    storage.write(batches)
    assert dict(storage.batches()) == {batch.name: batch.data for batch in batches}


def test_the_vectors_of_the_mapping(storage: Storage) -> None:
    vectors = (exactjson.loads(path.read_bytes()) for path in sorted(VECTORS.glob("*.json")))
    found = [vector["batch"] for vector in vectors if check_value(vector.get("batch")) is None]
    batches = [sealed(batch, f"{number:020d}-v.json") for number, batch in enumerate(found)]
    assert len(batches) > 20
    storage.write(batches)
    assert_stored(storage, batches)


LONG = random.Random(5).randbytes(20_000).hex()
ODD: dict[str, dict[str, Any]] = {
    "a mark that is NaN": made(1, marks=[mark(1, 2, value=float("nan"))]),
    "-0.0": made(1, marks=[mark(1, 2, value=-0.0)], spans=[span(1, attrs={"z": -0.0})]),
    "0.0": made(1, marks=[mark(1, 2, value=0.0)]),
    "a float's int": made(1, marks=[mark(1, 2, value=3)]),
    "1e400": made(1, marks=[mark(1, 2, value=Raw("1e400"))]),
    "a big value": made(1, marks=[mark(1, 2, value_type="int", value=2**200)]),
    "big fields": made(1, spans=[span(1, index=2**40, cpu_ns=2**63, start_ns=-(2**63) - 1)]),
    "NUL": made(1, spans=[span(1, name="a\0b", attrs={"k\0": "v\0"})]),
    "surrogates": made(1, spans=[span(1, name="\ud800", attrs={"\udfff": "\ud83d"})]),
    "escapes": made(1, spans=[span(1, name='\\N\t\\.\n\r\b"', attrs={"\\": "\\u0000"})]),
    "twice the same id": made(1, spans=[span(1), span(1, name="x"), span(1)]),
    "records that are none": made(1, spans=[5, None, [], "x"], marks=[{}], snapshots=[{}]),
    "keys that nobody knows": made(1, new={"a": [1]}, spans=[span(1, new=1)]),
    "null fields": made(1, spans=[span(1, rank=None, pid=None, thread_id=None)]),
    "odd fields": made(1, spans=[span(1, name=5, index="a", start_ns=1.5, attrs=[], rank=-1)]),
    "a repeated key": made(1, spans=[span(1, attrs=Raw('{"a":1,"a":2}'))]),
    "no lists": {"schema_version": 1},
    "null lists": {"schema_version": 1, "sdk_version": None, "batch_id": 5, "created_ns": "x"},
    "long ids": made(
        1, spans=[span(1, id=LONG, parent_id=LONG[:5000])], marks=[mark(1, LONG, id=LONG[:999])],
        snapshots=[snapshot(1, 1, span_id=LONG[:7000])],
    ),
    "long names": made(1, spans=[span(1, name=LONG, attrs={LONG: LONG})]),
    "mark_ids": made(1, spans=[span(1, mark_ids=["x", "x"])], marks=[mark(1, 1)]),
    "a snapshot": made(1, snapshots=[snapshot(1, 1, blob_uri="file:///x/1/weights.safetensors")]),
    "odd snapshot": made(1, snapshots=[snapshot(1, 1, shape={"a": 1}, stats=float("inf"))]),
}  # fmt: skip


@pytest.mark.parametrize("batch", ODD.values(), ids=ODD)
def test_odd_batches(shared_storage: Storage, batch: Any) -> None:
    one = sealed(batch, "00000000000000000001-x.json")
    try:
        assert shared_storage.write([one]).new == 1
        assert_stored(shared_storage, [one])
    finally:
        clear(shared_storage)


@pytest.mark.parametrize("levels", [250, 300, 350, 450, 700, 900])
def test_deep_batches(shared_storage: Storage, levels: int) -> None:
    # What cannot be taken apart is kept as its bytes, blanks and all.
    attributes = '{"a":' * levels + "1" + "}" * levels
    text = exactjson.dumps_ascii(made(1, spans=[span(1), span(2, attrs={"ATTRS": 1})]))
    odd = SealedBatch("x.json", text.replace('{"ATTRS":1}', attributes).encode())
    try:
        shared_storage.write([odd])
        found = dict(shared_storage.batches())
        assert [data.replace(b" ", b"") for data in found.values()] == [odd.data]
    finally:
        clear(shared_storage)


def test_deep_nesting_is_stored_up_to_the_limit_of_the_format(storage: Storage) -> None:
    def nested(levels: int) -> SealedBatch:
        odd = b'{ "schema_version":1, "marks":[{"a":' + b"[" * levels + b"]" * levels + b"}]}"
        return SealedBatch("x.json", odd)

    with pytest.raises(RefusedError, match="nested too deep"):
        storage.write([nested(900)])
    storage.write([nested(500), sealed(made(1))])
    assert_stored(storage, [nested(500), sealed(made(1))])


def test_batch_stored_as_bytes_by_an_earlier_release_is_returned(storage: Storage) -> None:
    storage.write([sealed(made(1), "x.json")])
    for table in ("TraceSpan", "TraceMark", "TraceSnapshot"):
        storage.database.run(f'DELETE FROM "{table}"')
    storage.database.run('UPDATE "TraceBatch" SET "body" = ?', b'{ "any": 1 }')
    assert list(storage.batches()) == [("x.json", b'{ "any": 1 }')]


@pytest.mark.parametrize(
    "name",
    ["x.json", "ä.json", "\udcff\udcfe.json", "json:x.json", "a\nb\t.json", "n" * 246 + ".json"],
)
def test_file_names(shared_storage: Storage, name: str) -> None:
    one = sealed(made(1), name)
    try:
        shared_storage.write([one])
        assert shared_storage.write([one]).new == 0
        assert_stored(shared_storage, [one])
    finally:
        clear(shared_storage)


def round_trip(storage: Storage, batch: Any) -> None:
    one = SealedBatch("00000000000000000001-x.json", exactjson.dumps(batch))
    if check_batch(one.data) is not None:
        with pytest.raises(RefusedError, match="is not a batch"):
            storage.write([one])
        assert list(storage.batches()) == []
        return
    try:
        storage.write([one])
        assert_stored(storage, [one])
    finally:
        clear(storage)


@SHARED
@given(batch=mutations.batches())
def test_recorded_batches_that_were_changed(shared_storage: Storage, batch: Any) -> None:
    round_trip(shared_storage, batch)


@SHARED
@given(batch=strategies.batches)
def test_hostile_batches(shared_storage: Storage, batch: Any) -> None:
    round_trip(shared_storage, batch)


def test_the_order_of_names_is_the_order_of_reading(storage: Storage) -> None:
    numbers = list(range(300))
    random.Random(3).shuffle(numbers)
    storage.write([sealed(made(number, spans=[span(number)])) for number in numbers])
    found = [exactjson.loads(data)["spans"][0]["id"] for _, data in storage.batches()]
    assert found == [span_id(number) for number in range(300)]
