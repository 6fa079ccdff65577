"""Partitions of a PostgreSQL database's tables, one for each day of batches.

The key of a batch contains its day, so all rows of the batch are in partitions of the same day.
Batches that are too old for a partition of their own, or have an impossible time, are in the
partitions `…_other`. Any number of writers create and remove partitions at the same time; none of
them waits for a reader, or for a writer that stores batches.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from ...delivery.errors import RefusedError, UnreachableError
from ...durations import DAY_NS
from .database import KEYS_PER_DAY, Database

AHEAD_DAYS = 2
"""The number of days after today whose partitions are created in advance."""
LATE_DAYS = 31
"""Batches that are up to this number of days old get a partition of their day."""

_TABLES = ("TraceBatch", "TraceSpan", "TraceMark", "TraceSnapshot")
"""The partitioned tables. Batches come first: without them no reader looks for their rows."""
_INDEXES = ("TraceDigest", "TraceName")
"""The tables that recognise repeated batches and requests."""
_LOCK = 0x6369_7272_6F6F
"""The key of the advisory lock that creates partitions."""
_CREATION_WAIT = "500ms"
"""How long a creation waits for a lock: less than the server's deadlock_timeout."""
_LOCKS_PER_DAY = 40
"""The locks that a day needs: 20 tables and indexes, each with one lock to spare."""
_PAUSE_S = 60.0
"""The time after a failed creation during which no further one is tried."""
_DELETED_AT_ONCE = 5_000
_OTHER_AT_WORK = ("42P01", "55000", "40P01")
"""The SQLSTATEs if another process has detached the partition, or is about to do so."""

_MOST_DAYS = f"""
SELECT current_setting('max_locks_per_transaction')::integer
  * current_setting('max_connections')::integer / {_LOCKS_PER_DAY}
"""
_IS_OWNER = """
SELECT 1 FROM pg_catalog.pg_class
WHERE oid = '"TraceBatch"'::regclass AND pg_has_role(relowner, 'USAGE')
"""
_OTHERS = """
SELECT 1 FROM pg_catalog.pg_stat_activity WHERE datname = current_database()
  AND state = 'active' AND pid <> pg_backend_pid() AND query ~ '^ALTER TABLE "Trace.*DETACH'
"""

_USABLE = """
SELECT "day" FROM "TraceDay" WHERE "day" = ANY(?) AND NOT "isExpired" ORDER BY "day"
FOR SHARE SKIP LOCKED
"""
_EXPIRE = """
UPDATE "TraceDay" SET "isExpired" = true
WHERE "day" IN (SELECT "day" FROM "TraceDay" WHERE "day" = ? FOR UPDATE SKIP LOCKED)
"""
_STATE = """
SELECT c.relname, i.inhdetachpending FROM pg_catalog.pg_class c
LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
WHERE c.oid = to_regclass(?)
"""
_DELETE = """
DELETE FROM "{table}" WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM "{table}" WHERE "batchKey" >= ? AND "batchKey" < ? LIMIT {limit}
))
"""


