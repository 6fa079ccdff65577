"""Build the JSON text of batches: records are encoded as soon as they are created, then discarded.

A new record is still in the CPU cache, and discarding it immediately frees its memory for the next
one. Retaining all records of a flush takes twice the time, plus garbage collection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from ... import exactjson
from ..._version import SDK_VERSION
from ..session.errors import record_error
from .rows import MarkRow, SpanRow, as_raw, encoder

_COMMA, _OPEN = ord(","), ord("[")
_SPARE = 1 << 16


class _Rows(Struct):
    spans: list[SpanRow]
    marks: list[MarkRow]


_decoder = msgspec.json.Decoder(_Rows)


@dataclass(frozen=True, slots=True)
class BatchText:
    """A batch as JSON text, as the spool stores it."""

    batch_id: str
    created_ns: int
    data: bytes
    span_count: int
    mark_count: int
    snapshot_count: int = 0

    def rows(self) -> tuple[list[SpanRow], list[MarkRow]]:
        """Decode the records, for sinks and `trace()`."""
        try:
            rows = _decoder.decode(self.data)
            return rows.spans, rows.marks
        except (msgspec.MsgspecError, UnicodeError):
            batch = exactjson.loads(self.data)
            spans = [SpanRow(**record) for record in batch["spans"]]
            return spans, [MarkRow(**record) for record in batch["marks"]]


class Text:
    """A JSON list under construction, in memory that is reused for each batch."""

    def __init__(self) -> None:
        self._piece = bytearray()
        self._text = bytearray(_SPARE)
        self._end = 0
        self.count = 0
        """Number of records in the list."""
        self.lost = 0
        """Number of records that could not be encoded; the code that reads it resets it."""

    def add(self, rows: list[Any]) -> None:
        """Append records.

        If the fast encoder rejects a record (lone surrogates, big integers), the exact encoder
        encodes the records one by one, and `lost` counts the records that it cannot encode either.
        """
        if not rows:
            return
        piece = self._piece
        count = len(rows)
        try:
            encoder.encode_into(rows, piece)
        except Exception:
            texts = [text for row in rows if (text := _text_of(row))]
            piece[:] = b"[" + b",".join(texts) + b"]"
            self.lost += count - len(texts)
            count = len(texts)
        if count:
            piece[0] = _COMMA if self.count else _OPEN
            self._append(memoryview(piece)[:-1])
            self.count += count

    def _append(self, piece: memoryview) -> None:
        end = self._end + len(piece)
        if end > len(self._text):
            self._text.extend(bytes(end - len(self._text) + _SPARE))
        self._text[self._end : end] = piece
        self._end = end
        piece.release()

    def view(self) -> memoryview:
        """Return the list without its closing bracket; release the view before the next `add`."""
        return memoryview(self._text)[: self._end]

    def clear(self) -> None:
        """Begin the next list."""
        self._end = self.count = 0


def _text_of(row: Any) -> bytes:
    try:
        return bytes(as_raw(row))
    except Exception as error:
        record_error("record", error)
        return b""


def batch_text(
    spans: Text,
    marks: Text,
    otel: dict[str, Any],
    batch_id: str,
    created_ns: int,
    snapshots: Text | None = None,
) -> BatchText:
    """Build a batch from these lists, and clear them."""
    snapshots = snapshots or _no_text
    with spans.view() as span_view, marks.view() as mark_view, snapshots.view() as snapshot_view:
        data = b"".join(
            (
                b'{"schema_version":1,"sdk_version":"%b","batch_id":"%b","created_ns":%d,"spans":'
                % (SDK_VERSION.encode(), batch_id.encode(), created_ns),
                span_view or b"[",
                b'],"marks":',
                mark_view or b"[",
                b'],"snapshots":',
                snapshot_view or b"[",
                b'],"otel":%b}' % bytes(as_raw(otel)),
            )
        )
    batch = BatchText(batch_id, created_ns, data, spans.count, marks.count, snapshots.count)
    spans.clear()
    marks.clear()
    snapshots.clear()
    return batch


_no_text = Text()
