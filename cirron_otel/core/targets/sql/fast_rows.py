"""The fast path of `translator.own.platform.to_platform`, for batches from recording programs.

It accepts a batch if the typed batch encodes to the bytes of the file, which proves that no field
is unknown. If a column cannot store a value of the batch unchanged, the batch takes the generic
path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from .... import exactjson
from ...records import columns
from ...records.columns import (
    MAX_STRING_BYTES,
    PlatformRecords,
    TraceBatch,
    TraceMark,
    TraceSnapshot,
    TraceSpan,
)
from ...translator.typed import (
    EMPTY,
    NotCanonicalError,
    TypedBatch,
    TypedMark,
    TypedSnapshot,
    TypedSpan,
    decode,
    encode,
)
from .keys import MAX_KEY_BYTES

_LONGEST = MAX_KEY_BYTES // 4
"""A key of up to this many characters is always stored unchanged."""
_MAX_64 = 1 << 63
_MOST_BRACKETS = 64
_CACHED_BYTES = 200
_BIG = re.compile(rb"(?<![.\d])\d{19}")
_EMPTY_OBJECT: dict[str, Any] = {}

_Row = TypeVar("_Row")
_copy_batch: Callable[..., TraceBatch | None] = columns.BATCH.copier(TypedBatch)
_copy_span: Callable[..., TraceSpan | None] = columns.SPAN.copier(TypedSpan)
_copy_mark: Callable[..., TraceMark | None] = columns.MARK.copier(TypedMark)
_copy_snapshot: Callable[..., TraceSnapshot | None] = columns.SNAPSHOT.copier(TypedSnapshot)
_any = msgspec.json.Decoder().decode
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def fast_rows(data: bytes) -> tuple[PlatformRecords, dict[str, Any]]:
    """Return the rows of a batch, and the batch-level fields that no row stores.

    The trace id of a span is the id of its topmost ancestor in the batch. Raises NotCanonicalError
    if only the generic path can read the batch.
    """
    # Escapes may represent control characters, including NUL.
    if b"\\u" in data:
        raise NotCanonicalError
    batch = decode(data)
    marks: dict[str, list[str]] = {}
    for mark in batch.marks:
        marks.setdefault(mark.span_id, []).append(mark.id)
    records = PlatformRecords(
        batch=_header(batch),
        spans=_spans(batch.spans, marks),
        marks=[_mark(mark) for mark in batch.marks],
        snapshots=[_snapshot(snapshot) for snapshot in batch.snapshots],
    )
    unstored = {} if batch.otel is UNSET else {"otel": exactjson.loads(bytes(batch.otel))}
    return records, {**unstored, "spans": [{"pid": span.pid} for span in batch.spans]}


def _header(batch: TypedBatch) -> TraceBatch:
    extra = None if batch.otel is UNSET else _set([("otel", _text(batch.otel))])
    return _fitting(_copy_batch(batch, extra=extra))


def _spans(spans: list[TypedSpan], marks: dict[str, list[str]]) -> list[TraceSpan]:
    parents = {span.id: span.parent_id for span in spans}
    root_ids: dict[str, str] = {}
    return [_span(span, _root_id(span, parents, root_ids), marks) for span in spans]


def _root_id(span: TypedSpan, parents: dict[str, str | None], root_ids: dict[str, str]) -> str:
    """Return the id of a span's topmost ancestor, as in `platform`; cache the result by parent."""
    root_id, parent = span.id, span.parent_id
    if parent in root_ids:
        return root_ids[parent]
    seen: set[str] = set()
    while parent is not None and parent not in seen:
        seen.add(parent)
        root_id, parent = parent, parents.get(parent)
    if parent is None and span.parent_id is not None:
        # Do not cache the result of a cycle, since it depends on the first span.
        root_ids[span.parent_id] = root_id
    return root_id


