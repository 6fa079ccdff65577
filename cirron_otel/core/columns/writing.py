"""Add batches to tables: in groups, each as complete files (docs/columns.md)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from ... import exactjson
from ...errors import TargetError
from ..delivery.errors import UnreachableError
from .arrow import rows_of
from .batch_rows import batch_of
from .known_batches import KnownBatches, PartitionBatches
from .layout import EMPTY_GROUP, BatchGroup, Partition, new_group, partition_of
from .packed import PackedRows
from .parquet_files import ROW_GROUP_ROWS, write_table
from .places import Place, open_tables
from .reading import ColumnsReader, StoredBatch
from .schema import BATCHES, RECORD_TABLES, TABLES
from .store import TableStore

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """When a group is written, and the size of its row groups."""

    group_bytes: int = 64 * _MEBIBYTE
    """The size of a group's rows in memory."""
    open_bytes: int = 128 * _MEBIBYTE
    """The size of the rows of all groups in memory, after which the largest is written."""
    row_group_rows: int = ROW_GROUP_ROWS


_COMMIT_WITHIN_S = 3600.0
"""The time from the first file of a group to the last; files of abandoned groups are removed later.
"""


@dataclass(slots=True)
class _OpenGroup:
    """The batches of a partition that are not written yet."""

    batches: list[PackedRows] = field(default_factory=list)
    known: PartitionBatches = field(default_factory=PartitionBatches)
    bytes: int = 0


