"""Databases of version 5 get partitions: with their rows, views and rights, whoever is killed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cirron_otel.core.delivery.errors import UnreachableError
from cirron_otel.core.targets.sql import postgres
from cirron_otel.core.targets.sql.database import (
    KEYS_PER_DAY,
    Database,
    current,
    migrate,
    version_of,
)
from cirron_otel.core.targets.sql.storage import Storage, connect
from cirron_otel.core.targets.sql.store import Select
from cirron_otel.core.targets.sql.url import parse_url
from tests.kit.spools.deliveries import until
from tests.kit.spools.made import made, span, span_id
from tests.kit.spools.recorded import ALL_BATCHES

from .helpers import (
    ALL_TABLES,
    assert_stored,
    column,
    files,
    sealed,
    stored,
)
from .test_crash import python
from .test_days import PATIENCE_S
from .test_migrate import VIEWS
from .test_received import batch

RECORDED = files(ALL_BATCHES[:60])
RECEIVED = [batch(1, [(1,), (2, 2)]), batch(2, [(3,)])]
BATCHES = [*RECORDED, *RECEIVED]
_INSERT = (
    'INSERT INTO "TraceBatch" ("name", "hash", "schemaVersion", "sdkVersion", "batchId",'
    ' "createdNs", "storedNs", "workspaceId") VALUES (?, ?, 1, \'0.3.0\', ?, ?, ?, \'default\')'
    ' ON CONFLICT DO NOTHING RETURNING "batchKey"'
)
"""What a writer of version 5 executes."""


@pytest.fixture
def version_5_database(postgres_url: str, tmp_path: Path) -> Iterator[Database]:
    """A database of version 5, with BATCHES as that version stored them.

    The rows come from SQLite, whose tables are still those of version 5.
    """
    database = connect(parse_url(postgres_url), create=True)
    migrate(database, to=5)
    with Storage.open(f"sqlite:///{tmp_path}/s.sqlite") as storage:
        storage.write(BATCHES)
        for table in ALL_TABLES:
            columns = [row[1] for row in storage.database.rows(f'PRAGMA table_info("{table}")')]
            rows = [list(row) for row in storage.database.rows(f'SELECT * FROM "{table}"')]
            for row in rows:
                for place, name in enumerate(columns):
                    if name == "valueBool" and row[place] is not None:
                        row[place] = bool(row[place])
            if rows:
                database.bulk_insert(table, columns, rows)
        assert len(stored(storage)) == len(BATCHES)
    database.rows(
        """SELECT setval(pg_get_serial_sequence('"TraceBatch"', 'batchKey'), MAX("batchKey"))
        FROM "TraceBatch" """
    )
    yield database
    database.close()


def views_of(database: Database) -> dict[str, list[Any]]:
    """All rows of all views."""
    return {view: sorted(map(repr, database.rows(f'SELECT * FROM "{view}"'))) for view in VIEWS}


def test_rows_and_views_are_equal(version_5_database: Database, postgres_url: str) -> None:
    rows = views_of(version_5_database)
    assert all(rows.values())
    some_run = column(
        Storage(version_5_database, parse_url(postgres_url)), 'SELECT MAX("runId") FROM "TraceRun"'
    )
    selections = [Select(), Select(run_id=some_run[0]), Select(since_ns=1_795_000_000 * 10**9)]
    was = [
        list(Storage(version_5_database, parse_url(postgres_url)).batches(each))
        for each in selections
    ]
    assert len(was[0]) == len(BATCHES)
    with Storage.open(postgres_url) as storage:
        assert version_of(storage.database) == current("postgresql")
        assert [list(storage.batches(each)) for each in selections] == was
        assert views_of(storage.database) == rows
        assert_stored(storage, BATCHES)
        # Every batch and every request is still known.
        assert storage.write([*BATCHES, batch(5, [(2, 2)])]).new == 0
        assert storage.write([sealed(made(1, spans=[span(1)]))]).new == 1
        keys = column(storage, 'SELECT "batchKey" FROM "TraceBatch"')
        assert len({key % KEYS_PER_DAY for key in keys}) == len(BATCHES) + 1
        # Retention removes them as before.
        storage.retain(2**63 - 1)
        for table in ("TraceBatch", "TraceSpan", "TraceMark", "TraceName", "TraceDigest"):
            assert column(storage, f'SELECT COUNT(*) FROM "{table}"') == [0]
        assert storage.write(BATCHES).new == len(BATCHES)


def test_views_and_rights_of_others_survive(
    version_5_database: Database, postgres_url: str
) -> None:
    name = f"reader_{time.time_ns()}"
    version_5_database.run(
        'CREATE VIEW "mine" AS SELECT "runId", COUNT(*) AS n FROM "TraceStep" GROUP BY 1'
    )
    version_5_database.run(
        'CREATE VIEW "above" WITH (security_barrier=true) AS SELECT SUM(n) FROM "mine"'
    )
    was = version_5_database.rows('SELECT * FROM "above"')
    version_5_database.run(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'")
    version_5_database.run(f'GRANT SELECT ON "TraceSpan", "TraceRun", "mine", "above" TO "{name}"')
    version_5_database.run(f'GRANT SELECT, INSERT ON "TraceBatch" TO "{name}"')
    try:
        Storage.open(postgres_url).close()
        server = postgres_url.rpartition("@")[2]
        with psycopg.connect(f"postgresql://{name}:x@{server}") as reader:
            for table in ("TraceSpan", "TraceRun", "mine", "TraceName", "TraceDay"):
                assert reader.execute(f'SELECT 1 FROM "{table}" LIMIT 1'.encode())
            assert reader.execute('SELECT * FROM "above"').fetchall() == was
            assert reader.execute("SELECT nextval('\"TraceBatch_number\"')").fetchone()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute('SELECT * FROM "TraceMark"')
        options = column(
            Storage(version_5_database, parse_url(postgres_url)),
            "SELECT reloptions FROM pg_class WHERE relname = 'above'",
        )
        assert options == [["security_barrier=true"]]
    finally:
        version_5_database.run(f'DROP OWNED BY "{name}"')
        version_5_database.run(f'DROP ROLE "{name}"')


def test_a_materialized_view_is_named(version_5_database: Database, postgres_url: str) -> None:
    version_5_database.run('CREATE MATERIALIZED VIEW "stale" AS SELECT * FROM "TraceRun"')
    with pytest.raises(UnreachableError, match=r"materialized views.*dropped first: .*stale"):
        Storage.open(postgres_url)
    assert version_of(version_5_database) == 5
    version_5_database.run('DROP MATERIALIZED VIEW "stale"')
    Storage.open(postgres_url).close()


def test_a_writer_of_version_5_goes_on(version_5_database: Database, postgres_url: str) -> None:
    """Its statements store batches once, beside those of the writers of this version."""

    def insert(name: str, hash_: bytes) -> list[Any]:
        now = time.time_ns()
        return version_5_database.rows(_INSERT, name, hash_, "1" * 32, now, now)

    [(first,)] = insert("a.json", b"a" * 32)
    new = sealed(made(7, spans=[span(7)]))
    with Storage.open(postgres_url) as storage:
        assert storage.write([new]).new == 1
    assert insert("a.json", b"a" * 32) == []
    [(second,)] = insert("b.json", b"b" * 32)
    assert first < second < KEYS_PER_DAY
    version_5_database.bulk_insert(
        "TraceSpan",
        [
            "batchKey",
            "ordinal",
            "id",
            "traceId",
            "name",
            "startNs",
            "endNs",
            "workspaceId",
            "runId",
        ],
        [(second, 0, span_id(9), span_id(9), "step", 1, 2, "default", "r")],
    )
    known = version_5_database.rows(
        'SELECT "name" FROM "TraceName" WHERE "batchKey" = ANY(?)', [first, second]
    )
    assert sorted(known) == [("a.json",), ("b.json",)]
    # Its retention removes the name of a batch, too.
    version_5_database.run('DELETE FROM "TraceBatch" WHERE "batchKey" = ANY(?)', [first])
    assert len(insert("a.json", b"a" * 32)) == 1


_OPEN = """
import sys
from cirron_otel.core.targets.sql.storage import Storage
from tests.core.targets.sql.test_days_migration import BATCHES
print("ready", flush=True)
sys.stdin.readline()
with Storage.open(sys.argv[1]) as storage:
    print(storage.write(BATCHES).new, flush=True)
