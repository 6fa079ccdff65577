"""Encode marks and snapshots as fields of their span, from cached pieces."""

from __future__ import annotations

from struct import error as StructError  # noqa: N812
from typing import Any, TypeVar

from msgspec import UNSET
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from .... import semconv as sc
from ....ids import is_id
from .. import events as ev
from .. import residual as residuals
from ..order import sequence_of
from ..pieces import (
    MARK_BOOLS,
    MARK_DOUBLE,
    MARK_ID_PREFIX,
    event_seq,
    event_users,
    int_overhead,
    mark_int,
    mark_kind,
    mark_text,
    pack_double,
    pack_time,
    sized,
    span_users,
    varint,
)
from ..typed import EMPTY, NotCanonicalError, TypedMark, TypedSnapshot, TypedSpan, encode
from ..values import INT64_MAX, INT64_MIN
from .spans import overhead_id


def record_of(typed: TypedSpan | TypedMark | TypedSnapshot) -> dict[str, Any]:
    """Convert a typed record to the dict that the exact mappers accept."""
    record = exactjson.loads(encode(typed))
    return record if isinstance(record, dict) else {}


_T = TypeVar("_T", TypedMark, TypedSnapshot)
AttachedEvents = tuple[list[tuple[TypedMark, int | None]], list[tuple[TypedSnapshot, int | None]]]
"""Marks and snapshots of one scope, each with its `seq`."""

NO_EVENTS: AttachedEvents = ([], [])


def sequence(times: list[int], ids: list[str]) -> list[int | None] | None:
    """Return the `seq` of each record; None if the canonical order determines all of them."""
    keys = list(zip(times, ids, strict=True))
    if len(set(ids)) == len(ids) and keys == sorted(keys):
        return None
    return sequence_of(times, ids)


def with_seq(records: list[_T]) -> list[tuple[_T, int | None]]:
    """Return the records in their order, each with its `seq`."""
    if not records:
        return []
    seqs = sequence([r.ts_ns for r in records], [r.id for r in records])
    return [(r, None) for r in records] if seqs is None else list(zip(records, seqs, strict=True))


SMALL = 8_000
"""Events and attributes of up to this size in bytes always fit on one span.

The exact encoder measures their JSON, which is up to six times as large, plus 200 bytes per mark.
"""
_INT_DIGITS = 20
_kinds: dict[str, bytes] = {}
_names: dict[str, bytes] = {}
_CACHED, _LONGEST_CACHED = 1024, 256


def event_fields(span: TypedSpan, attached: AttachedEvents, parts: list[bytes]) -> None:
    """Append the last attributes of a span, including the user's attributes, and its events.

    Raises NotCanonicalError if one span cannot carry all of them.
    """
    marks, snapshots = attached
    if len(marks) == 1 and not snapshots and span.mark_ids == (marks[0][0].id,):
        mark, seq = marks[0]
        value = overhead_of(span, mark) if seq is None else None
        if value is not None and span.attrs == EMPTY:  # most scopes of our own SDK
            parts.append(int_overhead(value))
            return
        event = _mark(mark, seq) if value is None and span.attrs == EMPTY else b""
        if event and len(event) + len(span.name) < SMALL:  # most steps of other SDKs: one mark
            parts += (b"\x5a", varint(len(event)), event)
            return
    if len(marks) + len(snapshots) > sc.MAX_EVENTS:
        raise NotCanonicalError
    marks = _in_order(span.mark_ids, marks)
    overhead = _overhead(span, marks)
    decoded = tuple([mark.id for mark, _ in marks])
    if overhead is not None:
        parts.append(int_overhead(overhead))
        marks = marks[:-1]
    if span.attrs != EMPTY:
        parts.append(span_users(bytes(span.attrs)))
    if decoded != span.mark_ids:
        message = Span()
        residual = residuals.text_of({"set": {"mark_ids": list(span.mark_ids)}})
        residuals.write(message.attributes, sc.REST, residual)
        parts.append(message.SerializeToString())
    events = [_mark(mark, seq) for mark, seq in marks]
    events += [_generic(ev.write_snapshot, snapshot, seq) for snapshot, seq in snapshots]
    size = sum(map(len, events)) + len(bytes(span.attrs)) + len(span.name)
    if size > SMALL and not fits(attached, span):
        raise NotCanonicalError
    for event in events:
        parts += (b"\x5a", varint(len(event)), event)


