"""Store batches in the platform's tables, and read them again (docs/storage.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from typing import Self

from .... import exactjson
from ....errors import InputError
from ...delivery.batch_target import SealedBatch
from ...durations import DAY_NS
from ...records.columns import column_of_name, name_of_column
from ...spool.paths import checked_name
from . import blob_uris
from .database import KEYS_PER_DAY, Database, check_readable, migrate
from .ownership import DEFAULT_CONTEXT, OwnerContext
from .processes import forget_processes
from .received import parts_of, without_parts
from .rows import (
    BATCH_COLUMNS,
    COLUMNS,
    MARK,
    SNAPSHOT,
    SPAN,
    PreparedBatch,
    hash_of,
    prepare_batch,
    rows_of,
)
from .store import BatchStore, Expired, Retained, Select, WriteResult, stored_batches
from .traces import Placing
from .url import Location, parse_url

_EXPIRED_AT_ONCE = 200
"""The maximum number of batches removed per transaction, so that writers do not wait long."""

_DIGESTS = "TraceDigest"

_EARLIEST_NS = 946_684_800 * 10**9
"""The year 2000 in Unix ns. An earlier creation time is wrong or in another unit (µs, ms, s)."""


_IS_EXPIRED = (
    f'("batchKey" < {KEYS_PER_DAY} AND'
    ' (("createdNs" >= ? AND "createdNs" < ?)'
    ' OR (("createdNs" < ? OR "createdNs" > ?) AND "storedNs" < ?)))'
)
"""The SQL condition that selects the expired batches whose key contains no day; `_expiry` returns
its parameters."""
_IS_OF_EXPIRED_DAY = f'("batchKey" >= {KEYS_PER_DAY} AND "batchKey" < ?)'
_FORGOTTEN_AT_ONCE = 1_000
_IS_RESOLVED = 'NOT EXISTS (SELECT 1 FROM "TraceSpan" s WHERE s."traceId" = "TraceUnresolved"."id")'
"""The SQL condition that no span waits for the root any more."""


_DATABASES = {
    "sqlite": "cirron_otel.core.targets.sql.sqlite:SqliteDatabase",
    "postgresql": "cirron_otel.core.targets.sql.postgres:PostgresDatabase",
}
"""The class for each URL scheme, imported on use: PostgreSQL's class needs a driver."""


def connect(location: Location, *, create: bool) -> Database:
    """Connect to the database at a location.

    `create` creates an SQLite file if it does not exist. Raises the errors of Database, InputError
    if the file does not exist, and MissingExtraError if PostgreSQL's driver is not installed.
    """
    module, _, name = _DATABASES[location.scheme].partition(":")
    database: Database = getattr(import_module(module), name)(location, create=create)
    return database


