"""Databases of earlier versions are brought up to date, with what they hold."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from cirron_otel.core.delivery.errors import MisconfiguredError, UnreachableError
from cirron_otel.core.targets.sql.database import Database, current, migrate, steps, version_of
from cirron_otel.core.targets.sql.storage import Storage, connect
from cirron_otel.core.targets.sql.target import StorageTarget
from cirron_otel.core.targets.sql.url import parse_url
from cirron_otel.errors import InputError
from tests.kit.spools.deliveries import until
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
    column,
    files,
    sealed,
)

VIEWS = (
    "TraceRun", "TraceStep", "TraceStepByRank", "TraceSlowestStep", "TracePhaseByRank",
    "TraceMarkSeries",
)  # fmt: skip


def of_version_1(url: str) -> Database:
    """A database as version 1 made it: the tables, and nothing that came later."""
    database = connect(parse_url(url), create=True)
    assert migrate(database, to=1) == 0
    assert version_of(database) == 1
    return database


def fill_as_version_1(database: Database) -> None:
    """One batch, written by hand into the columns of version 1."""
    database.run(
        'INSERT INTO "TraceBatch" ("name", "hash", "schemaVersion", "sdkVersion", "batchId",'
        ' "createdNs", "storedNs", "workspaceId") VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
        *("x.json", b"h" * 32, 1, "0.3.0", "1" * 32, 5, 6, "default"),
    )
    [key] = [row[0] for row in database.rows('SELECT "batchKey" FROM "TraceBatch"')]
    database.run(
        'INSERT INTO "TraceSpan" ("batchKey", "ordinal", "id", "traceId", "parentSpanId", "name",'
        ' "attrs", "startNs", "endNs", "rank", "workspaceId", "runId", "extra")'
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(key, 0, span_id(3), span_id(2), span_id(2), "step", '{"a":1}', 10, 20, 0),
        *("default", span_id(2), '{"set":{"pid":9}}'),
    )


def test_every_step_is_there_for_both() -> None:
    assert list(steps("sqlite")) == list(steps("postgresql"))
    assert list(steps("sqlite")) == list(range(1, current("sqlite") + 1))


def test_version_1_with_rows_becomes_the_current_one(url: str) -> None:
    database = of_version_1(url)
    fill_as_version_1(database)
    assert not database.has_table("TraceUnresolved")
    database.close()
    with Storage.open(url) as storage:
        assert version_of(storage.database) == current(storage.database.dialect)
        [(name, data)] = storage.batches()
        assert name == "x.json"
        assert b'"attrs":{"a":1}' in data
        assert b'"pid":9' in data
        # What was waited for before the step that notes it is found all the same.
        assert column(storage, 'SELECT "id" FROM "TraceUnresolved"') == [span_id(2)]
        storage.write([sealed(made(2, spans=[span(2, 1)]))])
        assert set(column(storage, 'SELECT "traceId" FROM "TraceSpan"')) == {span_id(1)}
        assert set(column(storage, 'SELECT "runId" FROM "TraceSpan"')) == {span_id(1)}
        assert column(storage, 'SELECT "steps" FROM "TraceRun"') == [2]


def test_database_migrated_step_by_step_stores_current_batches(url: str) -> None:
    of_version_1(url).close()
    batches = files(ALL_BATCHES[:20])
    for version in range(1, current("sqlite") + 1):
        database = connect(parse_url(url), create=True)
        migrate(database, to=version)
        assert version_of(database) == version
        for view in VIEWS:
            if version == current("sqlite"):
                database.rows(f'SELECT * FROM "{view}"')
        database.close()
    with Storage.open(url) as storage:
        storage.write(batches)
        assert_stored(storage, batches)
        assert storage.migrate() == current("sqlite")


@pytest.mark.parametrize("version", [0, 1])
def test_several_that_migrate_at_once(version: int, url: str) -> None:
    if version:
        of_version_1(url).close()
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with Storage.open(url) as storage:
                storage.write([sealed(made(number, spans=[span(number)], marks=[mark(1, 2)]))])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Storage.open(url) as storage:
        versions = column(storage, 'SELECT "version" FROM "TraceStorage" ORDER BY "version"')
        assert versions == list(steps(storage.database.dialect))
        assert column(storage, 'SELECT COUNT(*) FROM "TraceBatch"') == [6]


def test_a_writer_waits_for_the_one_that_makes_the_tables(postgres_url: str) -> None:
    """The second writer finds an empty database, and then waits for the first one's lock."""
    first, second = (connect(parse_url(postgres_url), create=True) for _ in range(2))
    watcher = connect(parse_url(postgres_url), create=True)
    found: list[object] = []

    def run() -> None:
        try:
            found.append(migrate(second))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    with first.transaction():
        first.exclude_writers()
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: watcher.rows(waiting))
        assert migrate(first) == 0
    thread.join()
    assert found == [current("postgresql")]
    for database in (first, second, watcher):
        database.close()


