"""The records of a batch in the making: the model's fields, typed for speed.

The field order is `model`'s, so a batch encodes to the bytes that `spool.canonical.batch_bytes`
would give it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from .. import exactjson


class SpanRow(Struct, gc=False):
    """`model.Span`; fields that users reach are open."""

    id: str
    name: Any
    parent_id: str | None
    index: int | None
    start_ns: int
    end_ns: int
    cpu_ns: int | None
    gpu_ns: int | None
    memory_peak_bytes: int | None
    thread_id: int
    pid: int
    rank: int | None
    attrs: Any
    mark_ids: list[str]
    otel: Any = UNSET


class MarkRow(Struct, gc=False):
    """`model.Mark`."""

    id: str
    span_id: str
    name: Any
    value_type: str
    value: Any
    attrs: Any
    ts_ns: int
    kind: str
    value_nonfinite: str | UnsetType = UNSET


class SnapshotRow(Struct, gc=False):
    """`model.Snapshot`."""

    id: str
    span_id: str
    tensor_name: str
    shape: list[int]
    dtype: str
    mode: str
    stats: dict[str, Any] | None
    blob_uri: str | None
    ts_ns: int
    attrs: dict[str, Any]


encoder = msgspec.json.Encoder()
encode = encoder.encode


def as_raw(row: Any) -> Any:
    """The JSON text of a record."""
    try:
        return Raw(encode(row))
    except Exception:
        return Raw(exactjson.dumps(_tree(row)))


def _tree(value: Any) -> Any:
    if isinstance(value, Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: _tree(field) for name, field in fields if field is not UNSET}
    if isinstance(value, dict):
        return {str(k): _tree(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tree(item) for item in value]
    return value