class Storage(BatchStore):
    """Stores batches in the platform's tables of an SQL database. Implements BatchStore."""

    def __init__(self, database: Database, location: Location) -> None:
        """Wrap an open database whose tables are current. Use `open` instead."""
        self._database, self._location = database, location

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Self:
        """Open `sqlite:///FILE` or `postgresql://…`, as `store.open_store` does."""
        return cls.at(parse_url(url), create=create)

    @classmethod
    def at(cls, location: Location, *, create: bool = True) -> Self:
        """Open the database at a location."""
        database = connect(location, create=create)
        try:
            storage = cls(database, location)
            if create:
                storage.migrate()
            else:
                check_readable(database, location.shown)
        except BaseException:
            database.close()
            raise
        return storage

    @property
    def shown(self) -> str:
        """The address as shown in messages: without user, password and parameters."""
        return self._location.shown

    @property
    def database(self) -> Database:
        """The connection, for use in this package and in tests only."""
        return self._database

    def migrate(self) -> int:
        """Migrate the tables to the version that this release writes; return the previous one.

        Raises MisconfiguredError if a newer release wrote the tables.
        """
        return migrate(self._database)

    def write(
        self, batches: Sequence[SealedBatch], context: OwnerContext = DEFAULT_CONTEXT
    ) -> WriteResult:
        """Store all batches, or none if an error is raised."""
        unknown = self._unknown(batches)
        prepared = [prepare_batch(batch, hash_, context) for hash_, batch in unknown]
        prepared.sort(
            key=lambda each: (each.name, each.hash)
        )  # a fixed order, so that concurrent writers cannot deadlock
        rows = 0
        new: list[tuple[int, PreparedBatch]] = []
        if prepared:
            self._database.prepare_days({each.header.created_ns for each in prepared})
            with self._database.transaction():
                new = self._new_parts(self._add(prepared), dict(unknown), context)
                rows = self._fill(new, context)
        return WriteResult(len(new), len(batches) - len(new), rows)

    def batches(self, select: Select = Select()) -> Iterator[tuple[str, bytes]]:  # noqa: B008
        """Yield (file name, bytes) of the stored batches, in the order of their names.

        All batches are read from one snapshot of the database, through a second connection.
        """
        with closing(connect(self._location, create=False)) as database:
            yield from stored_batches(database, select)

    def expired(self, older_than_ns: int) -> Expired:
        """Count the batches that `retain` would remove, and all batches."""
        counted = (
            f'SELECT COUNT(*), (SELECT COUNT(*) FROM "TraceBatch")'  # noqa: S608
            f' FROM "TraceBatch" WHERE {_IS_EXPIRED} OR {_IS_OF_EXPIRED_DAY}'
        )
        first_key = older_than_ns // DAY_NS * KEYS_PER_DAY
        with self._database.snapshot():
            return Expired(*self._database.rows(counted, *_expiry(older_than_ns), first_key)[0])

    def retain(self, older_than_ns: int) -> Retained:
        """Remove the batches that were created before a time (Unix ns), with all their rows.

        Partitions of days are removed as a whole, once the complete day is older. Other batches are
        removed in transactions of some batches each, so that writers do not wait long.
        """
        database = self._database
        rows, batches = 0, database.drop_days(older_than_ns)
        times = _expiry(older_than_ns)
        while True:
            with database.transaction():
                database.serialize()
                expired = database.rows(
                    f'SELECT "batchKey" FROM "TraceBatch" WHERE {_IS_EXPIRED}'  # noqa: S608
                    f' ORDER BY "createdNs" LIMIT {_EXPIRED_AT_ONCE}',
                    *times,
                )
                if not expired:
                    break
                keys = database.array_param(row[0] for row in expired)
                condition = database.in_clause('"batchKey"')
                database.run(f'DELETE FROM "{_DIGESTS}" WHERE {condition}', keys)  # noqa: S608
                for kind in COLUMNS:
                    rows += database.run(f'DELETE FROM "{kind}" WHERE {condition}', keys)  # noqa: S608
                batches += database.run(f'DELETE FROM "TraceBatch" WHERE {condition}', keys)  # noqa: S608
        if batches:
            self._forget()
            database.shrink()
        return Retained(batches, rows)

    def run_of_span(self, workspace_id: str, span_id: str) -> str | None:
        """Return the id of a stored span's run; None if the span is not stored."""
        return blob_uris.run_of_span(self._database, workspace_id, span_id)

    def set_blob_uris(self, name: str, data: bytes | None, uris: Mapping[int, str]) -> bool:
        """Set the URIs of a batch's snapshots, by index; False if the batch is not stored."""
        return blob_uris.set_blob_uris(self._database, name, data, uris)

    def limit_statements(self, seconds: float) -> None:
        """Let later statements raise UnreachableError if they take longer than `seconds`."""
        self._database.limit_statements(seconds)

    def interrupt(self) -> None:
        """Cancel the call in progress in another thread, and refuse later calls."""
        self._database.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def abandon(self) -> None:
        """In a forked child: drop the connection without sending anything to the server."""
        self._database.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Storage({self.shown!r})"

    def _unknown(self, batches: Sequence[SealedBatch]) -> list[tuple[bytes, SealedBatch]]:
        """Return (hash, batch) for each batch that is not stored yet, without duplicates."""
        candidates = {
            (column_of_name(checked_name(batch.name)), hash_of(batch.data)): batch
            for batch in batches
        }
        condition = self._database.in_clause('"name"')
        known = {
            (name, bytes(hash_))
            for name, hash_ in self._database.rows(
                f'SELECT "name", "hash" FROM "{self._database.names}" WHERE {condition}',  # noqa: S608
                self._database.array_param({name for name, _ in candidates}),
            )
        }
        names = {name for name, _ in known}
        return [
            (hash_, batch)
            for (name, hash_), batch in candidates.items()
            if (name, hash_) not in known and not (name in names and self._holds_equal(batch))
        ]

    def _holds_equal(self, batch: SealedBatch) -> bool:
        """Return whether a stored batch of the same name is equal as JSON but has other bytes."""
        try:
            value = exactjson.loads(batch.data)
            return any(
                name == batch.name and exactjson.equal(exactjson.loads(data), value)
                for name, data in self.batches(Select(name=batch.name))
            )
        except (InputError, RecursionError):
            return False

    def _add(self, prepared: Sequence[PreparedBatch]) -> list[tuple[int, PreparedBatch]]:
        """Add the batches; return (key, batch) for each one that was not stored yet."""
        now = time.time_ns()
        keys = self._database.add(BATCH_COLUMNS, [each.row(now) for each in prepared])
        return [(key, each) for key, each in zip(keys, prepared, strict=True) if key is not None]

    def _new_parts(
        self,
        new: list[tuple[int, PreparedBatch]],
        batches: Mapping[bytes, SealedBatch],
        context: OwnerContext,
    ) -> list[tuple[int, PreparedBatch]]:
        """Return the batches without the parts that are already stored; drop empty batches.

        Digests are inserted in sorted order, so that concurrent writers cannot deadlock.
        """
        parts = {key: parts_of(batches[each.hash], context) for key, each in new}
        rows = sorted((part.digest, key) for key, of_batch in parts.items() for part in of_batch)
        firsts = dict(reversed(rows))
        added = self._database.claim(_DIGESTS, "digest", sorted(firsts.items())) if rows else ()
        left = []
        for key, each in new:
            here = [p for p in parts[key] if firsts[p.digest] != key or p.digest not in added]
            if here and len(here) == len(parts[key]):
                self._database.run('DELETE FROM "TraceBatch" WHERE "batchKey" = ?', key)
            elif here:
                reduced = without_parts(batches[each.hash].data, here)
                left.append((key, self._reduced(key, each, reduced, context)))
            else:
                left.append((key, each))
        return left

    def _reduced(
        self, key: int, whole: PreparedBatch, data: bytes, context: OwnerContext
    ) -> PreparedBatch:
        prepared = prepare_batch(SealedBatch(name_of_column(whole.name), data), whole.hash, context)
        statement = 'UPDATE "TraceBatch" SET "extra" = ?, "body" = ? WHERE "batchKey" = ?'
        self._database.run(statement, prepared.header.extra, prepared.body, key)
        return prepared

    def _fill(self, new: Sequence[tuple[int, PreparedBatch]], context: OwnerContext) -> int:
        """Add the rows of batches; return their number."""
        prepared = [each for _, each in new]
        placing = Placing(self._database, prepared)
        if context.blob_uri is not None:
            for each in prepared:
                placing.set_blob_uris(each, context.blob_uri)
        count = 0
        for kind in (SPAN, MARK, SNAPSHOT):
            rows = [row for key, each in new for row in rows_of(kind, key, each.records_of(kind))]
            if rows:
                self._database.bulk_insert(kind, COLUMNS[kind], rows)
            count += len(rows)
        placing.settle(prepared)
        return count

    def _forget(self) -> None:
        """Remove the notes about roots and processes whose spans are no longer stored."""
        database = self._database
        resolved = f'SELECT "id" FROM "TraceUnresolved" WHERE {_IS_RESOLVED}'  # noqa: S608
        ids = [some_id for (some_id,) in database.rows(resolved)]
        is_listed = database.in_clause('"id"')
        statement = f'DELETE FROM "TraceUnresolved" WHERE {is_listed} AND {_IS_RESOLVED}'  # noqa: S608
        for first in range(0, len(ids), _FORGOTTEN_AT_ONCE):
            some = database.array_param(ids[first : first + _FORGOTTEN_AT_ONCE])
            with database.transaction():
                database.serialize()  # a writer may be about to store a span below the root
                database.run(statement, some)
        with database.transaction():
            forget_processes(database)


def open_sql(location: Location, *, create: bool) -> Storage:
    """Open the SQL database at a location. Raises the errors of `store.open_store`."""
    return Storage.at(location, create=create)


def _expiry(older_than_ns: int) -> tuple[int, int, int, int, int]:
    latest_ns = time.time_ns() + DAY_NS
    return _EARLIEST_NS, older_than_ns, _EARLIEST_NS, latest_ns, older_than_ns