def test_a_name_that_is_taken_refuses_no_batch(postgres_url: str) -> None:
    """Neither a duplicate object nor a duplicate key of a step is a batch's fault, or a login's."""
    target = StorageTarget(postgres_url)
    for statement, undo in (
        ('CREATE TYPE "TraceStorage" AS ENUM ()', 'DROP TYPE "TraceStorage"'),
        ('CREATE TABLE "TraceMark" (x int)', 'DROP TABLE "TraceMark"'),
        ('CREATE VIEW "TraceStorage" AS SELECT 1', 'DROP VIEW "TraceStorage"'),
    ):
        database = connect(parse_url(postgres_url), create=True)
        database.run(statement)
        with pytest.raises(UnreachableError) as caught:
            target.send([sealed(made(1))])
        assert not isinstance(caught.value, MisconfiguredError)
        assert "check the user" not in str(caught.value)
        database.run(undo)
        database.close()
    target.send([sealed(made(1))])
    target.close()
    with Storage.open(postgres_url) as storage:
        assert column(storage, 'SELECT COUNT(*) FROM "TraceBatch"') == [1]


def test_tables_that_another_program_changed(postgres_url: str) -> None:
    with Storage.open(postgres_url) as storage:
        storage.database.run('ALTER TABLE "TraceBatch" RENAME "sdkVersion" TO "x"')
        with pytest.raises(MisconfiguredError, match="no other program changed the tables"):
            storage.write([sealed(made(1))])


def test_a_newer_version_is_left_alone(url: str) -> None:
    with Storage.open(url) as storage:
        storage.write([sealed(made(1, snapshots=[snapshot(1, 1)]))])
        storage.database.run('INSERT INTO "TraceStorage" VALUES (99, 0)')
    with pytest.raises(MisconfiguredError, match=r"version 99.*use a release that is at least"):
        Storage.open(url)
    with pytest.raises(InputError, match="version 99"):
        Storage.open(url, create=False)


def test_failed_migration_step_leaves_the_previous_version(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    of_version_1(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "TraceRun" (x)')  # in the way of the view
    connection.close()
    with pytest.raises(Exception, match="TraceRun"):
        Storage.open(f"sqlite:///{path}")
    database = connect(parse_url(f"sqlite:///{path}"), create=True)
    assert version_of(database) == 1
    assert not database.has_table("TraceUnresolved")
    database.close()


def test_reading_changes_nothing(url: str) -> None:
    if not url.startswith("sqlite"):
        with pytest.raises(InputError, match="has no storage tables"):
            Storage.open(url, create=False)
    else:
        with pytest.raises(InputError, match="does not exist"):
            Storage.open(url, create=False)
        assert not list(Path(url.removeprefix("sqlite:///")).parent.iterdir())
    database = of_version_1(url)
    fill_as_version_1(database)
    with Storage.open(url, create=False) as storage:
        assert [name for name, _ in storage.batches()] == ["x.json"]
    assert version_of(database) == 1
    database.close()
