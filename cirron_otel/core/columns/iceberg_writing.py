"""Add batches to Iceberg tables: a batch counts when its row is in the table of batches."""

from __future__ import annotations

import json
import os
import warnings
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import TargetError
from ..spool.state import lock_named
from .arrow import schema_of
from .iceberg_catalog import IcebergCatalog
from .packed import PackedRows
from .schema import BATCHES, TABLES, TIME_OF_TABLE
from .writing import WriterLimits, with_ordinals

_PENDING = "cirron.pending"
"""The property of the table of batches with the keys of the batches that are being added."""


class IcebergWriter:
    """Adds batches to the tables of a catalog, which it creates if needed.

    One process at a time writes. If it is killed, the next one removes the rows of the batches that
    do not count. Methods raise TargetError and EndpointError.
    """

    def __init__(self, url: str, limits: WriterLimits | None = None) -> None:
        """Exclude other writers, and remove what a dead writer left.

        Raises UsageError, MissingExtraError, InputError for tables of another version, and
        TargetError if another process writes.
        """
        self._catalog = IcebergCatalog(url)
        self._limits = limits or WriterLimits()
        self._batches: list[PackedRows] = []
        self._bytes = 0
        self.files = 0
        """The number of commits that added rows."""
        self.bytes_written = 0
        """The bytes of the data files that were added."""
        self._lock: Any = None
        try:
            self._exclude_others()
            self._catalog.create()
            self._recover()
            columns = ("batch_key",)
            with self._catalog.errors():
                stored = self._catalog.table(BATCHES).scan(selected_fields=columns).to_arrow()
        except BaseException:
            self.close()
            raise
        self._keys = set(map(bytes.fromhex, stored.column("batch_key").to_pylist()))

    def add(self, rows: PackedRows) -> bool:
        """Add batches that the tables do not contain; return False if they contain all."""
        new = [key for key in rows.keys if bytes.fromhex(key) not in self._keys]
        if not new:
            return False
        self._keys.update(map(bytes.fromhex, new))
        rows = rows.of(new)
        self._batches.append(rows)
        self._bytes += sum(batch.nbytes for batch in rows.tables.values())
        if self._bytes >= self._limits.group_bytes:
            self.flush()
        return True

    def flush(self) -> None:
        """Add the waiting batches: first the records, and then, in one commit, the batches."""
        batches, self._batches, self._bytes = self._batches, [], 0
        if not batches:
            return
        with self._catalog.errors():
            headers = self._catalog.table(BATCHES)
            with headers.transaction() as change:
                change.set_properties(
                    {_PENDING: json.dumps([key for rows in batches for key in rows.keys])}
                )
            for table in TABLES:
                if table != BATCHES:
                    rows = _sorted(table, [each.tables[table] for each in batches])
                    if rows.num_rows:
                        of_table = self._catalog.table(table)
                        of_table.append(rows)
                        self._count(of_table)
            rows = _sorted(BATCHES, [each.tables[BATCHES] for each in batches])
            headers = self._catalog.table(BATCHES)
            with headers.transaction() as change:
                change.append(rows)
                change.remove_properties(_PENDING)
            self._count(headers)

    def _count(self, table: Any) -> None:
        """Count the last commit, which added rows to a table."""
        self.files += 1
        self.bytes_written += int(table.current_snapshot().summary["added-files-size"])

    def close(self) -> None:
        """Release the tables; batches that wait are dropped."""
        if isinstance(self._lock, int):
            os.close(self._lock)
        elif self._lock is not None:
            self._lock.close()
        self._lock = None
        self._catalog.close()

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

    def _exclude_others(self) -> None:
        """Lock a file beside an SQLite file, or take an advisory lock of PostgreSQL."""
        place = self._catalog.place
        if place.file is not None:
            self._lock = lock_named(place.file.with_name(f"{place.file.name}.lock"))
            is_held = self._lock is not None
        else:
            from sqlalchemy import text  # noqa: PLC0415 - an extra

            self._lock = self._catalog.connection()
            number = crc32(f"cirron-otel iceberg {place.namespace}".encode())
            with self._catalog.errors():
                statement = text("SELECT pg_try_advisory_lock(:number)")
                is_held = self._lock.execute(statement, {"number": number}).scalar()
        if not is_held:
            raise TargetError(
                f"{place.shown}: another process writes the tables of {place.namespace}; try again"
                " when it has ended"
            )

    def _recover(self) -> None:
        """Remove the rows of batches that a dead writer was adding."""
        batches = self._catalog.table(BATCHES)
        pending = batches.properties.get(_PENDING)
        if pending is None:
            return
        keys = ", ".join(f"'{key}'" for key in json.loads(pending))
        with self._catalog.errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a table that has none of the rows
            for table in TABLES:
                if table != BATCHES:
                    self._catalog.table(table).delete(f"batch_key IN ({keys})")
            with batches.transaction() as change:
                change.remove_properties(_PENDING)


def _sorted(table: str, batches: list[Any]) -> Any:
    rows = pa.Table.from_batches(batches, schema=schema_of(table))
    if table == BATCHES:
        rows = with_ordinals(rows, pa.array(range(rows.num_rows), pa.int32()))
    return rows.take(pc.sort_indices(rows.column(TIME_OF_TABLE[table])))
