"""Batches made by hand for tests of the files they stand in."""

from __future__ import annotations

import json
from typing import Any

EPOCH_NS = 1_795_197_734_000_000_000
OWN_VERSION = "0.3.0+cirron-otel.0.1.0"


def batch_id(number: int) -> str:
    """The id of the batch of that number."""
    return f"{number:032x}"


def made(number: int, padding: int = 0, **changes: Any) -> dict[str, Any]:
    """An empty batch, a second later than the one before; `padding` bytes longer."""
    batch: dict[str, Any] = {
        "schema_version": 1,
        "sdk_version": OWN_VERSION + " " * padding,
        "batch_id": batch_id(number),
        "created_ns": EPOCH_NS + number * 10**9,
        "spans": [],
        "marks": [],
        "snapshots": [],
    }
    return batch | changes


def encoded(batch: Any) -> bytes:
    """As recording programs write it: compact."""
    return json.dumps(batch, separators=(",", ":")).encode()


def span(number: int, parent: int | None = None, **changes: Any) -> dict[str, Any]:
    """A span of process 1 whose id says its number in both halves."""
    start = EPOCH_NS + number * 1000
    above = None if parent is None else span_id(parent)
    record: dict[str, Any] = {
        "id": span_id(number), "name": "step", "parent_id": above,
        "index": number, "start_ns": start, "end_ns": start + 500, "cpu_ns": None, "gpu_ns": None,
        "memory_peak_bytes": None, "thread_id": 7, "pid": 1, "rank": 0, "attrs": {}, "mark_ids": [],
    }  # fmt: skip
    return record | changes


def span_id(number: int) -> str:
    """The id of the span of that number."""
    return f"{number:016x}" * 2


def mark(number: int, owner: int | str, **changes: Any) -> dict[str, Any]:
    """A mark on the span `owner`."""
    record: dict[str, Any] = {
        "id": f"{number:032x}", "span_id": owner if isinstance(owner, str) else span_id(owner),
        "name": "loss", "value_type": "float", "value": 0.5, "attrs": {},
        "ts_ns": EPOCH_NS + number * 1000, "kind": "point",
    }  # fmt: skip
    return record | changes


def snapshot(number: int, owner: int, **changes: Any) -> dict[str, Any]:
    """A snapshot on the span `owner`, with statistics only."""
    stats = dict.fromkeys(("mean", "std", "min", "max", "norm"), 0.0)
    record: dict[str, Any] = {
        "id": f"{number:032x}", "span_id": span_id(owner), "tensor_name": "weight", "shape": [2, 4],
        "dtype": "float32", "mode": "stats",
        "stats": stats | {"histogram": {"bins": [0.5] * 17, "counts": [1] * 16}},
        "blob_uri": None, "ts_ns": EPOCH_NS + number * 1000, "attrs": {},
    }  # fmt: skip
    return record | changes