class Days:
    """The partitions of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._create_at = 0.0

    def prepare(self, created_ns: Collection[int]) -> None:
        """Create the partitions for batches of these times (Unix ns), and those of the next days.

        Call it outside a transaction. A partition that cannot be created now, for example without
        the right to do so, is not needed: its batches are stored in the partitions `…_other`.
        """
        if time.monotonic() < self._create_at:
            return
        [(today,)] = self._database.rows(
            "SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)::integer"
        )
        wanted = set(range(today, today + AHEAD_DAYS + 1))
        for day in {each // DAY_NS for each in created_ns}:
            if today - LATE_DAYS <= day <= today + 1:
                wanted.add(day)
        existing = self._database.rows(
            'SELECT "day" FROM "TraceDay" WHERE "day" = ANY(?)', sorted(wanted)
        )
        missing = sorted(wanted - {day for (day,) in existing}, reverse=True)
        try:
            if missing and not self._has_room():
                self._create_at = time.monotonic() + _PAUSE_S
                return
            for day in missing:
                self._create(day)
        except (RefusedError, UnreachableError):
            self._create_at = time.monotonic() + _PAUSE_S

    def lock(self, created_ns: Collection[int]) -> set[int]:
        """Return the days of these times (Unix ns) that have partitions.

        The partitions are not removed before the open transaction ends.
        """
        days = sorted({each // DAY_NS for each in created_ns if each > 0})
        return {day for (day,) in self._database.rows(_USABLE, days)}

    def _has_room(self) -> bool:
        """Return whether the server can lock the partitions of further days."""
        [(most,)] = self._database.rows(_MOST_DAYS)
        [(count,)] = self._database.rows('SELECT COUNT(*) FROM "TraceDay"')
        return int(count) < int(most)

    def _create(self, day: int) -> None:
        database = self._database
        with database.transaction():
            database.run(f"SET LOCAL lock_timeout = '{_CREATION_WAIT}'")
            database.rows("SELECT pg_advisory_xact_lock(?)", _LOCK)
            if not database.run('INSERT INTO "TraceDay" VALUES (?) ON CONFLICT DO NOTHING', day):
                return
            for table in _TABLES:
                name, times = partition(table, day), ""
                if table == _TABLES[0]:  # by which queries of a range of times leave it out
                    times = f"""CHECK ("createdNs" >= {day * DAY_NS}
                      AND "createdNs" < {(day + 1) * DAY_NS}), """
                # ATTACH waits for no reader or writer, unlike CREATE TABLE ... PARTITION OF.
                database.run(f'CREATE TABLE "{name}" ({times}LIKE "{table}" INCLUDING ALL)')
                database.run(
                    f'ALTER TABLE "{table}" ATTACH PARTITION "{name}"'
                    f" FOR VALUES FROM ({day * KEYS_PER_DAY}) TO ({(day + 1) * KEYS_PER_DAY})"
                )

    def drop(self, before_ns: int) -> int:
        """Remove the days that end at a time (Unix ns) or before; return the number of batches.

        A day that a writer uses is left for the next call, as are all further days if another
        process removes them at the moment. A removal that was interrupted is completed. A role that
        does not own the tables removes nothing.
        """
        batches = 0
        if not self._database.rows(_IS_OWNER):
            return batches
        for (day,) in self._database.rows(
            'SELECT "day" FROM "TraceDay" WHERE "day" < ? ORDER BY "day"', before_ns // DAY_NS
        ):
            if self._database.rows(_OTHERS):
                break
            if self._database.run(_EXPIRE, day):
                try:
                    batches += self._drop(day)
                except (RefusedError, UnreachableError) as error:
                    if error.status not in _OTHER_AT_WORK:
                        raise
                    break
        return batches

    def _drop(self, day: int) -> int:
        """Remove an expired day: first its batches, then what recognises them, then their rows."""
        database = self._database
        batches = 0
        for table in _TABLES:
            name = partition(table, day)
            state = database.rows(_STATE, f'"{name}"')
            if state and state[0][1] is not None:
                how = "FINALIZE" if state[0][1] else "CONCURRENTLY"
                database.run(f'ALTER TABLE "{table}" DETACH PARTITION "{name}" {how}')
            if state and table == _TABLES[0]:
                [(batches,)] = database.rows(f'SELECT COUNT(*) FROM "{name}"')  # noqa: S608
            database.run(f'DROP TABLE IF EXISTS "{name}"')
            if table == _TABLES[0]:
                self._forget(day)
        database.run('DELETE FROM "TraceDay" WHERE "day" = ?', day)
        return batches

    def _forget(self, day: int) -> None:
        bounds = day * KEYS_PER_DAY, (day + 1) * KEYS_PER_DAY
        for table in _INDEXES:
            statement = _DELETE.format(table=table, limit=_DELETED_AT_ONCE)
            while self._database.run(statement, *bounds):
                pass


def partition(table: str, day: int) -> str:
    """Return the name of a table's partition for a day (days since 1970)."""
    date = datetime.fromtimestamp(0, UTC) + timedelta(days=day)
    return f"{table}_{date:%Y%m%d}"
