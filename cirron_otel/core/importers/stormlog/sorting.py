"""Sort and keep rows in bounded memory: small amounts in a list, large ones in a temporary file."""

from __future__ import annotations

import bisect
import itertools
import marshal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from ...state_database import open_database
from ...temporary import writing_temporary_files

_SETTINGS: Final = ("journal_mode=OFF", "synchronous=OFF", "cache_size=-8000", "temp_store=FILE")
_PAGE: Final = 5_000
IDS_IN_MEMORY: Final = 200_000
Row = tuple[Any, ...]


class SortedRows:
    """Rows of integers, bytes and None, which are read in order, each distinct row once.

    The leading columns must decide the order before a None is compared. Raises sqlite3.Error if the
    temporary file cannot be used.
    """

    def __init__(self, folder: Path, name: str, *, in_memory: int = 50_000) -> None:
        """Keep up to `in_memory` rows in memory, and more in a file in `folder`."""
        self._path = folder / f"{name}.sqlite"
        self._in_memory = in_memory
        self._rows: list[Row] = []
        self._is_sorted = False
        self._database: sqlite3.Connection | None = None

    def add(self, row: Row) -> None:
        """Add a row; all rows have the same length."""
        self._rows.append(row)
        self._is_sorted = False
        if len(self._rows) >= (self._in_memory if self._database is None else _PAGE):
            self._spill()

    def _spill(self) -> None:
        columns = len(self._rows[0]) if self._rows else 0
        if self._database is None:
            self._database = open_database(self._path, *_SETTINGS)
            names = ",".join(f"c{number}" for number in range(columns))
            self._database.execute(f"CREATE TABLE rows ({names})")
            self._database.execute("BEGIN")
        if self._rows:
            marks = ",".join("?" * columns)
            query = f"INSERT INTO rows VALUES ({marks})"  # noqa: S608 - question marks
            self._database.executemany(query, self._rows)
            self._rows = []

    def rows(self, first: int | None = None) -> Iterator[Row]:
        """Yield the rows in order, or those whose first column is `first`."""
        if self._database is not None:
            self._spill()
            columns = self._database.execute("SELECT * FROM rows LIMIT 1").description
            order = ",".join(column[0] for column in columns)
            query = "SELECT DISTINCT * FROM rows"
            if first is not None:
                self._database.execute("CREATE INDEX IF NOT EXISTS by_first ON rows (c0)")
                query += f" WHERE c0 = {first:d}"
            yield from self._database.execute(f"{query} ORDER BY {order}")
            return
        if not self._is_sorted:
            self._rows.sort()
            self._is_sorted = True
        begin = 0 if first is None else bisect.bisect_left(self._rows, (first,))
        previous: Row | None = None
        for row in itertools.islice(self._rows, begin, None):
            if first is not None and row[0] != first:
                return
            if row != previous:
                yield row
            previous = row

    def close(self) -> None:
        """Close the temporary file, which the owner of its folder removes."""
        if self._database is not None:
            self._database.close()


class Chunks:
    """Lists of plain values that are read back in order; large amounts go to a temporary file."""

    def __init__(self, path: Path, *, in_memory_bytes: int = 48 * 2**20) -> None:
        """Keep up to about `in_memory_bytes` in memory."""
        self._path = path
        self._left = in_memory_bytes
        self._chunks: list[Any] = []
        """Each chunk, or None for one that is in the file."""
        self._file: BinaryIO | None = None

    def append(self, chunk: Any, size: int) -> None:
        """Add a chunk of about `size` bytes."""
        if size <= self._left:
            self._left -= size
            self._chunks.append(chunk)
            return
        with writing_temporary_files():
            if self._file is None:
                self._file = self._path.open("w+b")
            marshal.dump(chunk, self._file)
        self._chunks.append(None)

    def __iter__(self) -> Iterator[Any]:
        """Yield each chunk once; the memory of a chunk is freed when the next one is read."""
        if self._file is not None:
            self._file.seek(0)
        for number, chunk in enumerate(self._chunks):
            if chunk is None and self._file is not None:
                yield marshal.load(self._file)  # noqa: S302 - this object wrote the file
            else:
                yield chunk
                self._chunks[number] = ()

    def close(self) -> None:
        """Close the temporary file, which the owner of its folder removes."""
        if self._file is not None:
            self._file.close()


class SeenIds:
    """The 16-byte ids that were seen, and where last, in bounded memory."""

    def __init__(self, folder: Path) -> None:
        """Keep up to `IDS_IN_MEMORY` ids in memory, and more in a file in `folder`."""
        self._path = folder / "seen.sqlite"
        self._in_memory = IDS_IN_MEMORY
        self._ids: dict[bytes, int] = {}
        self._database: sqlite3.Connection | None = None

    def visit(self, some_id: bytes, place: int, *, only_new: bool = False) -> int | None:
        """Record that an id was seen at a place; return the previous place, None if it is new.

        With `only_new`, an id that is known stays where it was seen.
        """
        previous = self._ids.get(some_id)
        if previous is None:
            previous = self._stored(some_id)
        if previous != place and (previous is None or not only_new):
            self._ids[some_id] = place
            if len(self._ids) >= self._in_memory:
                self._spill()
        return previous

    def add_new(self, ids: list[bytes], place: int) -> bool:
        """Record that ids were seen at a place if all of them are new; return whether they are."""
        new = dict.fromkeys(ids, place)
        if len(new) != len(ids) or not self._ids.keys().isdisjoint(ids):
            return False
        if self._database is not None and any(self._stored(each) is not None for each in ids):
            return False
        self._ids |= new
        if len(self._ids) >= self._in_memory:
            self._spill()
        return True

    def _stored(self, some_id: bytes) -> int | None:
        if self._database is None:
            return None
        query = "SELECT place FROM seen WHERE id = ?"
        row = self._database.execute(query, (some_id,)).fetchone()
        return None if row is None else row[0]

    def _spill(self) -> None:
        if self._database is None:
            self._database = open_database(self._path, *_SETTINGS)
            table = "CREATE TABLE seen (id BLOB PRIMARY KEY, place INTEGER) WITHOUT ROWID"
            self._database.execute(table)
            self._database.execute("BEGIN")
        rows = sorted(self._ids.items())
        self._database.executemany("INSERT OR REPLACE INTO seen VALUES (?,?)", rows)
        self._ids.clear()

    def close(self) -> None:
        """Close the temporary file, which the owner of its folder removes."""
        if self._database is not None:
            self._database.close()
