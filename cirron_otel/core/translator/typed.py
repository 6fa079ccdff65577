"""Batches as typed records whose open-ended parts stay JSON text: the input of the fast paths.

One comparison proves that no field is unknown: a batch whose typed form encodes to exactly the
bytes that it was decoded from has no field and no value that the types lack.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ...semconv import SESSION
from ..records.schema import BatchFields, MarkFields, SnapshotFields, SpanFields

EMPTY = Raw(b"{}")
"""No attributes. A Raw equals other Raws only, never bytes."""


class TypedSpan(SpanFields, gc=False):
    """A span with its attributes as text."""

    attrs: Raw  # type: ignore[assignment]
    mark_ids: tuple[str, ...]  # type: ignore[assignment]
    otel: Raw | UnsetType = UNSET

    def is_session(self) -> bool:
        """Whether this is the root of a session."""
        return self.parent_id is None and self.name == SESSION


class TypedMark(MarkFields, gc=False):
    """A mark with its value and its attributes as text."""

    value: Raw  # type: ignore[assignment]
    attrs: Raw  # type: ignore[assignment]
    value_nonfinite: str | UnsetType = UNSET


class TypedSnapshot(SnapshotFields, gc=False):
    """A snapshot with its statistics and its attributes as text."""

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
    """Input that is not in the form that this package writes: only the generic path reads it.

    The fast paths and the readable views raise it. Their callers translate the input with the
    exact mappers, or keep the message itself.
    """


_decoder = msgspec.json.Decoder(TypedBatch)
encode = msgspec.json.Encoder().encode
"""Encodes typed records as JSON."""


def decode(data: bytes) -> TypedBatch:
    """Return the typed form of a batch. Raises NotCanonicalError if it would not be complete."""
    try:
        batch = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise NotCanonicalError from None
    if encode(batch) != data:
        raise NotCanonicalError
    return batch
