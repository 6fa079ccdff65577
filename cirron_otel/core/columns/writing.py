"""Add batches to the tables of a directory: in groups, each as complete files (docs/columns.md)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from ... import exactjson
from ...errors import InputError, TargetError
from ..atomic_files import replacing_file
from ..spool.directories import make_private
from .arrow import rows_of
from .batch_rows import batch_of
from .layout import (
    EMPTY_GROUP,
    LOCK,
    WRITING,
    BatchGroup,
    Partition,
    group_of,
    partition_of,
)
from .packed import PackedRows
from .parquet_files import ROW_GROUP_ROWS, write_table
from .reading import ColumnsReader, StoredBatch, committed_groups, group_files, groups_in
from .schema import BATCHES, RECORD_TABLES, TABLES

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """When a group is written, and the size of its row groups."""

    group_bytes: int = 64 * _MEBIBYTE
    """The size of a group's rows in memory."""
    open_bytes: int = 128 * _MEBIBYTE
    """The size of the rows of all groups in memory, after which the largest is written."""
    row_group_rows: int = ROW_GROUP_ROWS


@dataclass(slots=True)
class _OpenGroup:
    """The batches of a partition that are not written yet."""

    batches: list[PackedRows] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    bytes: int = 0


@dataclass(slots=True)
class _Stored:
    """The batches that a partition contains, in files or in an open group."""

    keys: set[bytes] = field(default_factory=set)
    names: set[int] = field(default_factory=set)
    """The hashes of their names."""


class ColumnsWriter:
    """Adds batches to the tables of a directory, which it creates if needed.

    A batch is stored once. `add` keeps batches in memory until their group is large enough;
    `close` writes all groups. Methods raise TargetError if a file cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        limits: WriterLimits = WriterLimits(),
        *,
        waits: bool = False,
    ) -> None:
        """Lock the directory, and remove what a dead writer left.

        Raises TargetError if another process writes there, unless it `waits` until that has ended,
        or if the directory has tables of another format version.
        """
        self._root = Path(directory)
        self._limits = limits
        self._open: dict[Partition, _OpenGroup] = {}
        self._stored: dict[Partition, _Stored] = {}
        self.files = 0
        """The number of files written."""
        self.bytes_written = 0
        with _writable(self._root):
            make_private(self._root / WRITING)
            self._lock = _locked(self._root / WRITING / LOCK, waits=waits)
            try:
                self._clean()
                self._start()
            except BaseException:
                os.close(self._lock)
                raise

    def add(self, rows: PackedRows) -> bool:
        """Add a batch; return False if the tables contain it already."""
        partition = partition_of(rows.run_id, rows.created_ns)
        stored = self._stored_in(partition)
        key = bytes.fromhex(rows.key)
        if key in stored.keys:
            return False
        name = rows.tables[BATCHES].column("name")[0].as_py()
        if hash(name) in stored.names and self._holds_equal(partition, name, rows):
            return False
        stored.keys.add(key)
        stored.names.add(hash(name))
        group = self._open.setdefault(partition, _OpenGroup())
        group.batches.append(rows)
        group.names.add(name)
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
        """Release the directory; groups that are not written are dropped."""
        os.close(self._lock)

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

    def _clean(self) -> None:
        """Remove unfinished files, and the files of groups that do not count."""
        for path in (self._root / WRITING).iterdir():
            if path.name != LOCK:
                path.unlink()
        counted = {group.path for group in committed_groups(self._root)}
        for table in TABLES:
            for group, path in group_files(self._root / table):
                if group.path not in counted:
                    path.unlink()

    def _start(self) -> None:
        """Write the empty group if the directory is new, or check its version."""
        if (self._root / BATCHES / EMPTY_GROUP.path).exists():
            list(ColumnsReader(self._root).keys(EMPTY_GROUP))
        else:
            self._write(EMPTY_GROUP, {table: [] for table in TABLES})

    def _stored_in(self, partition: Partition) -> _Stored:
        stored = self._stored.get(partition)
        if stored is None:
            stored = self._stored[partition] = _Stored()
            for key, name in self._keys_in(partition):
                stored.keys.add(bytes.fromhex(key))
                stored.names.add(hash(name))
        return stored

    def _keys_in(self, partition: Partition) -> Iterator[tuple[str, str]]:
        reader = ColumnsReader(self._root)
        for group in groups_in(self._root, partition):
            yield from reader.keys(group)

    def _holds_equal(self, partition: Partition, name: str, rows: PackedRows) -> bool:
        """Return whether a batch of this name is equal as JSON, but has other bytes."""
        if name in self._open.get(partition, _OpenGroup()).names:
            self._flush(partition)
        value = exactjson.loads(_content(rows))
        reader = ColumnsReader(self._root)
        for group in groups_in(self._root, partition):
            keys = frozenset(key for key, each in reader.keys(group) if each == name)
            for batch in reader.batches(group, keys) if keys else ():
                if isinstance(batch, StoredBatch) and exactjson.equal(
                    exactjson.loads(batch.data), value
                ):
                    return True
        return False

    def _flush(self, partition: Partition) -> None:
        open_group = self._open.pop(partition)
        batches = open_group.batches
        times = [rows.created_ns for rows in batches if rows.created_ns is not None]
        group = group_of(partition, (rows.key for rows in batches), times)
        tables: dict[str, list[Any]] = {table: [] for table in TABLES}
        for number, rows in enumerate(batches):
            for table, part in rows.tables.items():
                if table == BATCHES:
                    ordinals = pa.array([number], pa.int32())
                    index = part.schema.get_field_index("ordinal")
                    part = part.set_column(index, part.schema.field(index), ordinals)  # noqa: PLW2901
                if part.num_rows:
                    tables[table].append(part)
        self._write(group, {table: parts for table, parts in tables.items() if parts})

    def _write(self, group: BatchGroup, tables: dict[str, list[Any]]) -> None:
        """Write the files of a group, that of the batches last, which makes the group count."""
        with _writable(self._root):
            for table in sorted(tables, key=lambda name: name == BATCHES):
                path = self._root / table / group.path
                make_private(path.parent)
                tmp = self._root / WRITING / f"{table}-{group.file}"
                with (
                    replacing_file(path, tmp) as descriptor,
                    open(descriptor, "wb", closefd=False) as file,
                ):
                    write_table(file, table, tables[table], self._limits.row_group_rows)
                    self.bytes_written += file.tell()
                self.files += 1


def _content(rows: PackedRows) -> bytes:
    tables = {name: pa.Table.from_batches([batch]) for name, batch in rows.tables.items()}
    [header] = rows_of(tables[BATCHES])
    _, data = batch_of(header, {name: list(rows_of(tables[name])) for name in RECORD_TABLES})
    return data


def _locked(path: Path, *, waits: bool) -> int:
    """Lock a file, and return its descriptor. Raises TargetError if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise TargetError(
            f"{path} is locked: another process writes there; try again when it has ended"
        ) from None
    except OSError:
        pass  # a file system without locks
    return descriptor


@contextlib.contextmanager
def _writable(directory: Path) -> Iterator[None]:
    """Convert the errors of files to TargetErrors."""
    try:
        yield
    except InputError as error:
        raise TargetError(f"{error}; name another directory") from None
    except (OSError, pa.ArrowException) as error:
        what = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise TargetError(
            f"{directory} cannot be written: {what}; free some space, or choose a directory that"
            " can be written"
        ) from error