"""


def _start(writers: list[subprocess.Popen[str]]) -> None:
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "ready\n"
        writer.stdin.write("\n")
        writer.stdin.flush()


def test_collectors_that_start_at_once(version_5_database: Database, postgres_url: str) -> None:
    writers = [python(_OPEN, postgres_url) for _ in range(3)]
    _start(writers)
    assert [writer.communicate()[0] for writer in writers] == ["0\n"] * 3
    with Storage.open(postgres_url) as storage:
        assert_stored(storage, BATCHES)
        assert column(storage, 'SELECT MAX("version"), COUNT(*) FROM "TraceStorage"') == [6]


def test_killed_migration_leaves_the_earlier_version(
    version_5_database: Database, postgres_url: str
) -> None:
    """It is killed in its middle, where it waits for the name of its sequence."""
    rows = views_of(version_5_database)
    waits = (
        "SELECT pid FROM pg_stat_activity WHERE strpos(query, 'A partition for each day') > 0"
        " AND wait_event_type = 'Lock' AND datname = current_database()"
    )
    with psycopg.connect(postgres_url) as other:
        other.execute('CREATE SEQUENCE "TraceBatch_number"')
        migrating = python(_OPEN, postgres_url)
        _start([migrating])
        until(lambda: version_5_database.rows(waits), PATIENCE_S)
        [(pid,)] = version_5_database.rows(waits)
        migrating.kill()
        migrating.communicate()
        other.rollback()
    # The server notices at the end of the statements that the client is gone.
    until(
        lambda: not version_5_database.rows("SELECT 1 FROM pg_stat_activity WHERE pid = ?", pid),
        PATIENCE_S,
    )
    assert version_of(version_5_database) == 5
    assert not version_5_database.has_table("TraceDay")
    assert views_of(version_5_database) == rows
    with Storage.open(postgres_url) as storage:
        assert views_of(storage.database) == rows
        assert_stored(storage, BATCHES)


def test_a_reader_that_stays_does_not_stop_the_writers(
    version_5_database: Database, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration gives up; writers that wait behind it go on, and a later one succeeds."""
    monkeypatch.setattr(postgres, "_EXCLUSION_WAIT", "200ms")
    with psycopg.connect(postgres_url) as reader:
        reader.execute('SELECT 1 FROM "TraceSnapshot"')
        with pytest.raises(UnreachableError, match="lock timeout"):
            Storage.open(postgres_url)
        assert len(version_5_database.rows(_INSERT, "a.json", b"a" * 32, "1" * 32, 5, 6)) == 1
    with Storage.open(postgres_url) as storage:
        assert version_of(storage.database) == current("postgresql")


