"""Batches as typed records whose open parts stay JSON text: what the fast ways work on.

The proof that nothing is unknown costs one comparison: a batch whose typed form encodes to the very
bytes it was decoded from holds no field and no value that the types do not have.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ..semconv import SESSION

EMPTY = Raw(b"{}")
"""No attributes. A Raw equals other Raws only, never bytes."""


class TypedSpan(Struct, forbid_unknown_fields=True, gc=False):
    """`model.Span` with its attributes as text."""

    id: str
    name: str
    parent_id: str | None
    index: int | None
    start_ns: int
    end_ns: int
    cpu_ns: int | None
    gpu_ns: int | None
    memory_peak_bytes: int | None
    thread_id: int | None
    pid: int | None
    rank: int | None
    attrs: Raw
    mark_ids: tuple[str, ...]
    otel: Raw | UnsetType = UNSET

    def is_session(self) -> bool:
        """Whether this is the root of a session."""
        return self.parent_id is None and self.name == SESSION


class TypedMark(Struct, forbid_unknown_fields=True, gc=False):
    """`model.Mark` with its value and its attributes as text."""

    id: str
    span_id: str
    name: str
    value_type: str
    value: Raw
    attrs: Raw
    ts_ns: int
    kind: str
    value_nonfinite: str | UnsetType = UNSET


class TypedSnapshot(Struct, forbid_unknown_fields=True, gc=False):
    """`model.Snapshot` with its statistics and its attributes as text."""

    id: str
    span_id: str
    tensor_name: str
    shape: Raw
    dtype: str
    mode: str
    stats: Raw
    blob_uri: str | None
    ts_ns: int
    attrs: Raw


class TypedBatch(Struct, forbid_unknown_fields=True, gc=False):
    """`model.Batch` of these."""

    schema_version: int
    sdk_version: str
    batch_id: str
    created_ns: int
    spans: list[TypedSpan]
    marks: list[TypedMark]
    snapshots: list[TypedSnapshot]
    otel: Raw | UnsetType = UNSET


class NotCanonicalError(Exception):
    """Input that is not in the form that this package writes: only the generic path reads it.

    The fast paths and the readable views raise it. Their callers translate the input with the
    exact mappers, or keep the message itself.
    """


_decoder = msgspec.json.Decoder(TypedBatch)
encode = msgspec.json.Encoder().encode
"""Typed records to JSON."""


def decode(data: bytes) -> TypedBatch:
    """The typed form of a batch. Raises NotCanonicalError where it would not be all of it."""
    try:
        batch = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise NotCanonicalError from None
    if encode(batch) != data:
        raise NotCanonicalError
    return batch
