"""Read tables: the groups, their batches, and the rows of one table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InputError
from ..records.problems import ReadingProblem
from .arrow import rows_of, schema_of
from .batch_rows import batch_of
from .layout import BatchGroup, Partition, partition_of
from .parquet_files import RowGroupFilter, read_table
from .places import Place, open_tables
from .schema import BATCHES, RECORD_TABLES, TABLES, TIME_OF_TABLE
from .store import TableStore

_NAMED_APART_DIGITS = 8
_LISTINGS = 5
"""How often groups that are replaced meanwhile are listed again."""
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
    """Reads the tables at a place.

    While others write, a group may be replaced by another with the same batches. A reader reads
    `groups` again until it contains no new ones, and reads each batch once, by its key.
    """

    def __init__(self, place: Place) -> None:
        """Raises InputError if there are no tables."""
        self._store = open_tables(place)
        self._store.check()

    def groups(self, select: RowSelect = RowSelect()) -> list[BatchGroup]:
        """Return the groups that count, in the order of time. Raises InputError."""
        return sorted(
            (g for g in self._store.groups(BATCHES) if select.may_match(g.partition)),
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
    ) -> Iterator[StoredBatch | ReadingProblem]:
        """Yield the batches of a group, or those with some keys, in the order of their ordinals.

        A batch that is damaged is yielded as a ReadingProblem. Raises InputError if a file is.
        """
        headers = self._read(BATCHES, group)
        if keys is not None:
            wanted = pa.array(sorted(keys), pa.string())
            headers = headers.filter(pc.is_in(headers.column("batch_key"), wanted))
        where = f"{self._store.shown}/{BATCHES}/{group.path}"
        yield from batches_of(headers, lambda table: self._read(table, group), where)

    def counts(self, group: BatchGroup) -> bool:
        """Return whether a group counts, and has not been replaced meanwhile."""
        return self._store.has(BATCHES, group)

    def check_absent(self, table: str, group: BatchGroup) -> None:
        """Raise InputError if a group that has no file in a table should have one."""
        if table in RECORD_TABLES:
            counts = self._read(BATCHES, group, [table]).column(table)
            if not pc.sum(counts).as_py():
                return
        raise InputError(
            f"{self._store.shown}/{table}/{group.path} is missing: run the command again;"
            " if that fails, remove the tables and convert the recording again"
        )

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

        Files are skipped by partition, and row groups by their statistics. Raises InputError, which
        names the file that is damaged.
        """
        try:
            return self.scan(table, select, columns).to_table()
        except (pa.ArrowException, OSError) as error:
            for group in self.groups(select):
                if self._store.has(table, group):
                    self._read(table, group)
            what = str(error).splitlines()[0]
            raise InputError(f"{self._store.shown}/{table} cannot be read: {what}") from None

    def scan(
        self,
        table: str,
        select: RowSelect = RowSelect(),
        columns: list[str] | None = None,
    ) -> Any:
        """Return a `pyarrow.dataset.Scanner` over the rows of a table, which reads them lazily.

        If a compaction replaces groups meanwhile, the groups are listed again. Raises InputError if
        a file with rows is missing.
        """
        for _ in range(_LISTINGS):
            groups = self.groups(select)
            try:
                return self._scan(table, groups, select, columns)
            except InputError:
                if all(map(self.counts, groups)):
                    raise
        return self._scan(table, self.groups(select), select, columns)

    def _scan(
        self, table: str, groups: list[BatchGroup], select: RowSelect, columns: list[str] | None
    ) -> Any:
        import pyarrow.dataset as ds  # noqa: PLC0415 - takes long to import

        stored = set(self._store.groups(table))
        present = self._present(table, groups, stored)
        repeated = self._repeated(groups)
        conditions = _conditions(table, select, ds.field)
        names = columns or [column.name for column in TABLES[table]]
        if repeated or not self._store.has_paths:
            needed = {*names, "batch_key", "run_id", TIME_OF_TABLE[table]}
            rows = self._unrepeated(table, present, repeated, select, needed)
            return ds.Scanner.from_batches(
                rows, schema=_schema_of(table, needed), columns=names, filter=conditions
            )
        files = [self._store.source(table, group) for group in present]
        parquet = ds.ParquetFileFormat(page_checksum_verification=True)
        dataset = ds.dataset(files, schema=schema_of(table), format=parquet)
        return dataset.scanner(columns=names, filter=conditions)

    def _present(
        self, table: str, groups: list[BatchGroup], stored: Collection[BatchGroup]
    ) -> list[BatchGroup]:
        """Return the groups that have rows in a table. Raises InputError if a file is missing."""
        for group in groups:
            if group not in stored:
                self.check_absent(table, group)
        return [group for group in groups if group in stored]

    def _repeated(self, groups: list[BatchGroup]) -> dict[BatchGroup, set[str]]:
        """Return the keys of each group that an earlier group has, too."""
        repeated: dict[BatchGroup, set[str]] = {}
        by_partition = sorted(groups, key=lambda group: (group.partition, group.file))
        for _, some in groupby(by_partition, key=lambda group: group.partition):
            first, *others = some
            seen = {key for key, _ in self.keys(first)} if others else set()
            for group in others:
                keys = {key for key, _ in self.keys(group)}
                if again := keys & seen:
                    repeated[group] = again
                seen |= keys
        return repeated

    def _unrepeated(
        self,
        table: str,
        groups: list[BatchGroup],
        repeated: dict[BatchGroup, set[str]],
        select: RowSelect,
        columns: Collection[str],
    ) -> Iterator[Any]:
        """Yield the rows of groups, without those of `repeated`.

        If a compaction replaces a group meanwhile, the groups are listed again; of those that are
        new, batches that were read count no more.
        """
        is_wanted = partial(_may_match, select, TIME_OF_TABLE[table])
        names = _schema_of(table, columns).names
        waiting, listed = groups[::-1], set(groups)
        read: set[str] = set()
        is_replaced = False
        while waiting:
            group = waiting.pop()
            try:
                rows = read_group(self._store, table, group, names, is_wanted)
            except InputError:
                if self.counts(group):
                    raise
                is_replaced, now = True, self.groups(select)
                new = [each for each in now if each not in listed]
                listed.update(new)
                some = [each for each in now if each in {*new, *waiting}]
                repeated = self._repeated(some)
                waiting = self._present(table, some, set(self._store.groups(table)))[::-1]
                continue
            keys = repeated.get(group, set()) | (read if is_replaced else set())
            if keys:
                again = pc.is_in(rows.column("batch_key"), pa.array(sorted(keys), pa.string()))
                rows = rows.filter(pc.invert(again))
            read.update(pc.unique(rows.column("batch_key")).to_pylist())
            yield from rows.to_batches()

    def _read(self, table: str, group: BatchGroup, columns: list[str] | None = None) -> Any:
        return read_group(self._store, table, group, columns)