def _span(span: TypedSpan, top: str, marks: dict[str, list[str]]) -> TraceSpan:
    _check(len(span.id) <= _LONGEST and len(span.parent_id or "") <= _LONGEST)
    unstored = []
    if span.mark_ids or span.id in marks:
        mark_ids = list(span.mark_ids)
        if mark_ids != marks.get(span.id, []):
            unstored.append(("mark_ids", _dumps(mark_ids)))
    if span.otel is not UNSET:
        unstored.append(("otel", _text(span.otel)))
    if span.pid is not None:
        unstored.append(("pid", str(span.pid)))
    extra = _set(unstored) if unstored else None
    return _fitting(
        _copy_span(
            span, trace_id=top, attrs=_object(span.attrs), extra=extra, workspace_id="", run_id=""
        )
    )


def _mark(mark: TypedMark) -> TraceMark:
    _check(len(mark.id) <= _LONGEST and len(mark.span_id) <= _LONGEST)
    _check(mark.value_nonfinite is UNSET)
    value, kind = _value(mark), mark.value_type
    return _fitting(
        _copy_mark(
            mark,
            value_float=value if kind == "float" else None,
            value_int=value if kind == "int" else None,
            value_string=value if kind == "string" else None,
            value_bool=value if kind == "bool" else None,
            attrs=_object(mark.attrs),
        )
    )


def _value(mark: TypedMark) -> Any:
    raw, kind = mark.value, mark.value_type
    try:
        value = _any(raw)
    except msgspec.DecodeError:  # a number that a double cannot represent
        raise NotCanonicalError from None
    if kind == "float":
        is_plain = type(value) is float and math.isfinite(value) and value != 0
    elif kind == "int":
        is_plain = type(value) is int and -_MAX_64 <= value < _MAX_64
    elif kind == "string":
        is_plain = type(value) is str and len(value) * 4 <= MAX_STRING_BYTES
    else:
        is_plain = kind == "bool" and type(value) is bool
    text = bytes(raw)
    _check(
        is_plain and (encode(value) == text or (kind == "float" and repr(value) == text.decode()))
    )
    return value


def _snapshot(snapshot: TypedSnapshot) -> TraceSnapshot:
    _check(len(snapshot.id) <= _LONGEST and len(snapshot.span_id) <= _LONGEST)
    unstored = [("attrs", _text(snapshot.attrs))] if snapshot.attrs != EMPTY else []
    unstored.append(("ts_ns", str(snapshot.ts_ns)))
    shape, stats = bytes(snapshot.shape), bytes(snapshot.stats)
    _check(shape[:1] == b"[" and _is_plain(shape))
    _check(stats == b"null" or (stats[:1] == b"{" and _is_plain(stats)))
    stats_column = None if stats == b"null" else snapshot.stats
    return _fitting(
        _copy_snapshot(snapshot, shape=snapshot.shape, stats=stats_column, extra=_set(unstored))
    )


def _fitting(row: _Row | None) -> _Row:
    if row is None:
        raise NotCanonicalError
    return row


def _object(raw: msgspec.Raw) -> Any:
    if raw == EMPTY:
        return _EMPTY_OBJECT
    text = bytes(raw)
    _check(text[:1] == b"{" and _is_plain(text))
    return raw


def _is_plain(text: bytes) -> bool:
    """Return whether all JSON parsers agree on `text`: it has no repeated key or huge number."""
    return _is_known_plain(text) if len(text) <= _CACHED_BYTES else _is_found_plain(text)


def _is_found_plain(text: bytes) -> bool:
    if _BIG.search(text) or text.count(b"{") + text.count(b"[") > _MOST_BRACKETS:
        return False
    try:
        # Python's json writes some numbers differently from msgspec: 1e-05 and 0.00001.
        return encode(_any(text)) == text or _dumps(json.loads(text)).encode() == text
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return False


_is_known_plain = lru_cache(maxsize=1024)(_is_found_plain)


def _set(items: list[tuple[str, str]]) -> str:
    """Return a difference for `residual.apply_diff` that sets these members."""
    return '{"set":{' + ",".join(f'"{key}":{text}' for key, text in items) + "}}"


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode()


def _check(is_so: bool) -> None:
    if not is_so:
        raise NotCanonicalError
