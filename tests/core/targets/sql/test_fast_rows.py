"""The fast way makes the rows that the exact way makes, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cirron_otel.tools.cli
from cirron_otel import exactjson
from cirron_otel.core.records.canonical import batch_bytes
from cirron_otel.core.records.columns import PlatformRecords
from cirron_otel.core.targets.sql.fast_rows import fast_rows
from cirron_otel.core.targets.sql.rows import COLUMNS, MARK, SNAPSHOT, SPAN, rows_of
from cirron_otel.core.translator.own.platform import from_platform, to_platform
from cirron_otel.core.translator.typed import NotCanonicalError
from cirron_otel.errors import InputError
from tests.kit.examples import examples
from tests.kit.generators import strategies
from tests.kit.spools import mutations
from tests.kit.spools.made import (
    made,
    mark,
    snapshot,
    span,
)
from tests.kit.spools.recorded import ALL_BATCHES, batch_files

OURS = sorted((Path(cirron_otel.tools.cli.__file__).parent / "recording" / "spool").glob("*.json"))
PLAIN = [path for name in ("01_torch_basic", "07_ranks") for path in batch_files(name)]
OWNER = ("workspace_id", "pipeline_id", "run_id", "deployment_id", "model_id")


def comparable(records: PlatformRecords) -> list[Any]:
    """The rows as they are stored, JSON as values, but for whose they are."""
    found: list[Any] = [msgspec.to_builtins(records.batch)]
    for row in records.spans:
        for name in OWNER:
            setattr(row, name, None)
    for kind, rows in ((SPAN, records.spans), (MARK, records.marks), (SNAPSHOT, records.snapshots)):
        found += [dict(zip(COLUMNS[kind], row, strict=True)) for row in rows_of(kind, 1, rows)]
    for columns in found:
        for name in ("extra", "attrs", "stats", "shape"):
            if isinstance(columns.get(name), str):
                columns[name] = exactjson.loads(columns[name])
    return found


def is_fast(data: bytes) -> bool:
    """Whether the fast way takes a batch; then it has to say the same."""
    try:
        records, value = fast_rows(data)
    except NotCanonicalError:
        return False
    batch = exactjson.loads(data)
    assert exactjson.equal(comparable(records), comparable(to_platform(batch)))
    assert exactjson.equal(value.get("otel"), batch.get("otel"))
    assert [one["pid"] for one in value["spans"]] == [one["pid"] for one in batch["spans"]]
    for row in (*records.spans, *records.marks, *records.snapshots):
        for name in ("attrs", "stats", "shape"):
            if isinstance(each := getattr(row, name, None), msgspec.Raw):
                setattr(row, name, msgspec.json.decode(each))
    assert exactjson.equal(from_platform(records), batch)
    return True


@pytest.mark.parametrize("path", [*PLAIN, *OURS], ids=lambda path: path.name)
def test_recorded_batches_take_the_fast_path(path: Path) -> None:
    assert is_fast(path.read_bytes())


def test_most_recordings_do() -> None:
    found = [is_fast(path.read_bytes()) for path in ALL_BATCHES]
    assert sum(found) > len(found) / 2


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (made(1), True),
        (made(1, spans=[span(1, otel={"é": 1e16})]), True),
        (made(1, spans=[span(1, mark_ids=["é", 'a"b'])]), True),
        (made(1, spans=[span(1, pid=None), span(1, 1), span(2, 1), span(1, 2)]), True),
        (made(1, snapshots=[snapshot(1, 1, attrs={"a": [1]}, stats=None)]), True),
        (made(1, marks=[mark(1, 1, value_type="string", value="é" * 64)]), True),
        (made(1, marks=[mark(1, 1, value=5e-324)]), True),
        (made(1, marks=[mark(1, 1, value=exactjson.Raw("1e-05"))]), True),
        (made(1, spans=[span(1, attrs={"a": exactjson.Raw("1e-05")})]), True),
        (made(1, spans=[span(1, attrs={"a": exactjson.Raw("NaN")})]), False),
        (made(1, marks=[mark(1, 1, value_type="string", value="é" * 65)]), False),
        (made(1, marks=[mark(1, 1, value=-0.0)]), False),
        (made(1, marks=[mark(1, 1, value=1)]), False),
        (made(1, marks=[mark(1, 1, value_type="int", value=2**63)]), False),
        (made(1, marks=[mark(1, 1, value=None, value_nonfinite="nan")]), False),
        (made(1, spans=[span(1, name="\x1b")]), False),
        (made(1, spans=[span(1, id="x" * 51)]), False),
        (made(1, spans=[span(1, index=2**31)]), False),
        (made(1, spans=[span(1, rank=None)]), False),
        (made(1, spans=[span(1, thread_id=2**63)]), False),
        (made(1, spans=[span(1, attrs={"a": 2**64})]), False),
        (made(1, spans=[span(1, attrs=exactjson.Raw('{"a":1,"a":2}'))]), False),
        (made(1, spans=[span(1, attrs=exactjson.Raw('{"a":1e400}'))]), False),
        (made(1, spans=[span(1, attrs=exactjson.Raw('{"a":0.10}'))]), False),
    ],
)
def test_fast_path_is_taken_only_for_supported_batches(batch: Any, expected: bool) -> None:
    text = exactjson.dumps_ascii(batch)
    data = exactjson.dumps(batch) if "Raw" in repr(batch) else batch_bytes(exactjson.loads(text))
    assert is_fast(data) is expected


@settings(max_examples=examples(400), deadline=None)
@given(
    batch=mutations.batches() | strategies.plain_batches | strategies.named_batches
    | st.sampled_from(mutations.RECORDED)
)  # fmt: skip
def test_any_batch(batch: Any) -> None:
    try:
        data = batch_bytes(batch) if isinstance(batch, dict) else exactjson.dumps(batch)
    except InputError:
        return
    is_fast(data)


def test_circles_of_parents() -> None:
    circle = [span(n, n % 3 + 1) for n in (1, 2, 3)]
    tail = [span(4, 1), span(5, 4), span(6, 6), span(7, 3)]
    for spans in ([*circle, *tail], [*tail, *circle], [*tail[::-1], *circle[::-1]]):
        assert is_fast(batch_bytes(made(1, spans=spans)))