def batches_of(
    headers: Any, rows_of_table: Callable[[str], Any], where: str
) -> Iterator[StoredBatch | ReadingProblem]:
    """Yield the batches of some rows of the table of batches, in the order of their ordinals.

    `rows_of_table` returns the rows of these batches, and maybe others. `where` is their location.
    """
    headers = headers.sort_by("ordinal")
    batch_keys = headers.column("batch_key")
    slices = {
        table: _RowsByBatch(rows_of_table(table), batch_keys)
        if pc.sum(headers.column(table)).as_py()
        else None
        for table in RECORD_TABLES
    }
    for number, header in enumerate(rows_of(headers)):
        tables = {table: [] if rows is None else rows.of(number) for table, rows in slices.items()}
        try:
            name, data = batch_of(header, tables)
        except InputError as error:
            yield ReadingProblem(where, "damaged", str(error), path=str(header["name"]))
        else:
            counts = (header[table] for table in RECORD_TABLES)
            yield StoredBatch(name, header["batch_key"], data, *counts)


class StoredKeys:
    """The keys of the batches in tables, read by day when they are needed."""

    def __init__(self, place: Place) -> None:
        """The tables need not exist."""
        self._store = open_tables(place)
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
        for group in self._store.groups(BATCHES, date=date):
            with contextlib.suppress(InputError):
                column = read_group(self._store, BATCHES, group, ["batch_key"]).column("batch_key")
                yield from map(bytes.fromhex, column.to_pylist())


def read_group(
    store: TableStore,
    table: str,
    group: BatchGroup,
    columns: list[str] | None = None,
    is_wanted: RowGroupFilter | None = None,
) -> Any:
    """Read the columns of a group's file, by default all; see `read_table`. Raises InputError."""
    try:
        source = store.source(table, group, is_partial=columns is not None)
        return read_table(source, table, columns, is_wanted)
    except InputError as error:
        path = f"{store.shown}/{table}/{group.path}"
        raise InputError(f"{path} cannot be read: {error}") from None


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


def _schema_of(table: str, columns: Collection[str]) -> Any:
    """Return the schema of some columns of a table, in the order of the table."""
    return pa.schema([field for field in schema_of(table) if field.name in columns])


def _may_match(select: RowSelect, time: str, statistics: Mapping[str, Any]) -> bool:
    """Return whether a row group with some statistics may have rows that `select` matches.

    A column without statistics has only nulls, or values that are too long.
    """
    runs, times = statistics.get("run_id"), statistics.get(time)
    run_id, since_ns, until_ns = select.run_id, select.since_ns, select.until_ns
    return (
        (run_id is None or runs is None or runs.min <= run_id <= runs.max)
        and (since_ns is None or times is None or times.max >= since_ns)
        and (until_ns is None or times is None or times.min < until_ns)
    )


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


def committed_groups(place: Place) -> Iterator[BatchGroup]:
    """Yield the groups that have a file in the table of batches. Raises InputError."""
    return open_tables(place).groups(BATCHES)


def named_apart(name: str, key: str) -> str:
    """Return another name for a batch whose name another batch has."""
    return f"{name.removesuffix('.json')}.{key[:_NAMED_APART_DIGITS]}.json"
