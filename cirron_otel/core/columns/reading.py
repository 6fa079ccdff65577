"""Read the tables of a directory: the groups, their batches, and the rows of one table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InputError
from ..records.findings import Finding
from .arrow import rows_of, schema_of
from .batch_rows import batch_of
from .layout import SUFFIX, BatchGroup, Partition, is_group_file, partition_at, partition_of
from .parquet_files import read_table
from .schema import BATCHES, RECORD_TABLES, TABLES, TIME_OF_TABLE

_EXPECTED = "expected a directory that `cirron-otel convert SRC parquet:DIR` wrote"
_NAMED_APART_DIGITS = 8
_MAX_DAYS = 16
"""How many days of keys are kept in memory."""


@dataclass(frozen=True, slots=True)
class RowSelect:
    """Criteria that select rows; None matches all."""

    run_id: str | None = None
    since_ns: int | None = None
    """Rows of this time (Unix ns) or later."""
    until_ns: int | None = None
    """Rows before this time (Unix ns)."""

    def may_match(self, partition: Partition) -> bool:
        """Return whether the rows of a partition may match by their run."""
        return self.run_id is None or partition.may_have(self.run_id)


class StoredBatch(NamedTuple):
    """A batch that was read from the tables."""

    name: str
    key: str
    data: bytes
    spans: int
    marks: int
    snapshots: int


class ColumnsReader:
    """Reads the tables of a directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Raises InputError if the directory has no tables."""
        self.directory = Path(directory)
        _check_directory(self.directory)

    def groups(self, select: RowSelect = RowSelect()) -> list[BatchGroup]:
        """Return the groups that count, in the order of time. Raises InputError."""
        found = committed_groups(self.directory)
        return sorted(
            (group for group in found if select.may_match(group.partition)),
            key=lambda group: group.order,
        )

    def groups_of_run(self, run: str | None) -> list[BatchGroup]:
        """Return the groups that may have batches of a run; all, if it is not the id of a run."""
        groups = self.groups()
        if run is not None and any(group.partition.is_of(run) for group in groups):
            return [group for group in groups if group.partition.may_have(run)]
        return groups

    def batches(
        self, group: BatchGroup, keys: frozenset[str] | None = None
    ) -> Iterator[StoredBatch | Finding]:
        """Yield the batches of a group, or those with some keys, in the order of their ordinals.

        A batch that is damaged is yielded as a Finding. Raises InputError if a file is.
        """
        headers = self._read(BATCHES, group)
        if keys is not None:
            wanted = pa.array(sorted(keys), pa.string())
            headers = headers.filter(pc.is_in(headers.column("batch_key"), wanted))
        headers = headers.sort_by("ordinal")
        batch_keys = headers.column("batch_key")
        slices = {
            table: _RowsByBatch(self._read(table, group), batch_keys)
            if pc.sum(headers.column(table)).as_py()
            else None
            for table in RECORD_TABLES
        }
        for number, header in enumerate(rows_of(headers)):
            tables = {
                table: [] if rows is None else rows.of(number) for table, rows in slices.items()
            }
            try:
                name, data = batch_of(header, tables)
            except InputError as error:
                where = self.directory / BATCHES / group.path
                yield Finding(str(where), "damaged", str(error), path=str(header["name"]))
            else:
                counts = (header[table] for table in RECORD_TABLES)
                yield StoredBatch(name, header["batch_key"], data, *counts)

    def keys(self, group: BatchGroup) -> Iterator[tuple[str, str]]:
        """Yield the key and the name, as its column has it, of each batch of a group."""
        table = self._read(BATCHES, group, ["batch_key", "name"])
        yield from zip(
            table.column("batch_key").to_pylist(), table.column("name").to_pylist(), strict=True
        )

    def headers(self, group: BatchGroup) -> Iterator[tuple[str, str, int]]:
        """Yield the key, the name as in its column, and the size of each batch of a group."""
        names = ["batch_key", "name", "size_bytes"]
        table = self._read(BATCHES, group, names)
        yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)

    def rows(
        self,
        table: str,
        select: RowSelect = RowSelect(),
        columns: list[str] | None = None,
    ) -> Any:
        """Return the rows of a table as an Arrow table, read from the files that may have some.

        Files are skipped by partition, and row groups by their statistics. Raises InputError.
        """
        try:
            return self.scan(table, select, columns).to_table()
        except (pa.ArrowException, OSError) as error:
            what = str(error).splitlines()[0]
            raise InputError(f"{self.directory / table} cannot be read: {what}") from None

    def scan(
        self,
        table: str,
        select: RowSelect = RowSelect(),
        columns: list[str] | None = None,
    ) -> Any:
        """Return a `pyarrow.dataset.Scanner` over the rows of a table, which reads them lazily."""
        import pyarrow.dataset as ds  # noqa: PLC0415 - takes long to import

        files = [
            str(path)
            for group in self.groups(select)
            if (path := self.directory / table / group.path).exists()
        ]
        dataset = ds.dataset(files, schema=schema_of(table), format="parquet")
        conditions = _conditions(table, select, ds.field)
        names = columns or [column.name for column in TABLES[table]]
        return dataset.scanner(columns=names, filter=conditions)

    def _read(self, table: str, group: BatchGroup, columns: list[str] | None = None) -> Any:
        path = self.directory / table / group.path
        try:
            return read_table(str(path), table, columns)
        except InputError as error:
            raise InputError(f"{path} cannot be read: {error}") from None


class StoredKeys:
    """The keys of the batches in the tables of a directory, read by day when they are needed."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """The directory need not exist."""
        self._batches = Path(directory) / BATCHES
        self._days: dict[str, frozenset[bytes]] = {}

    def has(self, key: str, created_ns: int) -> bool:
        """Return whether a batch is stored that was created at a time (Unix ns).

        A file that cannot be read has no keys.
        """
        date = partition_of(None, created_ns).date
        if date not in self._days:
            if len(self._days) >= _MAX_DAYS:
                self._days.clear()
            self._days[date] = frozenset(self._keys_of(date))
        return bytes.fromhex(key) in self._days[date]

    def _keys_of(self, date: str) -> Iterator[bytes]:
        for path in self._batches.glob(f"run=*/date={date}/*{SUFFIX}"):
            with contextlib.suppress(InputError):
                column = read_table(str(path), BATCHES, ["batch_key"]).column("batch_key")
                yield from map(bytes.fromhex, column.to_pylist())


class _RowsByBatch:
    """The rows of a table of one group, by the number of their batch."""

    def __init__(self, table: Any, keys: Any) -> None:
        """`keys` are the keys of the batches, in the order of their numbers."""
        numbers = pc.index_in(table.column("batch_key"), keys.combine_chunks())
        numbered = table.append_column("number", numbers)
        if numbers.null_count:
            numbered = numbered.filter(pc.is_valid(numbered.column("number")))
        self._rows = numbered.sort_by([("number", "ascending"), ("ordinal", "ascending")])
        counted = pc.value_counts(self._rows.column("number"))
        self._places: dict[int, tuple[int, int]] = {}
        start = 0
        for each in counted.to_pylist():
            self._places[each["values"]] = (start, each["counts"])
            start += each["counts"]

    def of(self, number: int) -> list[dict[str, Any]]:
        """Return the rows of a batch in the order of their ordinals."""
        start, count = self._places.get(number, (0, 0))
        return list(rows_of(self._rows.slice(start, count)))


def _conditions(table: str, select: RowSelect, column: Callable[[str], Any]) -> Any:
    time = column(TIME_OF_TABLE[table])
    conditions = []
    if select.run_id is not None:
        conditions.append(column("run_id") == select.run_id)
    if select.since_ns is not None:
        conditions.append(time >= select.since_ns)
    if select.until_ns is not None:
        conditions.append(time < select.until_ns)
    combined = None
    for condition in conditions:
        combined = condition if combined is None else combined & condition
    return combined


def committed_groups(directory: Path) -> Iterator[BatchGroup]:
    """Yield the groups that have a file in the table of batches. Raises InputError."""
    for group, _ in group_files(directory / BATCHES):
        yield group


def group_files(table: Path) -> Iterator[tuple[BatchGroup, Path]]:
    """Yield the files of a table with their groups; other files are ignored. Raises InputError."""
    try:
        for folder, _, names in os.walk(table, onerror=_raise):
            partition = partition_at(Path(folder).relative_to(table).as_posix())
            if partition is not None:
                for name in names:
                    if is_group_file(name):
                        yield BatchGroup(partition, name), Path(folder) / name
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{table} cannot be read: {error.strerror or error}") from None


def groups_in(directory: Path, partition: Partition) -> list[BatchGroup]:
    """Return the groups of one partition that count, in the order of time. Raises InputError."""
    folder = directory / BATCHES / partition.path
    try:
        names = sorted(path.name for path in folder.iterdir() if is_group_file(path.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror or error}") from None
    return [BatchGroup(partition, name) for name in names]


def _raise(error: OSError) -> None:
    raise error


def _check_directory(directory: Path) -> None:
    try:
        if not directory.is_dir():
            problem = "is not a directory" if directory.exists() else "does not exist"
            raise InputError(f"{directory} {problem}: {_EXPECTED}")
        if not (directory / BATCHES).is_dir():
            raise InputError(f"{directory} has no table {BATCHES}: {_EXPECTED}")
    except OSError as error:
        raise InputError(f"{directory} cannot be read: {error.strerror or error}") from None


def named_apart(name: str, key: str) -> str:
    """Return another name for a batch whose name another batch has."""
    return f"{name.removesuffix('.json')}.{key[:_NAMED_APART_DIGITS]}.json"