def _mark(mark: TypedMark, seq: int | None) -> bytes:
    try:
        if not is_id(mark.id) or mark.ts_ns <= 0:
            raise NotCanonicalError
        value, residual = _value(mark)
        if seq is not None:
            value += event_seq(seq)
        kind = _kinds.get(mark.kind) or _kind(mark.kind)
        users = b"" if mark.attrs == EMPTY else event_users(bytes(mark.attrs))
        name = _names.get(mark.name) or _name(mark.name)
        time = pack_time(0x09, mark.ts_ns)
    except (NotCanonicalError, StructError):
        return _generic(ev.write_mark, mark, seq)
    return b"".join((time, name, MARK_ID_PREFIX, mark.id.encode(), kind, value, users, residual))


def _kind(kind: str) -> bytes:
    field = mark_kind(kind)
    if len(_kinds) < _CACHED and len(kind) <= _LONGEST_CACHED:
        _kinds[kind] = field
    return field


def _name(name: str) -> bytes:
    field = b"\x12" + sized(name.encode()) if name else b""
    if len(_names) < _CACHED and len(name) <= _LONGEST_CACHED:
        _names[name] = field
    return field


def _in_order(
    mark_ids: tuple[str, ...], marks: list[tuple[TypedMark, int | None]]
) -> list[tuple[TypedMark, int | None]]:
    if len(mark_ids) != len(marks) or tuple([m.id for m, _ in marks]) == mark_ids:
        return marks
    by_id = {placed[0].id: placed for placed in marks}
    if len(by_id) != len(marks) or by_id.keys() != set(mark_ids):
        return marks
    return [by_id[mark_id] for mark_id in mark_ids]


def _overhead(span: TypedSpan, marks: list[tuple[TypedMark, int | None]]) -> int | None:
    """Return the value of the SDK's own overhead mark if it is the last mark, else None."""
    if not marks or marks[-1][1] is not None:
        return None
    return overhead_of(span, marks[-1][0])


def overhead_of(span: TypedSpan, mark: TypedMark) -> int | None:
    """Return the value of a mark of this span if it is the SDK's own overhead mark, else None."""
    if mark.name != sc.OVERHEAD_NS or mark.ts_ns != span.end_ns or mark.kind != "summary":
        return None
    if mark.value_type != "int" or mark.attrs != EMPTY or mark.value_nonfinite is not UNSET:
        return None
    token = bytes(mark.value)
    if len(token) > _INT_DIGITS or not token.lstrip(b"-").isdigit() or token == b"-0":
        return None
    value = int(token)
    if not INT64_MIN <= value <= INT64_MAX or not 0 <= span.end_ns <= INT64_MAX:
        return None
    return value if mark.id == overhead_id(span.id) else None


def fits(attached: AttachedEvents, *scope: TypedSpan) -> bool:
    """Return whether the exact encoder also puts all events on one span; False if uncertain."""
    typed = (*scope, *(mark for mark, _ in attached[0]), *(snapshot for snapshot, _ in attached[1]))
    return 2 * sum(len(encode(record)) for record in typed) < sc.MAX_SPAN_BYTES * 3 // 4


def _value(mark: TypedMark) -> tuple[bytes, bytes]:
    """Encode a mark's value as an attribute and a residual.

    Raises NotCanonicalError if the value does not match its type.
    """
    token = bytes(mark.value)
    kind = mark.value_type
    if mark.value_nonfinite is not UNSET:
        if token != b"null" or kind != "float" or mark.value_nonfinite not in NONFINITE:
            raise NotCanonicalError
        return b"", NONFINITE[mark.value_nonfinite]
    if kind == "float":
        try:
            number = float(token)
        except ValueError:
            raise NotCanonicalError from None
        if repr(number).encode() != token and type(exactjson.loads(token)) is not float:
            raise NotCanonicalError
        return MARK_DOUBLE + pack_double(number), b""
    if kind == "bool" and token in MARK_BOOLS:
        return MARK_BOOLS[token], b""
    value = exactjson.loads(token)
    if kind == "int" and type(value) is int:
        return mark_int(value), b""
    if kind == "string" and isinstance(value, str):
        return mark_text(value), b""
    raise NotCanonicalError


def _nonfinite(name: str) -> bytes:
    """Encode the residual of a mark whose value is NaN or an infinity."""
    text = residuals.text_of(
        {"set": {"value": None, "value_nonfinite": name, "value_type": "float"}}
    )
    event = Span.Event()
    residuals.write(event.attributes, sc.REST, text)
    return bytes(event.SerializeToString())


NONFINITE = {name: _nonfinite(name) for name in ("nan", "inf", "-inf")}


def _generic(write: Any, typed: TypedMark | TypedSnapshot, seq: int | None) -> bytes:
    event = Span.Event()
    write(event, record_of(typed), typed.span_id, seq)
    return bytes(event.SerializeToString())
