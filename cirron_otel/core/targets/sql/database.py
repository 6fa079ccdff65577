"""The interface of an SQL database. Only SQLite and PostgreSQL implement it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Row = Sequence[Any]
_MOST_VALUES = 20_000


class Database(Protocol):
    """One connection. Statements are written with `?`, names in double quotes.

    Every method raises UnreachableError if the database is not available now (MisconfiguredError
    if the configuration seems wrong), RefusedError if it will never accept what it is given, and
    StoppedError after `interrupt`. After UnreachableError, close the connection.
    """

    dialect: str
    """`sqlite` or `postgresql`."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commit all changes of the block when it ends, or none if it raises."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Read everything in the block from one snapshot of the database."""

    def serialize(self) -> None:
        """In a transaction, wait for all others that have called it, then see their changes."""

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""

    def run(self, statement: str, *parameters: Any) -> int:
        """Execute a statement; return the number of rows that it changed."""

    def in_clause(self, column: str) -> str:
        """Return a condition: the column's value is one of those in an `array_param` parameter."""

    def array_param(self, values: Iterable[str] | Iterable[int]) -> Any:
        """Return a parameter for `in_clause`."""

    def add(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> list[int | None]:
        """Insert rows one by one; return the `batchKey` of each, None if the row exists already."""

    def claim(self, table: str, column: str, rows: Sequence[tuple[bytes, int]]) -> set[bytes]:
        """Insert pairs of a digest (in the unique column `column`) and a `batchKey`, in order.

        Returns the digests that were new. Waits for writers that are about to insert one of them.
        """

    def bulk_insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert many rows."""

    def script(self, text: str) -> None:
        """Execute several statements in the open transaction."""

    def has_table(self, name: str) -> bool:
        """Whether a table of that name exists."""

    def shrink(self) -> None:
        """Return freed space to the file system, as far as that is cheap."""

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
    """Return names as a list of columns."""
    return ", ".join(f'"{name}"' for name in names)
