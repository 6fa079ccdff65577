"""Seal the records of an imported recording as a batch."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import orjson

from ..._version import SDK_VERSION
from ...ids import uuid4_shaped
from ..spool.paths import file_name


class ImportedBatch(NamedTuple):
    """A batch, its file name, and the numbers of its records."""

    name: str
    data: bytes
    spans: int
    marks: int


class SealedMark(NamedTuple):
    """Marks that are encoded already: a JSON array, and their number."""

    data: bytes
    number: int


def seal_batch(
    key: str,
    members: dict[str, Any],
    spans: list[dict[str, Any]],
    marks: list[dict[str, Any]] | SealedMark,
    otel: dict[str, Any],
    created_ns: int,
) -> ImportedBatch:
    """Return a batch whose id is a digest of its content; `members` is the object under `key`."""
    count = marks.number if isinstance(marks, SealedMark) else len(marks)
    array = orjson.Fragment(marks.data) if isinstance(marks, SealedMark) else marks
    content = orjson.dumps({
        "created_ns": created_ns, "spans": spans, "marks": array, "snapshots": [], "otel": otel,
        key: members,
    })  # fmt: skip
    batch_id = uuid4_shaped(hashlib.sha256(key.encode() + b"\0" + content).digest())
    head = orjson.dumps({"schema_version": 1, "sdk_version": SDK_VERSION, "batch_id": batch_id})
    data = head[:-1] + b"," + content[1:]
    return ImportedBatch(file_name(created_ns, batch_id), data, len(spans), count)
