"""Batches as text in the making: records are encoded as soon as they are made, and forgotten.

What was just made is in the processor's cache, and what is forgotten at once gives its place to the
next: keeping the records of a whole flush costs twice the time, and the garbage collector its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from .. import exactjson
from .._version import SDK_VERSION
from .errors import record_error
from .rows import MarkRow, SpanRow, as_raw, encoder

_COMMA, _OPEN = ord(","), ord("[")
_SPARE = 1 << 16


class _Rows(Struct):
    spans: list[SpanRow]
    marks: list[MarkRow]


_decoder = msgspec.json.Decoder(_Rows)


@dataclass(frozen=True, slots=True)
class BatchText:
    """A batch as it goes into the spool."""

    batch_id: str
    created_ns: int
    data: bytes
    span_count: int
    mark_count: int
    snapshot_count: int = 0

    def rows(self) -> tuple[list[SpanRow], list[MarkRow]]:
        """Its records again, for those who show them."""
        try:
            told = _decoder.decode(self.data)
            return told.spans, told.marks
        except (msgspec.MsgspecError, UnicodeError):
            batch = exactjson.loads(self.data)
            spans = [SpanRow(**record) for record in batch["spans"]]
            return spans, [MarkRow(**record) for record in batch["marks"]]


class Text:
    """A JSON list in the making, in memory that is kept from one batch to the next."""

    def __init__(self) -> None:
        self._piece = bytearray()
        self._text = bytearray(_SPARE)
        self._end = 0
        self.count = 0
        """Records in it."""
        self.lost = 0
        """Records that could not be said; whoever reads it sets it back."""

    def add(self, rows: list[Any]) -> None:
        """Append records. What the fast encoder refuses (lone surrogates, big integers) goes the
        slow way, record by record; what cannot be said at all is counted.
        """
        if not rows:
            return
        piece = self._piece
        count = len(rows)
        try:
            encoder.encode_into(rows, piece)
        except Exception:
            said = [text for row in rows if (text := _text_of(row))]
            piece[:] = b"[" + b",".join(said) + b"]"
            self.lost += count - len(said)
            count = len(said)
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
        """The list without its last bracket; to be released before the next `add`."""
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
    """The batch of these lists, which are empty afterwards."""
    snapshots = snapshots or _no_text
    with spans.view() as some, marks.view() as others, snapshots.view() as last:
        data = b"".join(
            (
                b'{"schema_version":1,"sdk_version":"%b","batch_id":"%b","created_ns":%d,"spans":'
                % (SDK_VERSION.encode(), batch_id.encode(), created_ns),
                some or b"[",
                b'],"marks":',
                others or b"[",
                b'],"snapshots":',
                last or b"[",
                b'],"otel":%b}' % bytes(as_raw(otel)),
            )
        )
    made = BatchText(batch_id, created_ns, data, spans.count, marks.count, snapshots.count)
    spans.clear()
    marks.clear()
    snapshots.clear()
    return made


_no_text = Text()
