"""The fast way to say that a batch has nothing wrong: it decodes strictly and encodes back.

Strict decoding checks keys, types and ids; equal bytes prove that no key was repeated and no
number changed. `validate` looks closer wherever the answer here is no.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..exactjson import MAX_DEPTH, depth_of

Id = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Time = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0)]
Otel = dict[str, Any] | UnsetType


class ConformingSpan(Struct, forbid_unknown_fields=True):
    """A span that conforms in every key and type."""

    id: Id
    name: str
    parent_id: Id | None
    index: int | None
    start_ns: Time
    end_ns: Time
    cpu_ns: Count | None
    gpu_ns: Count | None
    memory_peak_bytes: Count | None
    thread_id: int | None
    pid: int | None
    rank: int | None
    attrs: dict[str, Any]
    mark_ids: list[Id]
    otel: Otel = UNSET


class ConformingMark(Struct, forbid_unknown_fields=True):
    """A mark that conforms in every key and type, except that value may not suit value_type."""

    id: Id
    span_id: Id | Literal["root"]
    name: str
    value_type: Literal["float", "int", "string", "bool"]
    value: float | int | str | bool
    attrs: dict[str, Any]
    ts_ns: Time
    kind: Literal["point", "summary"]
    otel: Otel = UNSET


class ConformingHistogram(Struct, forbid_unknown_fields=True):
    """17 edges and what lies between them."""

    bins: Annotated[list[float], Meta(min_length=17, max_length=17)]
    counts: Annotated[list[Count], Meta(min_length=16, max_length=16)]


class ConformingStats(Struct, forbid_unknown_fields=True):
    """Statistics of a tensor whose values are all finite."""

    mean: float
    std: float
    min: float
    max: float
    norm: float
    histogram: ConformingHistogram


class ConformingSnapshot(Struct, forbid_unknown_fields=True):
    """A snapshot that conforms in every key and type."""

    id: Id
    span_id: Id
    tensor_name: str
    shape: list[Count]
    dtype: str
    mode: Literal["stats", "sampled", "full"]
    stats: ConformingStats
    blob_uri: str | None
    ts_ns: Time
    attrs: dict[str, Any]
    otel: Otel = UNSET


class ConformingBatch(Struct, forbid_unknown_fields=True):
    """A batch that conforms in every key and type."""

    schema_version: Literal[1]
    sdk_version: str
    batch_id: Id
    created_ns: Time
    spans: list[ConformingSpan]
    marks: list[ConformingMark]
    snapshots: list[ConformingSnapshot]
    otel: Otel = UNSET


_TYPES = {"float": float, "int": int, "string": str, "bool": bool}
# Integers of 20 digits and more (or what looks like one in a text): 64 bits may not hold them.
_LONG_INTEGER = re.compile(rb"[:,\[]-?\d{20}")
_MAX_OPEN = MAX_DEPTH - 3
"""The deepest nesting below a record: the batch, a list and the record are three levels."""
_decoder = msgspec.json.Decoder(ConformingBatch)
_encoder = msgspec.json.Encoder()


def conforms(data: bytes) -> ConformingBatch | None:
    """The batch in `data` where nothing at all is to be said about it, else None."""
    try:
        batch = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if any(span.end_ns < span.start_ns for span in batch.spans):
        return None
    if any(type(mark.value) is not _TYPES[mark.value_type] for mark in batch.marks):
        return None
    if any(each.mode == "stats" and each.blob_uri is not None for each in batch.snapshots):
        return None
    if _LONG_INTEGER.search(data) or depth_of(_open_parts(batch), _MAX_OPEN) > _MAX_OPEN:
        return None
    try:
        return batch if _encoder.encode(batch) == data else None
    except RecursionError:
        return None


def _open_parts(batch: ConformingBatch) -> list[Any]:
    """Return the parts of a batch that may be nested to any depth."""
    records: list[ConformingSpan | ConformingMark | ConformingSnapshot] = []
    records += batch.spans
    records += batch.marks
    records += batch.snapshots
    others = [record.otel for record in records if record.otel is not UNSET]
    return [batch.otel, *others, *(record.attrs for record in records if record.attrs)]
