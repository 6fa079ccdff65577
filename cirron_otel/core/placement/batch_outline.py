"""The few fields of a batch that determine the placement of its records, read on a fast path.

These fields determine a scope's position in its session, a `ScopePosition`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ... import exactjson
from ...ids import is_id
from ...semconv import OVERHEAD_NS, SESSION
from ..translator.typed import TypedBatch


class SpanOutline(msgspec.Struct, gc=False):
    """A span's identity and times."""

    id: str = ""
    parent_id: str | None = None
    name: str = ""
    index: int | None = None
    start_ns: int = 0
    end_ns: int = 0
    pid: int | None = None

    def is_session(self) -> bool:
        """Return whether the span is the root of a session."""
        return self.name == SESSION and self.parent_id is None


class RecordRef(msgspec.Struct, gc=False):
    """The span id and the name of a mark or a snapshot."""

    span_id: str = ""
    name: str = ""


def is_user_record(ref: RecordRef) -> bool:
    """Return whether a mark or snapshot is the user's, and not the SDK's own overhead mark."""
    return ref.name != OVERHEAD_NS


class OtelOutline(msgspec.Struct, gc=False):
    """The fields of a batch's `otel` that placement needs."""

    session: str | None = None
    resource_spans: list[msgspec.Raw] = []


class BatchOutline(msgspec.Struct, gc=False):
    """The identity and times of a batch's records."""

    spans: list[SpanOutline] = []
    marks: list[RecordRef] = []
    snapshots: list[RecordRef] = []
    otel: OtelOutline | None = None

    @property
    def session(self) -> str | None:
        """The session of all records of the batch; None if the batch does not name it."""
        named = self.otel.session if self.otel is not None else None
        return named if is_id(named) else None

    @property
    def is_foreign(self) -> bool:
        """Whether the batch's spans were received as OTLP, with their own trace ids."""
        return self.otel is not None and bool(self.otel.resource_spans)


_decoder = msgspec.json.Decoder(BatchOutline)


def read_outline(data: bytes) -> BatchOutline:
    """Read the outline of a batch.

    A field of an unexpected type counts as absent. Raises InputError for invalid JSON.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return outline_of(exactjson.loads(data))


def outline_of(batch: Any) -> BatchOutline:
    """Return the outline of a parsed batch."""
    if not isinstance(batch, dict):
        return BatchOutline()
    otel = batch.get("otel")
    return BatchOutline(
        [_span(r) for r in _records(batch.get("spans"))],
        [
            RecordRef(_text(r.get("span_id")) or "", _text(r.get("name")) or "")
            for r in _records(batch.get("marks"))
        ],
        [RecordRef(_text(r.get("span_id")) or "") for r in _records(batch.get("snapshots"))],
        _otel(otel) if isinstance(otel, dict) else None,
    )


def _otel(otel: dict[str, Any]) -> OtelOutline:
    came = otel.get("resource_spans")
    raw = [msgspec.Raw()] if isinstance(came, list) and came else []
    return OtelOutline(_text(otel.get("session")), raw)


def _records(value: object) -> list[dict[str, Any]]:
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    return []


def _span(record: dict[str, Any]) -> SpanOutline:
    return SpanOutline(
        _text(record.get("id")) or "",
        _text(record.get("parent_id")),
        _text(record.get("name")) or "",
        _int(record.get("index")),
        _int(record.get("start_ns")) or 0,
        _int(record.get("end_ns")) or 0,
        _int(record.get("pid")),
    )


def _text(value: object) -> str | None:
    """Replace lone surrogates, which the index cannot store and which no valid id contains."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _int(value: object) -> int | None:
    return value if type(value) is int else None


class ScopePosition(NamedTuple):
    """The position of a scope: its session, its depth, and the scope that determines its segment.

    The latter is the scope itself or one of its ancestors: segments start only at children and
    grandchildren of the session.
    """

    session: str
    depth: int
    unit: tuple[int, str] | None
    """(start_ns, id) of the scope that determines the segment; None means the first segment."""


Outline = BatchOutline | TypedBatch
"""Either type of batch whose records can be placed."""


class Ancestor(NamedTuple):
    """A scope on the path from a record up to its session."""

    name: str
    number: int | None


Row = tuple[str, ...]
"""A scope's row in the index (see `session_index`)."""


def position_of(row: Row, above: ScopePosition | None) -> ScopePosition:
    """Return the position of a recorded scope.

    `row` describes the path from the scope to the topmost scope of its batch. `above` is the
    position of the topmost scope's parent or, if it has no parent, the result of
    `ScopeIndex.without_parent`; it is None if the topmost scope is a session.
    """
    rel, topmost = int(row[2]), (int(row[4]), row[3])
    second = (int(row[6]), row[5]) if row[5] is not None else topmost
    if above is None or above.session == row[3]:  # the topmost scope is the session
        return ScopePosition(row[3], rel - 1, second if rel > 1 else None)
    if above.depth == 0:
        return ScopePosition(above.session, rel, second)
    if above.depth == 1:
        return ScopePosition(above.session, rel + 1, topmost)
    return ScopePosition(above.session, above.depth + rel, above.unit)
