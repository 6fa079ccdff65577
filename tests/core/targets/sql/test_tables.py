"""The tables are those of the schemas page; writing is idempotent, and all or nothing."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.errors import RefusedError
from cirron_otel.core.targets.sql.ownership import OwnerContext
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.store import Select
from cirron_otel.errors import TargetError, UsageError
from tests.core.records.test_platform import TABLES
from tests.kit.spools.made import (
    EPOCH_NS,
    made,
    mark,
    snapshot,
    span,
    span_id,
)

from .helpers import (
    OLD_NS,
    assert_stored,
    column,
    old,
    sealed,
    stored,
)

OWN = {"batchKey", "ordinal", "extra"}
INDEXES = {
    "TraceSpan": {
        ("workspaceId", "runId", "startNs"), ("workspaceId", "pipelineId", "startNs"),
        ("workspaceId", "deploymentId", "startNs"), ("traceId", "parentSpanId"), ("id",),
        ("batchKey", "ordinal"),
    },
    "TraceMark": {("id",), ("spanId",), ("batchKey", "ordinal")},
    "TraceSnapshot": {("id",), ("spanId",), ("batchKey", "ordinal")},
}  # fmt: skip
SQL_TYPES = {
    "string": "text", "int": "integer", "bigint": "bigint", "json": "json",
    "float": "double precision", "bool": "boolean",
}  # fmt: skip
SQLITE_TYPES = {
    "text": "TEXT", "integer": "INTEGER", "bigint": "INTEGER", "json": "TEXT",
    "double precision": "REAL", "boolean": "BOOLEAN",
}  # fmt: skip


def columns_of(storage: Storage, table: str) -> dict[str, tuple[str, bool]]:
    """(type, whether it may be null) of each column, in order."""
    if storage.database.dialect == "sqlite":
        rows = storage.database.rows(f'PRAGMA table_info("{table}")')
        return {row[1]: (row[2], not row[3]) for row in rows}
    rows = storage.database.rows(
        "SELECT column_name, data_type, is_nullable FROM information_schema.columns"
        " WHERE table_name = ? ORDER BY ordinal_position",
        table,
    )
    return {name: (kind, nullable == "YES") for name, kind, nullable in rows}


def indexes_of(storage: Storage, table: str) -> set[tuple[str, ...]]:
    if storage.database.dialect == "sqlite":
        names = [row[1] for row in storage.database.rows(f'PRAGMA index_list("{table}")')]
        return {
            tuple(row[2] for row in storage.database.rows(f'PRAGMA index_info("{name}")'))
            for name in names
        }
    rows = storage.database.rows(
        "SELECT i.indexrelid, a.attname FROM pg_index i"
        " JOIN pg_attribute a ON a.attrelid = i.indexrelid"
        " WHERE i.indrelid = ?::regclass ORDER BY i.indexrelid, a.attnum",
        f'"{table}"',
    )
    found: dict[int, list[str]] = {}
    for index, name in rows:
        found.setdefault(index, []).append(name)
    return set(map(tuple, found.values()))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_tables_and_indexes_match_the_schemas_page(storage: Storage, table: type[Any]) -> None:
    name = table.__name__
    found = columns_of(storage, name)
    page = {key: value for key, value in found.items() if key not in OWN}
    expected = {
        column: (SQL_TYPES[kind], nullable) for column, (kind, nullable) in TABLES[table].items()
    }
    if storage.database.dialect == "sqlite":
        expected = {key: (SQLITE_TYPES[kind], null) for key, (kind, null) in expected.items()}
    assert page == expected
    assert list(page) == list(expected)
    assert set(found) - set(page) == OWN
    assert indexes_of(storage, name) == INDEXES[name]


def test_a_span_in_its_columns(storage: Storage) -> None:
    attributes = {
        "cirron.workspace.id": "w", "cirron.run.id": "r", "cirron.pipeline.id": "p",
        "cirron.deployment.id": "d", "cirron.model.id": "m", "service.name": "s",
    }  # fmt: skip
    otel = {"resource": {"attributes": attributes}}
    batch = made(1, spans=[span(2, 1, cpu_ns=5, attrs={"a": 1.0})], otel=otel)
    storage.write([sealed(batch)])
    names = [*TABLES_OF["TraceSpan"], "extra"]
    quoted = ", ".join(f'"{name}"' for name in names)
    [row] = storage.database.rows(f'SELECT {quoted} FROM "TraceSpan"')
    found = dict(zip(names, row, strict=True))
    if isinstance(found["attrs"], str):
        found["attrs"] = exactjson.loads(found["attrs"])
    start = EPOCH_NS + 2000
    assert found == {
        "id": span_id(2), "traceId": span_id(1), "parentSpanId": span_id(1), "name": "step",
        "index": 2, "attrs": {"a": 1.0}, "startNs": start, "endNs": start + 500, "cpuNs": 5,
        "gpuNs": None, "memoryPeakBytes": None, "threadId": 7, "rank": 0, "workspaceId": "w",
        "pipelineId": "p", "runId": "r", "deploymentId": "d", "modelId": "m",
        "extra": '{"set":{"pid":1}}',
    }  # fmt: skip


TABLES_OF = {table.__name__: list(fields) for table, fields in TABLES.items()}


def owners(storage: Storage) -> list[tuple[Any, ...]]:
    return storage.database.rows(
        'SELECT "workspaceId", "runId", "modelId" FROM "TraceSpan" ORDER BY "batchKey", "ordinal"'
    )


def test_owner_of_each_span_comes_from_its_resource(storage: Storage) -> None:
    def resource(**said: Any) -> dict[str, Any]:
        return {"attributes": {f"cirron.{key}.id": value for key, value in said.items()}}

    mixed = {
        "otel": {
            "resource_spans": [
                {"resource": resource(run="a"), "scope_spans": [{"spans": 1}, {"spans": 1}]},
                {"scope_spans": [{}]},
                {"resource": resource(workspace="w", run=5), "scope_spans": [{"spans": 1}]},
            ]
        }
    }
    batch = sealed(made(1, spans=[span(1), span(2), span(3), span(4)], **mixed))
    storage.write([batch], OwnerContext(defaults={"cirron.model.id": "m", "cirron.run.id": "d"}))
    assert owners(storage) == [
        ("default", "a", "m"), ("default", "a", "m"), ("w", "5", "m"), ("default", "d", "m"),
    ]  # fmt: skip
    assert_stored(storage, [batch])


def test_overrides_win_over_ids_in_a_batch(storage: Storage) -> None:
    said = {"resource": {"attributes": {"cirron.workspace.id": "theirs"}}}
    context = OwnerContext(
        defaults={"cirron.workspace.id": "x"}, overrides={"cirron.workspace.id": "mine"}
    )
    storage.write([sealed(made(1, spans=[span(1)], otel=said))], context)
    assert owners(storage) == [("mine", span_id(1), None)]


def test_a_context_with_another_key_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"'workspace'.*cirron\.workspace\.id"):
        OwnerContext(defaults={"workspace": "x"})


def test_blobs_get_a_new_uri_and_the_recorded_one_is_preserved(storage: Storage) -> None:
    taken = snapshot(1, 2, mode="full", blob_uri="file:///x/2/weights.safetensors")
    batch = sealed(made(1, spans=[span(2, 1)], snapshots=[taken, snapshot(2, 2)]))

    def uri(record: Any, workspace_id: str, run_id: str) -> str:
        return f"s3://b/traces/{workspace_id}/{run_id}/{record['span_id']}/{record['id']}.st"

    plain = sealed(made(2, spans=[span(3, 1)]))
    storage.write([batch, plain], OwnerContext(blob_uri=uri))
    found = column(storage, 'SELECT "blobUri" FROM "TraceSnapshot" ORDER BY "ordinal"')
    assert found == [
        f"s3://b/traces/default/{span_id(1)}/{span_id(2)}/{1:032x}.st", None,
    ]  # fmt: skip
    assert_stored(storage, [batch, plain])


class TestTwice:
    batch = sealed(made(1, spans=[span(1, mark_ids=[f"{7:032x}"])], marks=[mark(7, 1)]))

    def count(self, storage: Storage) -> list[int]:
        tables = ("TraceBatch", "TraceSpan", "TraceMark")
        return [column(storage, f'SELECT COUNT(*) FROM "{table}"')[0] for table in tables]

    def test_the_same_batch_changes_nothing(self, storage: Storage) -> None:
        assert storage.write([self.batch]) == (1, 0, 2)
        assert storage.write([self.batch, self.batch]) == (0, 2, 0)
        assert self.count(storage) == [1, 1, 1]

    def test_the_same_batch_twice_in_one_call(self, storage: Storage) -> None:
        assert storage.write([self.batch, self.batch]) == (1, 1, 2)
        assert self.count(storage) == [1, 1, 1]

    def test_the_same_values_in_other_bytes_are_the_same_batch(self, storage: Storage) -> None:
        storage.write([self.batch])
        other = SealedBatch(self.batch.name, self.batch.data.replace(b":", b": "))
        assert storage.write([other]) == (0, 1, 0)

    def test_other_content_of_the_same_name_is_stored_separately(self, storage: Storage) -> None:
        other = sealed(made(1, spans=[span(1, name="other")]), self.batch.name)
        assert storage.write([self.batch, other]).new == 2
        assert storage.write([other, self.batch]).new == 0
        assert sorted(len(value["marks"]) for _, value in stored(storage)) == [0, 1]
        assert [name for name, _ in stored(storage)] == [self.batch.name] * 2

    def test_after_it_was_removed_it_is_new(self, storage: Storage) -> None:
        storage.write([self.batch])
        storage.retain(EPOCH_NS * 2)
        assert storage.write([self.batch]).new == 1


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"schema_version":2}', b'{"schema_version":1,"spans":5}', b"\xff"]
)
def test_invalid_batch_is_refused_and_nothing_is_stored(storage: Storage, data: bytes) -> None:
    with pytest.raises(RefusedError, match=r"'x\.json' is not a batch"):
        storage.write([sealed(made(1)), SealedBatch("x.json", data)])
    assert stored(storage) == []


@pytest.mark.parametrize("name", ["../x.json", "x", "a\0.json", "n" * 300 + ".json"])
def test_a_name_that_no_file_could_have_is_refused(storage: Storage, name: str) -> None:
    with pytest.raises(TargetError):
        storage.write([sealed(made(1), name)])
    assert stored(storage) == []


def test_batch_refused_by_the_database_leaves_no_rows(storage: Storage) -> None:
    if storage.database.dialect == "sqlite":
        storage.database.script(
            'CREATE TRIGGER "no" BEFORE INSERT ON "TraceMark" WHEN NEW."name" = \'no\''
            " BEGIN SELECT RAISE(ABORT, 'not that'); END;"
        )
    else:
        storage.database.run("""ALTER TABLE "TraceMark" ADD CHECK ("name" <> 'no')""")
    with pytest.raises(RefusedError, match="does not accept the data"):
        storage.write([sealed(made(1, spans=[span(1)], marks=[mark(1, 1), mark(2, 1, name="no")]))])
    assert stored(storage) == []
    assert column(storage, 'SELECT COUNT(*) FROM "TraceSpan"') == [0]
    assert storage.write([sealed(made(2, marks=[mark(1, 1)]))]).new == 1


class TestSelect:
    @pytest.fixture
    def storage(self, storage: Storage) -> Storage:
        run = {"otel": {"resource": {"attributes": {"cirron.run.id": "r"}}}}
        storage.write([sealed(made(1, spans=[span(2, 1)]))])
        storage.write([sealed(made(2, marks=[mark(1, 2), mark(2, 1)]))])
        storage.write([sealed(made(3, snapshots=[snapshot(1, 1)]))])
        storage.write([sealed(made(4, spans=[span(9)], **run))])
        storage.write([sealed(made(5, marks=[mark(1, "root")], **run))])
        return storage

    @pytest.mark.parametrize(
        ("select", "numbers"),
        [
            (Select(), [1, 2, 3, 4, 5]),
            (Select(run_id=span_id(1)), [1, 2, 3]),
            (Select(run_id="r"), [4, 5]),
            (Select(run_id="none"), []),
            (Select(workspace_id="default"), [1, 2, 3, 4, 5]),
            (Select(workspace_id="w"), []),
            (Select(since_ns=EPOCH_NS + 2 * 10**9, until_ns=EPOCH_NS + 4 * 10**9), [2, 3]),
            (Select(run_id="r", since_ns=EPOCH_NS + 5 * 10**9), [5]),
            (Select(name=sealed(made(3)).name), [3]),
        ],
    )
    def test_batches(self, storage: Storage, select: Select, numbers: list[int]) -> None:
        names = [name for name, _ in storage.batches(select)]
        assert names == [sealed(made(number)).name for number in numbers]


def test_reading_goes_on_while_others_write_and_remove(storage: Storage) -> None:
    storage.write([sealed(old(number, spans=[span(number)])) for number in range(200)])
    reading = storage.batches()
    first = next(reading)
    storage.write([sealed(made(500))])
    storage.retain(OLD_NS + 300 * 10**9)
    assert [name for name, _ in (first, *reading)] == [sealed(old(n)).name for n in range(200)]
    assert len(stored(storage)) == 1


def test_new_file_is_private_and_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "dir" / "s.sqlite"
    with Storage.open(f"sqlite:///{path}") as storage:
        storage.write([sealed(made(1))])
        assert column(storage, "PRAGMA journal_mode") == ["wal"]
        assert column(storage, "PRAGMA synchronous") == [2]
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
