"""The records of a batch under construction: the schema's fields, with types chosen for speed.

The fields are in the order of the schema, so a batch encodes to the bytes that
`core.records.canonical.batch_bytes` returns for it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ... import exactjson
from ...core.records.schema import MarkFields, SnapshotFields, Span


class SpanRow(Span, gc=False):
    """A span; fields that users may set accept any value."""

    name: Any
    thread_id: int
    pid: int
    attrs: Any
    otel: Any = UNSET


class MarkRow(MarkFields, gc=False):
    """A mark."""

    name: Any
    value: Any
    attrs: Any
    value_nonfinite: str | UnsetType = UNSET


class SnapshotRow(SnapshotFields, gc=False):
    """A snapshot."""


encoder = msgspec.json.Encoder()
encode = encoder.encode


def as_raw(row: Any) -> Any:
    """Return the JSON text of a record."""
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
