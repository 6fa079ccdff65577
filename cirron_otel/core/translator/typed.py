"""Typed records, the input of the fast paths; their open-ended parts stay JSON text.

One comparison proves that a batch contains nothing that the types cannot represent: the typed batch
encodes to exactly the bytes from which it was decoded.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ...semconv import SESSION
from ..records.schema import BatchFields, MarkFields, SnapshotFields, SpanFields

EMPTY = Raw(b"{}")
"""The text of empty `attrs`. A Raw equals only other Raws, never bytes."""


class TypedSpan(SpanFields, gc=False):
    """A span whose attributes are JSON text."""

    attrs: Raw  # type: ignore[assignment]
    mark_ids: tuple[str, ...]  # type: ignore[assignment]
    otel: Raw | UnsetType = UNSET

    def is_session(self) -> bool:
        """Whether this is the root of a session."""
        return self.parent_id is None and self.name == SESSION


class TypedMark(MarkFields, gc=False):
    """A mark whose value and attributes are JSON text."""

    value: Raw  # type: ignore[assignment]
    attrs: Raw  # type: ignore[assignment]
    value_nonfinite: str | UnsetType = UNSET


class TypedSnapshot(SnapshotFields, gc=False):
    """A snapshot whose statistics and attributes are JSON text."""

    shape: Raw  # type: ignore[assignment]
    stats: Raw  # type: ignore[assignment]
    attrs: Raw  # type: ignore[assignment]


class TypedBatch(BatchFields, gc=False):
    """A batch of typed records."""

    spans: list[TypedSpan]  # type: ignore[assignment]
    marks: list[TypedMark]  # type: ignore[assignment]
    snapshots: list[TypedSnapshot]  # type: ignore[assignment]
    otel: Raw | UnsetType = UNSET


class NotCanonicalError(Exception):
    """The input is not in the form that this package writes, so only the generic path can read it.

    The fast paths and the readable views raise this error. Their callers then translate the input
    with the exact mappers, or keep the message itself.
    """


_decoder = msgspec.json.Decoder(TypedBatch)
encode = msgspec.json.Encoder().encode
"""Encodes typed records as JSON."""


def decode(data: bytes) -> TypedBatch:
    """Decode a batch's JSON to a typed batch.

    Raises NotCanonicalError if the typed batch cannot represent the JSON exactly.
    """
    try:
        batch = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise NotCanonicalError from None
    if encode(batch) != data:
        raise NotCanonicalError
    return batch