class ColumnsWriter:
    """Adds batches to tables, which it creates if needed.

    A batch is stored once. `add` keeps batches in memory until their group is large enough;
    `close` writes all groups. Methods raise TargetError if a file cannot be written, InputError if
    the tables are damaged, and an EndpointError if a server does not respond or refuses.
    """

    def __init__(
        self,
        place: Place,
        limits: WriterLimits = WriterLimits(),
        known: KnownBatches | None = None,
        *,
        wait_s: float = 0.0,
    ) -> None:
        """Exclude other writers of a directory, and remove what dead writers left.

        `known` are the batches that an earlier writer of this process has found; the tables are
        then used as that writer left them. Raises InputError for tables of another format
        version, and TargetError if another writer has not ended within `wait_s` seconds.
        """
        self._store = open_tables(place)
        self._limits = limits
        self._open: dict[Partition, _OpenGroup] = {}
        self.known = known or KnownBatches(self._store)
        self._resources = contextlib.ExitStack()
        self.files = 0
        """The number of files written."""
        self.bytes_written = 0
        with _writable(self._store):
            self._resources.enter_context(self._store.lock(wait_s))
            try:
                if known is None:
                    self._store.clean()
                    self._start()
            except BaseException:
                self._resources.close()
                raise

    def add(self, rows: PackedRows) -> bool:
        """Add the batches that the tables do not contain; return False if they contain all."""
        partition = partition_of(rows.run_id, rows.created_ns)
        group = self._open.get(partition) or _OpenGroup()
        known = self.known.of(partition), group.known
        names = dict(zip(rows.keys, rows.names, strict=True))
        new = [key for key in names if not any(bytes.fromhex(key) in each.keys for each in known)]
        if not new:
            return False
        rows = rows.of(new)
        if len(new) == 1:
            name = names[new[0]]
            is_used = any(hash(name) in each.names for each in known)
            if is_used and self._holds_equal(partition, name, rows):
                return False
        group = self._open.setdefault(partition, group)
        group.batches.append(rows)
        for key in new:
            group.known.add(bytes.fromhex(key), names[key])
        group.bytes += sum(batch.nbytes for batch in rows.tables.values())
        if group.bytes >= self._limits.group_bytes:
            self._flush(partition)
        while sum(each.bytes for each in self._open.values()) >= self._limits.open_bytes:
            self._flush(max(self._open, key=lambda each: self._open[each].bytes))
        return True

    def flush(self) -> None:
        """Write all groups."""
        for partition in list(self._open):
            self._flush(partition)

    def close(self) -> None:
        """Release the tables; groups that are not written are dropped."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()

    def _start(self) -> None:
        """Write the empty group if the tables are new, or check their version."""
        if self._store.has(BATCHES, EMPTY_GROUP):
            list(ColumnsReader(self._store).keys(EMPTY_GROUP))
        else:
            self._write(EMPTY_GROUP, {table: [] for table in TABLES})

    def _holds_equal(self, partition: Partition, name: str, rows: PackedRows) -> bool:
        """Return whether a batch of this name is equal as JSON, but has other bytes."""
        group = self._open.get(partition)
        if group is not None and hash(name) in group.known.names:
            self._flush(partition)
        value = exactjson.loads(_content(rows))
        reader = ColumnsReader(self._store)
        for each in sorted(self._store.groups(BATCHES, partition)):
            keys = frozenset(key for key, other in reader.keys(each) if other == name)
            for batch in reader.batches(each, keys) if keys else ():
                if isinstance(batch, StoredBatch) and exactjson.equal(
                    exactjson.loads(batch.data), value
                ):
                    return True
        return False

    def _flush(self, partition: Partition) -> None:
        """Write a group, without the batches that another writer has added meanwhile."""
        stored = self.known.refresh(partition).keys
        batches = []
        for rows in self._open.pop(partition).batches:
            new = [key for key in rows.keys if bytes.fromhex(key) not in stored]
            if new:
                batches.append(rows.of(new))
        if not batches:
            return
        times = [rows.created_ns for rows in batches if rows.created_ns is not None]
        group = new_group(partition, times)
        tables: dict[str, list[Any]] = {table: [] for table in TABLES}
        count = 0
        for rows in batches:
            for table, part in rows.tables.items():
                if table == BATCHES:
                    ordinals = range(count, count + len(rows.keys))
                    part = with_ordinals(part, pa.array(ordinals, pa.int32()))  # noqa: PLW2901
                if part.num_rows:
                    tables[table].append(part)
            count += len(rows.keys)
        self._write(group, {table: parts for table, parts in tables.items() if parts})
        self.known.added(
            group,
            (
                (bytes.fromhex(key), name)
                for rows in batches
                for key, name in zip(rows.keys, rows.names, strict=True)
            ),
        )

    def _write(self, group: BatchGroup, tables: dict[str, list[Any]]) -> None:
        with _writable(self._store):
            self.bytes_written += write_group(
                self._store, group, tables, self._limits.row_group_rows
            )
        self.files += len(tables)


def write_group(
    store: TableStore,
    group: BatchGroup,
    tables: Mapping[str, list[Any]],
    row_group_rows: int = ROW_GROUP_ROWS,
) -> int:
    """Write the files of a group, that of the batches last, which makes the group count.

    `tables` are the RecordBatches of each table. Returns the size of the files in bytes.
    """
    begun, size = time.monotonic(), 0
    for table in sorted(tables, key=lambda name: name == BATCHES):
        if time.monotonic() - begun > _COMMIT_WITHIN_S:
            raise UnreachableError(f"{store.shown}: a group took more than an hour: write it again")
        fill = partial(
            write_table, table=table, batches=tables[table], rows_per_group=row_group_rows
        )
        size += store.write(table, group, fill)
    return size


def with_ordinals(batches: Any, ordinals: Any) -> Any:
    """Replace the column `ordinal` of rows of the table of batches."""
    index = batches.schema.get_field_index("ordinal")
    return batches.set_column(index, batches.schema.field(index), ordinals)


def _content(rows: PackedRows) -> bytes:
    tables = {name: pa.Table.from_batches([batch]) for name, batch in rows.tables.items()}
    [header] = rows_of(tables[BATCHES])
    _, data = batch_of(header, {name: list(rows_of(tables[name])) for name in RECORD_TABLES})
    return data


@contextlib.contextmanager
def _writable(store: TableStore) -> Iterator[None]:
    """Convert the errors of files to TargetErrors."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        what = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise TargetError(
            f"{store.shown} cannot be written: {what}; free some space, or choose a directory that"
            " can be written"
        ) from error
