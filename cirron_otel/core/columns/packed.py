"""The rows of a batch as bytes, which a worker process passes to the process that writes files."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from .arrow import record_batch, schema_of
from .batch_rows import BatchRows


class PackedRows(NamedTuple):
    """The rows of a batch as Arrow data."""

    key: str
    created_ns: int | None
    run_id: str | None
    tables: dict[str, Any]
    """A RecordBatch for each table."""


class _PackedMessage(msgspec.Struct, array_like=True):
    key: str
    created_ns: int | None
    run_id: str | None
    tables: dict[str, bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_PackedMessage).decode


def arrow_rows(rows: BatchRows) -> PackedRows:
    """Convert the rows of a batch to Arrow data."""
    tables = {name: record_batch(name, columns) for name, columns in rows.tables.items()}
    return PackedRows(rows.key, rows.created_ns, rows.run_id, tables)


def pack(rows: PackedRows) -> bytes:
    """Return the rows of a batch as bytes."""
    tables = {name: batch.serialize().to_pybytes() for name, batch in rows.tables.items()}
    return _encode(_PackedMessage(rows.key, rows.created_ns, rows.run_id, tables))


def unpack(data: bytes) -> PackedRows:
    """Return the rows of a batch from the result of `pack`."""
    message = _decode(data)
    tables = {
        name: pa.ipc.read_record_batch(pa.py_buffer(part), schema_of(name))
        for name, part in message.tables.items()
    }
    return PackedRows(message.key, message.created_ns, message.run_id, tables)
