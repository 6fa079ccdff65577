"""The interface of an SQL database, and the migration of its tables.

Only SQLite and PostgreSQL implement the interface. The steps of a migration are the files in
`migrations/`: `<number>_<what>.sql` for both databases, or `<number>_<what>.sqlite.sql` and
`<number>_<what>.postgresql.sql`. A released step is never changed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import resources
from typing import Any, Protocol, TypeVar

from ....errors import InputError
from ...delivery.errors import MisconfiguredError, RefusedError, UnreachableError

Row = Sequence[Any]
_MOST_VALUES = 20_000

KEYS_PER_DAY = 10**11
"""The factor of the day in a `batchKey`; a smaller key contains no day (see `days`)."""


class Database(Protocol):
    """One connection. In statements, `?` is a placeholder, and names are in double quotes.

    Every method raises UnreachableError if the database is not available now (MisconfiguredError
    if the configuration seems wrong), RefusedError if the database will never accept the data, and
    StoppedError after `interrupt`. After UnreachableError, close the connection.
    """

    dialect: str
    """`sqlite` or `postgresql`."""
    names: str
    """The table that has the name, the hash and the `batchKey` of each batch."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commit all changes of the block at its end; roll them back if the block raises."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Read everything in the block from one snapshot of the database."""

    def exclude_writers(self) -> None:
        """In a transaction, wait for all other writers, and make later ones wait for its end.

        Migrations take turns without a time limit. Raises UnreachableError if a writer or a reader
        takes too long, since all others would have to wait for it.
        """

    def serialize(self) -> None:
        """In a transaction, wait for all other transactions that have called this method.

        Afterwards, their changes are visible.
        """

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""

    def run(self, statement: str, *parameters: Any) -> int:
        """Execute a statement; return the number of rows that it changed."""

    def in_clause(self, column: str) -> str:
        """Return the SQL condition that the column's value is in an `array_param` parameter."""

    def array_param(self, values: Iterable[str] | Iterable[int]) -> Any:
        """Return a parameter for `in_clause`."""

    def prepare_days(self, created_ns: Collection[int]) -> None:
        """Outside a transaction, create the partitions for batches of these times (Unix ns)."""

    def drop_days(self, before_ns: int) -> int:
        """Outside a transaction, remove the partitions of days before a time (Unix ns).

        Returns the number of removed batches.
        """

    def add(self, columns: Sequence[str], rows: Sequence[Row]) -> list[int | None]:
        """Insert batches one by one; return each `batchKey`, or None if it already exists."""

    def claim(self, table: str, column: str, rows: Sequence[tuple[bytes, int]]) -> set[bytes]:
        """Insert pairs of a digest (in the unique column `column`) and a `batchKey`, in order.

        Returns the digests that were new. Waits for writers that are about to insert any of them.
        """

    def bulk_insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert many rows."""

    def script(self, text: str) -> None:
        """Execute several statements in the open transaction."""

    def has_table(self, name: str) -> bool:
        """Whether a table of that name exists."""

    def shrink(self) -> None:
        """Return free space to the file system, as far as that is cheap."""

    def limit_statements(self, seconds: float) -> None:
        """Let later statements raise UnreachableError if they take longer than `seconds`."""

    def interrupt(self) -> None:
        """Cancel the call in progress in another thread, and refuse later calls."""

    def close(self) -> None:
        """Close the connection."""

    def abandon(self) -> None:
        """In a forked child: drop the connection without sending anything to the server."""


_Value = TypeVar("_Value", str, int)


def parts(values: Collection[_Value]) -> Iterator[list[_Value]]:
    """Split the values into lists that are short enough for one parameter of `array_param`."""
    some = list(values)
    for start in range(0, len(some), _MOST_VALUES):
        yield some[start : start + _MOST_VALUES]


def quoted(names: Iterable[str]) -> str:
    """Return names as an SQL list of columns."""
    return ", ".join(f'"{name}"' for name in names)


_VERSIONS = "TraceStorage"
_FILE = re.compile(r"(\d{4})_[a-z_]+(?:\.(sqlite|postgresql))?\.sql")


@lru_cache
def steps(dialect: str) -> dict[int, str]:
    """Return the statements of each migration step, by version, in order."""
    statements = {}
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match is not None and match[2] in (None, dialect):
            statements[int(match[1])] = file.read_text(encoding="utf-8")
    return dict(sorted(statements.items()))


def current(dialect: str) -> int:
    """Return the version of the tables that this package writes."""
    return max(steps(dialect))


def version_of(database: Database) -> int:
    """Return the version of a database's tables; 0 if the database contains no storage."""
    if not database.has_table(_VERSIONS):
        return 0
    return int(database.rows(f'SELECT MAX("version") FROM "{_VERSIONS}"')[0][0] or 0)  # noqa: S608


def migrate(database: Database, to: int | None = None) -> int:
    """Migrate a database to the version `to`, by default the current one; return the previous one.

    All steps are in one transaction. If several processes migrate at once, one of them does the
    work and the others wait. Raises MisconfiguredError if a newer release wrote the database. If a
    step fails, raises UnreachableError and not RefusedError, since no batch caused the failure.
    """
    target_version = current(database.dialect) if to is None else to
    if version_of(database) == target_version:
        return target_version
    try:
        return _migrate(database, target_version)
    except RefusedError as error:
        raise UnreachableError(f"the tables cannot be created now: {error}") from None


def _migrate(database: Database, wanted: int) -> int:
    with database.transaction():
        # Writers take their locks in the same order, so there is no deadlock.
        database.exclude_writers()
        database.serialize()
        before = version_of(database)
        _check(before, database.dialect)
        if before == 0:
            database.run(
                f'CREATE TABLE "{_VERSIONS}" ("version" INTEGER PRIMARY KEY, "appliedNs" BIGINT)'
            )
        for version, statements in steps(database.dialect).items():
            if before < version <= wanted:
                database.script(statements)
                now = time.time_ns()
                database.run(f'INSERT INTO "{_VERSIONS}" VALUES (?, ?)', version, now)  # noqa: S608
    return before


def check_readable(database: Database, shown: str) -> None:
    """Raise InputError if a database contains no storage, or if a newer release wrote it."""
    version = version_of(database)
    if version == 0:
        raise InputError(f"{shown} has no storage tables: expected a database of cirron-otel")
    if version > current(database.dialect):
        raise InputError(f"{shown}: {_newer(version, database.dialect)}")


def _check(version: int, dialect: str) -> None:
    if version > current(dialect):
        raise MisconfiguredError(_newer(version, dialect))


def _newer(version: int, dialect: str) -> str:
    return (
        f"the tables have version {version}, but this release supports only {current(dialect)}:"
        " use a release that is at least as new as the one that wrote them"
    )
