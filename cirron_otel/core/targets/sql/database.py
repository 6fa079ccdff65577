"""The seam between the storage and the databases that it works in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Row = Sequence[Any]
_MOST_VALUES = 20_000


class Database(Protocol):
    """One connection. Statements are written with `?`, names in double quotes.

    Every method raises UnreachableError where the database cannot do it now (MisconfiguredError
    where that looks like a fault of the configuration), RefusedError where it will never take what
    it is given, and StoppedError behind `interrupt`. After UnreachableError it is to be closed.
    """

    dialect: str
    """`sqlite` or `postgresql`."""

    def transaction(self) -> AbstractContextManager[None]:
        """All that is done inside is done when it ends, or nothing of it."""

    def snapshot(self) -> AbstractContextManager[None]:
        """All that is read inside is of one moment."""

    def serialize(self) -> None:
        """In a transaction: wait until no other one is behind this call, and see what they did."""

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement gives."""

    def run(self, statement: str, *parameters: Any) -> int:
        """Do something; how many rows it changed."""

    def in_clause(self, column: str) -> str:
        """A condition: the column's value is one of a parameter made by `many`."""

    def array_param(self, values: Iterable[str] | Iterable[int]) -> Any:
        """A parameter for `among`."""

    def add(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> list[int | None]:
        """Insert rows, one by one; the `batchKey` of each, None where it is there already."""

    def claim(self, table: str, column: str, rows: Sequence[tuple[bytes, int]]) -> set[bytes]:
        """Insert rows of a digest (in the unique column `column`) and a `batchKey`, in their order.

        Returns the digests that were new. Waits for writers that are about to insert one of them.
        """

    def bulk_insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert many rows."""

    def script(self, text: str) -> None:
        """Do several statements, in the transaction that is open."""

    def has_table(self, name: str) -> bool:
        """Whether there is a table of that name."""

    def shrink(self) -> None:
        """Give space that was freed back to the file system, as far as that is cheap."""

    def interrupt(self) -> None:
        """End what another thread is doing here, and allow nothing after it."""

    def close(self) -> None:
        """Close the connection."""

    def abandon(self) -> None:
        """In a forked child: let go of the connection without a word to the server."""


_Value = TypeVar("_Value", str, int)


def parts(values: Collection[_Value]) -> Iterator[list[_Value]]:
    """The values in lists that are short enough for one parameter of `many`."""
    some = list(values)
    for start in range(0, len(some), _MOST_VALUES):
        yield some[start : start + _MOST_VALUES]


def quoted(names: Iterable[str]) -> str:
    """A list of columns."""
    return ", ".join(f'"{name}"' for name in names)