def test_writers_and_migrations_at_once(version_5_database: Database, postgres_url: str) -> None:
    """Writers of version 5 store batches while three others migrate: no deadlock, none is lost."""
    stop = python(
        "import sys, time\n"
        "from cirron_otel.core.targets.sql.storage import connect\n"
        "from cirron_otel.core.targets.sql.url import parse_url\n"
        "from tests.core.targets.sql.test_days_migration import _INSERT\n"
        "database = connect(parse_url(sys.argv[1]), create=True)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for n in range(300):\n"
        "    with database.transaction():\n"
        "        values = f'{n}.json', b'x' * 32, '1' * 32, time.time_ns(), time.time_ns()\n"
        "        [(key,)] = database.rows(_INSERT, *values)\n"
        "        database.bulk_insert('TraceUnresolved', ['id'], [(str(n),)])\n"
        "        database.serialize()\n"
        "print('done', flush=True)\n",
        postgres_url,
    )
    writers = [python(_OPEN, postgres_url) for _ in range(3)]
    _start([stop, *writers])
    assert [writer.communicate()[0] for writer in writers] == ["0\n"] * 3
    assert stop.communicate()[0] == "done\n"
    with Storage.open(postgres_url) as storage:
        assert column(storage, 'SELECT COUNT(*) FROM "TraceBatch"') == [len(BATCHES) + 300]
        assert column(storage, 'SELECT COUNT(*) FROM "TraceName"') == [len(BATCHES) + 300]
