"""Read batches from Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InputError
from ..records.problems import ReadingProblem
from .arrow import schema_of
from .iceberg_catalog import IcebergCatalog
from .parquet_files import check_rows
from .reading import StoredBatch, batches_of
from .schema import BATCHES, RECORD_TABLES


class IcebergReader:
    """Reads the batches that count, file by file."""

    def __init__(self, url: str) -> None:
        """Raises UsageError, MissingExtraError, EndpointError, and InputError without tables."""
        self._catalog = IcebergCatalog(url, creates=False)
        try:
            self._catalog.check()
        except BaseException:
            self._catalog.close()
            raise

    def batches(self) -> Iterator[StoredBatch | ReadingProblem]:
        """Yield the batches in the order of time, those of a file of batches together.

        Only the record files that have rows of these are in memory. A damaged batch is yielded as a
        ReadingProblem.
        """
        with self._catalog.errors():
            # The batches first: the records of each batch that counts are then visible.
            headers = _FileRows(self._catalog.table(BATCHES))
            records = {table: _FileRows(self._catalog.table(table)) for table in RECORD_TABLES}
            where = f"{self._catalog.place.shown} {self._catalog.place.namespace}"
            for files in (headers, *records.values()):
                yield from files.findings
            parts = headers.all()
            parts.sort(key=lambda part: pc.min(part.column("created_ns")).as_py() or 0)
            for part in parts:
                keys = part.column("batch_key").combine_chunks()
                try:
                    rows = {table: records[table].of(keys) for table in RECORD_TABLES}
                except InputError as error:
                    yield ReadingProblem(where, "unreadable", str(error))
                else:
                    yield from batches_of(part, rows.__getitem__, where)

    def close(self) -> None:
        """Close the connections."""
        self._catalog.close()


class _FileRows:
    """The rows of a table, by data file."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._files: list[tuple[Any, Any]] = []
        """The files that can be read, with the keys of their rows."""
        self.findings: list[ReadingProblem] = []
        """The files that cannot be read."""
        for task in table.scan().plan_files():
            try:
                self._files.append((task, self._read(task, ("batch_key",))))
            except InputError as error:
                self.findings.append(ReadingProblem(task.file.file_path, "unreadable", str(error)))

    def all(self) -> list[Any]:
        """Return the rows of each file."""
        return [self._read(task, ("*",)) for task, _ in self._files]

    def of(self, keys: Any) -> Any:
        """Return the rows of batches."""
        parts = [schema_of(self._table.name()[-1]).empty_table()]
        for task, in_file in self._files:
            if pc.any(pc.is_in(in_file.column("batch_key"), keys)).as_py():
                rows = self._read(task, ("*",))
                parts.append(rows.filter(pc.is_in(rows.column("batch_key"), keys)))
        return pa.concat_tables(parts)

    def _read(self, task: Any, columns: tuple[str, ...]) -> Any:
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - an extra
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415

        projection = self._table.scan(selected_fields=columns).projection()
        scan = ArrowScan(self._table.metadata, self._table.io, projection, AlwaysTrue())
        schema = schema_of(self._table.name()[-1])
        try:
            found = scan.to_table([task])
            names = [name for name in schema.names if name in found.column_names]
            fields = pa.schema([schema.field(name) for name in names])
            rows = found.select(names).cast(fields)
            check_rows(rows, self._table.name()[-1])
        except (pa.ArrowException, OSError, ValueError, InputError) as error:
            what = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise InputError(f"{task.file.file_path} cannot be read: {what}") from None
        return rows
