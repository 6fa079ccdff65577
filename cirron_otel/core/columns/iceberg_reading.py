"""Read batches from Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..records.findings import Finding
from .arrow import schema_of
from .iceberg_catalog import IcebergCatalog
from .reading import StoredBatch, batches_of
from .schema import BATCHES, RECORD_TABLES


class IcebergReader:
    """Reads the batches that count, file by file."""

    def __init__(self, url: str) -> None:
        """Raises UsageError, MissingExtraError, EndpointError, and InputError without tables."""
        self._catalog = IcebergCatalog(url)
        self._catalog.check()

    def batches(self) -> Iterator[StoredBatch | Finding]:
        """Yield the batches in the order of time, those of a file of batches together.

        Only the record files that have rows of these are in memory. A damaged batch is yielded as a
        Finding.
        """
        with self._catalog.errors():
            # The batches first: the records of each batch that counts are then visible.
            headers = _FileRows(self._catalog.table(BATCHES))
            records = {table: _FileRows(self._catalog.table(table)) for table in RECORD_TABLES}
            where = f"{self._catalog.place.shown} {self._catalog.place.namespace}"
            parts = [headers.read(number) for number in range(len(headers))]
            parts.sort(key=lambda part: pc.min(part.column("created_ns")).as_py() or 0)
            for part in parts:
                keys = part.column("batch_key").combine_chunks()
                rows = {table: records[table].of(keys) for table in RECORD_TABLES}
                yield from batches_of(part, rows.__getitem__, where)

    def close(self) -> None:
        """Close the connections."""
        self._catalog.close()


class _FileRows:
    """The rows of a table, by data file."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._tasks = list(table.scan().plan_files())
        self._keys = [self._read(task, ("batch_key",)) for task in self._tasks]

    def __len__(self) -> int:
        return len(self._tasks)

    def read(self, number: int) -> Any:
        """Return the rows of a file."""
        return self._read(self._tasks[number], ("*",))

    def of(self, keys: Any) -> Any:
        """Return the rows of batches."""
        parts = [schema_of(self._table.name()[-1]).empty_table()]
        for number, in_file in enumerate(self._keys):
            if pc.any(pc.is_in(in_file.column("batch_key"), keys)).as_py():
                rows = self.read(number)
                parts.append(rows.filter(pc.is_in(rows.column("batch_key"), keys)))
        return pa.concat_tables(parts)

    def _read(self, task: Any, columns: tuple[str, ...]) -> Any:
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - an extra
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415

        scan = self._table.scan(selected_fields=columns)
        found = ArrowScan(
            self._table.metadata, self._table.io, scan.projection(), AlwaysTrue()
        ).to_table([task])
        schema = schema_of(self._table.name()[-1])
        names = [name for name in schema.names if name in found.column_names]
        return found.select(names).cast(pa.schema([schema.field(name) for name in names]))
