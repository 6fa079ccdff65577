"""The rows of batches as Arrow data.

A worker process passes them as bytes to the process that writes files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from .arrow import record_batch, schema_of
from .batch_rows import BatchRows
from .schema import BATCHES


class PackedRows(NamedTuple):
    """The rows of one or more batches of a partition as Arrow data."""

    keys: tuple[str, ...]
    """The keys of the batches, in the order of their rows."""
    created_ns: int | None
    """The least time of the batches."""
    run_id: str | None
    tables: dict[str, Any]
    """A RecordBatch for each table."""

    @property
    def names(self) -> list[str]:
        """The names of the batches, as their column has them."""
        names: list[str] = self.tables[BATCHES].column("name").to_pylist()
        return names

    def of(self, keys: Collection[str]) -> PackedRows:
        """Return the rows of the batches with some keys."""
        if len(keys) == len(self.keys):
            return self
        wanted = pa.array(sorted(keys), pa.string())
        tables = {
            table: rows.filter(pc.is_in(rows.column("batch_key"), wanted))
            for table, rows in self.tables.items()
        }
        return self._replace(keys=tuple(key for key in self.keys if key in keys), tables=tables)


class _PackedMessage(msgspec.Struct, array_like=True):
    keys: tuple[str, ...]
    created_ns: int | None
    run_id: str | None
    tables: dict[str, bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_PackedMessage).decode


def arrow_rows(rows: BatchRows) -> PackedRows:
    """Convert the rows of a batch to Arrow data."""
    tables = {name: record_batch(name, columns) for name, columns in rows.tables.items()}
    return PackedRows((rows.key,), rows.created_ns, rows.run_id, tables)


def joined_rows(batches: Sequence[BatchRows]) -> PackedRows:
    """Convert the rows of batches of one partition to Arrow data."""
    first = batches[0]
    tables = {
        table: {
            column: list(chain.from_iterable(rows.tables[table][column] for rows in batches))
            for column in columns
        }
        for table, columns in first.tables.items()
    }
    times = [rows.created_ns for rows in batches if rows.created_ns is not None]
    return PackedRows(
        tuple(rows.key for rows in batches),
        min(times, default=None),
        first.run_id,
        {name: record_batch(name, columns) for name, columns in tables.items()},
    )


def pack(rows: PackedRows) -> bytes:
    """Return rows as bytes."""
    tables = {name: batch.serialize().to_pybytes() for name, batch in rows.tables.items()}
    return _encode(_PackedMessage(rows.keys, rows.created_ns, rows.run_id, tables))


def unpack(data: bytes) -> PackedRows:
    """Return the rows from the result of `pack`."""
    message = _decode(data)
    tables = {
        name: pa.ipc.read_record_batch(pa.py_buffer(part), schema_of(name))
        for name, part in message.tables.items()
    }
    return PackedRows(message.keys, message.created_ns, message.run_id, tables)
