"""The platform's tables in a database: batches in, batches out (docs/storage.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple, Self

from .... import exactjson
from ....errors import InputError
from ...delivery.batch_target import SealedBatch
from ...durations import DAY_NS
from ...spool.paths import checked_name
from .database import Database
from .migrate import check_readable, migrate
from .ownership import Context
from .processes import forget_processes
from .received import parts_of, without
from .rows import (
    BATCH_COLUMNS,
    COLUMNS,
    MARK,
    SNAPSHOT,
    SPAN,
    Made,
    hash_of,
    made_of,
    name_of_stored,
    rows_of,
    stored_name,
)
from .stored import Select, stored_batches
from .traces import Placing
from .url import Location, parse_url

_EXPIRED_AT_ONCE = 200
"""Batches that are removed in one transaction: writers wait for no more than that."""

_DIGESTS = "TraceDigest"

_EARLIEST_NS = 946_684_800 * 10**9
"""The year 2000: no batch was made before, and a time in µs, ms or s is."""


_IS_EXPIRED = (
    '(("createdNs" >= ? AND "createdNs" < ?)'
    ' OR (("createdNs" < ? OR "createdNs" > ?) AND "storedNs" < ?))'
)
"""A condition on batches; its parameters are those of `_expiry`."""


def connect(location: Location, *, create: bool) -> Database:
    """Connect to the database at a location.

    `create` makes an SQLite file that does not exist. Raises as Database does, InputError if the
    file does not exist, and MissingExtraError if PostgreSQL's driver is not installed.
    """
    if location.path is not None:
        from .sqlite import SqliteDatabase  # noqa: PLC0415 - each driver is imported when needed

        return SqliteDatabase(location.path, create=create)
    from .postgres import PostgresDatabase  # noqa: PLC0415

    return PostgresDatabase(location)


class Written(NamedTuple):
    """What became of batches."""

    new: int
    known: int
    """Of these, the storage had the same name and content already."""
    rows: int
    """Spans, marks and snapshots that were added."""


class Expired(NamedTuple):
    """The number of batches that `Storage.retain` would remove."""

    old: int
    batches: int
    """The number of all batches."""


class Retained(NamedTuple):
    """What was removed because of its age."""

    batches: int
    rows: int


class Storage:
    """A database with the platform's tables. One thread uses it; `interrupt` may come from any.

    Its methods raise UnreachableError where the database cannot do it now (MisconfiguredError
    where that looks like a fault of the configuration), RefusedError where it will never take
    what it is given, and StoppedError behind `interrupt`. After UnreachableError it is to be
    closed, and opened again.
    """

    def __init__(self, database: Database, location: Location) -> None:
        """`open` is how one comes by a storage."""
        self._database, self._location = database, location

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Self:
        """Connect to `sqlite:///FILE` or `postgresql://…`, and bring the tables up to date.

        `create=False` is for reading alone: it changes nothing. Raises as the methods do, and
        UsageError for a URL that is none, MissingExtraError without PostgreSQL's driver,
        and, with `create=False`, InputError where there is no storage.
        """
        location = parse_url(url)
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
        """Where it is, as people may see it: without user, password and parameters."""
        return self._location.shown

    @property
    def database(self) -> Database:
        """The connection, for statements of one's own."""
        return self._database

    def migrate(self) -> int:
        """Bring the tables to the version that this release writes; the version they had.

        Raises MisconfiguredError where a newer release wrote them.
        """
        return migrate(self._database)

    def write(self, batches: Sequence[SealedBatch], context: Context = Context()) -> Written:  # noqa: B008
        """Store batches, all of them or, where it raises, none.

        A batch that is there already, by its name and content, is left as it is; one of a known
        name with other content is stored beside it. The parts of a collector's batch that another
        batch contains already are left out (see `received`). Raises RefusedError for data that is
        not a batch, and TargetError for a name that no file could have.
        """
        unknown = self._unknown(batches)
        made = [made_of(batch, hash_, context) for hash_, batch in unknown]
        made.sort(key=lambda each: (each.name, each.hash))  # so that writers never block in circles
        rows = 0
        new: list[tuple[int, Made]] = []
        if made:
            with self._database.transaction():
                new = self._new_parts(self._add(made), dict(unknown), context)
                rows = self._fill(new, context)
        return Written(len(new), len(batches) - len(new), rows)

    def batches(self, select: Select = Select()) -> Iterator[tuple[str, bytes]]:  # noqa: B008
        """(file name, bytes) of the stored batches, in the order of their names.

        Each is equal to what was written, as JSON values. It reads through a connection of its
        own, all as it stands at the beginning. Raises InputError where a batch is damaged.
        """
        with closing(connect(self._location, create=False)) as database:
            yield from stored_batches(database, select)

    def expired(self, older_than_ns: int) -> Expired:
        """Count the batches that `retain` would remove, and all batches."""
        counted = (
            f'SELECT COUNT(*), (SELECT COUNT(*) FROM "TraceBatch")'  # noqa: S608
            f' FROM "TraceBatch" WHERE {_IS_EXPIRED}'
        )
        with self._database.snapshot():
            return Expired(*self._database.rows(counted, *_expiry(older_than_ns))[0])

    def retain(self, older_than_ns: int) -> Retained:
        """Remove the batches that were created before a time (Unix ns), with all their rows.

        One that does not say when, or says what cannot be (before the year 2000, as a time in
        other units is, or later than tomorrow), counts from when it was stored.
        """
        batches = rows = 0
        database = self._database
        times = _expiry(older_than_ns)
        while True:
            with database.transaction():
                database.serialize()
                found = database.rows(
                    f'SELECT "batchKey" FROM "TraceBatch" WHERE {_IS_EXPIRED}'  # noqa: S608
                    f' ORDER BY "createdNs" LIMIT {_EXPIRED_AT_ONCE}',
                    *times,
                )
                keys = database.many(row[0] for row in found)
                among = database.among('"batchKey"')
                if not found:
                    self._forget_unresolved()
                    break
                database.run(f'DELETE FROM "{_DIGESTS}" WHERE {among}', keys)  # noqa: S608
                for kind in COLUMNS:
                    rows += database.run(f'DELETE FROM "{kind}" WHERE {among}', keys)  # noqa: S608
                batches += database.run(f'DELETE FROM "TraceBatch" WHERE {among}', keys)  # noqa: S608
        if batches:
            database.shrink()
        return Retained(batches, rows)

    def interrupt(self) -> None:
        """End what another thread is doing here, and allow nothing after it."""
        self._database.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def abandon(self) -> None:
        """In a forked child: let go of the connection without a word to the server."""
        self._database.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Storage({self.shown!r})"

    def _unknown(self, batches: Sequence[SealedBatch]) -> list[tuple[bytes, SealedBatch]]:
        """Those that are not there yet, each once."""
        wanted = {
            (stored_name(checked_name(batch.name)), hash_of(batch.data)): batch for batch in batches
        }
        among = self._database.among('"name"')
        known = {
            (name, bytes(hash_))
            for name, hash_ in self._database.rows(
                f'SELECT "name", "hash" FROM "TraceBatch" WHERE {among}',  # noqa: S608
                self._database.many({name for name, _ in wanted}),
            )
        }
        names = {name for name, _ in known}
        return [
            (hash_, batch)
            for (name, hash_), batch in wanted.items()
            if (name, hash_) not in known and not (name in names and self._holds_equal(batch))
        ]

    def _holds_equal(self, batch: SealedBatch) -> bool:
        """Whether a batch of that name, in other bytes, is the same as JSON values."""
        try:
            value = exactjson.loads(batch.data)
            return any(
                name == batch.name and exactjson.equal(exactjson.loads(data), value)
                for name, data in self.batches(Select(name=batch.name))
            )
        except (InputError, RecursionError):
            return False

    def _add(self, made: Sequence[Made]) -> list[tuple[int, Made]]:
        """Add the batches; (key, batch) of those that were not there."""
        now = time.time_ns()
        keys = self._database.add("TraceBatch", BATCH_COLUMNS, [each.row(now) for each in made])
        return [(key, each) for key, each in zip(keys, made, strict=True) if key is not None]

    def _new_parts(
        self, new: list[tuple[int, Made]], batches: Mapping[bytes, SealedBatch], context: Context
    ) -> list[tuple[int, Made]]:
        """Return the batches without the parts that are stored already; empty ones are left out.

        Digests are inserted in their order, so that writers never deadlock.
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
                reduced = without(batches[each.hash].data, here)
                left.append((key, self._reduced(key, each, reduced, context)))
            else:
                left.append((key, each))
        return left

    def _reduced(self, key: int, whole: Made, data: bytes, context: Context) -> Made:
        made = made_of(SealedBatch(name_of_stored(whole.name), data), whole.hash, context)
        statement = 'UPDATE "TraceBatch" SET "extra" = ?, "body" = ? WHERE "batchKey" = ?'
        self._database.run(statement, made.header.extra, made.body, key)
        return made

    def _fill(self, new: Sequence[tuple[int, Made]], context: Context) -> int:
        """Add the rows of batches; how many."""
        made = [each for _, each in new]
        placing = Placing(self._database, made)
        if context.blob_uri is not None:
            for each in made:
                placing.set_blob_uris(each, context.blob_uri)
        count = 0
        for kind in (SPAN, MARK, SNAPSHOT):
            rows = [row for key, each in new for row in rows_of(kind, key, each.records_of(kind))]
            if rows:
                self._database.fill(kind, COLUMNS[kind], rows)
            count += len(rows)
        placing.settle(made)
        return count

    def _forget_unresolved(self) -> None:
        self._database.run(
            'DELETE FROM "TraceUnresolved" WHERE NOT EXISTS'
            ' (SELECT 1 FROM "TraceSpan" s WHERE s."traceId" = "TraceUnresolved"."id")'
        )
        forget_processes(self._database)


def _expiry(older_than_ns: int) -> tuple[int, int, int, int, int]:
    latest_ns = time.time_ns() + DAY_NS
    return _EARLIEST_NS, older_than_ns, _EARLIEST_NS, latest_ns, older_than_ns
