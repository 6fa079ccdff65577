"""The mapping of Stormlog's events to marks, and back (docs/stormlog.md, "Mapping").

An event's time, type and allocated bytes are a mark's time, name and value. The fields of its
session are stored once for each batch. All other fields are attributes of the mark, under their own
names; a field that is null is absent. A record whose text does not follow from its mark is kept
verbatim beside it.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import math
import re
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Final

import msgspec
import orjson

from .... import exactjson
from ....errors import InputError
from .events import FIELDS

SESSION_FIELDS: Final = (
    "schema_version",
    "session_id",
    "pid",
    "host",
    "job_id",
    "rank",
    "local_rank",
    "world_size",
)
"""The fields that are the session's, and that the records of a batch have in common."""
COUNTERS: Final = (
    "device_id",
    "allocator_reserved_bytes",
    "allocator_active_bytes",
    "allocator_inactive_bytes",
    "allocator_change_bytes",
    "device_used_bytes",
    "device_free_bytes",
    "device_total_bytes",
)
ATTRIBUTES: Final = (*COUNTERS, "collector", "sampling_interval_ms", "context", "metadata")
"""The fields that are attributes of the mark, in this order."""
PREFIX: Final = "stormlog."
KEY: Final = "stormlog"
"""The key of the object with Stormlog's own data in a batch and in a mark."""
TEXT: Final = "text"
"""The key of a record's verbatim text in a mark's object."""
LINES, ARRAY = "lines", "array"
"""The forms of a record's text: Stormlog's JSON lines, and the elements of Stormlog's arrays."""
# A number with an exponent, which Python and orjson write differently, or such text in a string.
_EXPONENT = re.compile(rb"[:\[,] ?-?\d+(?:\.\d+)?[eE]")
_MOST_CACHED = 4096
_BASE64 = "base64"

session_of = itemgetter(*SESSION_FIELDS)


def text_of(record: Mapping[str, Any], form: str) -> bytes:
    """Return the text of a record in one of Stormlog's forms, as Stormlog writes it.

    Raises TypeError for a value that only `exactjson` can write.
    """
    fast = _fast_text(record, form)
    if fast is not None and fast.isascii() and not _EXPONENT.search(fast):
        return fast
    if form == LINES:
        return json.dumps(record, sort_keys=True).encode()
    return json.dumps(record, indent=2).replace("\n", "\n  ").encode()


def _fast_text(record: Mapping[str, Any], form: str) -> bytes | None:
    if _has_nonfinite(record.get("metadata", record)):
        return None
    try:
        if form == LINES:
            text = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
            return msgspec.json.format(text, indent=0)
        text = msgspec.json.format(orjson.dumps(record), indent=2)
        return text.replace(b"\n", b"\n  ")
    except (orjson.JSONEncodeError, msgspec.DecodeError, RecursionError):
        return None


def _has_nonfinite(value: Any) -> bool:
    """Return whether there is a NaN or an infinity, which orjson writes as null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_nonfinite, value.values()))
    return isinstance(value, list) and any(map(_has_nonfinite, value))


def plain_text_of(record: Mapping[str, Any], form: str) -> bytes:
    """Return the text of any record: in Stormlog's form, or as compact JSON if that is lossy."""
    try:
        return text_of(record, form)
    except (TypeError, ValueError, RecursionError):
        return exactjson.dumps(dict(record))


def is_text_of(record: Mapping[str, Any], raw: bytes, form: str) -> bool:
    """Return whether `raw` is the text of a record in one of Stormlog's forms."""
    try:
        return text_of(record, form) == raw
    except (TypeError, ValueError, RecursionError):  # e.g. an `exactjson.Raw`
        return False


def in_order(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event with its fields in Stormlog's order."""
    return {key: event[key] for key in FIELDS}


def with_sorted_keys(value: Any) -> Any:
    """Return a copy of a JSON value whose objects have their keys in order."""
    if isinstance(value, dict):
        return {key: with_sorted_keys(value[key]) for key in sorted(value)}
    return [with_sorted_keys(each) for each in value] if isinstance(value, list) else value


def identity_of(event: Mapping[str, Any]) -> bytes:
    """Return the 16-byte id of an event: a digest of its canonical form as a JSON line."""
    return hashlib.sha256(plain_text_of(event, LINES)).digest()[:16]


def text_json(data: bytes) -> Any:
    """Return bytes of a file as a JSON value: text, or an object if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {_BASE64: binascii.b2a_base64(data, newline=False).decode()}


def bytes_of_json(value: Any) -> bytes:
    """Return the bytes that `text_json` represents. Raises InputError for any other value."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and isinstance(value.get(_BASE64), str):
        try:
            return binascii.a2b_base64(value[_BASE64])
        except binascii.Error:
            pass
    raise InputError(f"{KEY}: expected a text, or an object with base64")


class QuotedTexts(dict[str, str]):
    """Strings as JSON, cached."""

    def __missing__(self, text: str) -> str:
        if len(self) >= _MOST_CACHED:
            self.clear()
        quoted = self[text] = json_text(text)
        return quoted


class MarkWriter:
    """Writes events as the JSON text of marks, with cached pieces."""

    def __init__(self) -> None:
        self._strings = QuotedTexts()

    def write(
        self,
        time_ns: int,
        event_type: str,
        allocated: int | None,
        counters: tuple[int | None, ...],
        collector: str,
        interval_ms: int,
        context: str | None,
        metadata: str,
        text: bytes = b"",
    ) -> str:
        """Return a mark's JSON without its ids.

        `counters` are the values of `COUNTERS`. `metadata` is compact JSON, "" for an empty object.
        `text` is the record's text if it must be kept.
        """
        quoted = self._strings
        device, reserved, active, inactive, change, used, free, total = counters
        value = (
            f'"string","value":{quoted[event_type]}'
            if allocated is None
            else f'"int","value":{allocated}'
        )
        return (
            f'{{"name":{quoted[PREFIX + event_type]},"value_type":{value},"attrs":{{'
            f'"device_id":{device}'
            f'{"" if reserved is None else f""","allocator_reserved_bytes":{reserved}"""}'
            f'{"" if active is None else f""","allocator_active_bytes":{active}"""}'
            f'{"" if inactive is None else f""","allocator_inactive_bytes":{inactive}"""}'
            f'{"" if change is None else f""","allocator_change_bytes":{change}"""}'
            f'{"" if used is None else f""","device_used_bytes":{used}"""}'
            f'{"" if free is None else f""","device_free_bytes":{free}"""}'
            f'{"" if total is None else f""","device_total_bytes":{total}"""}'
            f',"collector":{quoted[collector]},"sampling_interval_ms":{interval_ms}'
            f'{"" if context is None else f""","context":{quoted[context]}"""}'
            f'{f""","metadata":{metadata}""" if metadata else ""}'
            f'}},"ts_ns":{time_ns},"kind":"point"'
            f'{f""","{KEY}":{{"{TEXT}":{json_text(text_json(text))}}}""" if text else ""}}}'
        )


def json_text(value: Any) -> str:
    """Return a value as compact JSON."""
    try:
        text = orjson.dumps(value)
    except (orjson.JSONEncodeError, RecursionError):
        return exactjson.dumps(value).decode()
    if b"null" in text and _has_nonfinite(value):
        return exactjson.dumps(value).decode()
    return text.decode()


def record_of(mark: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event that a mark represents, in the order of `FIELDS`.

    `session` has the fields of the session. Raises InputError if the mark is not one of Stormlog's.
    """
    name, attrs = mark.get("name"), mark.get("attrs")
    if not isinstance(name, str) or not name.startswith(PREFIX) or not isinstance(attrs, dict):
        raise InputError("the mark is not an event of Stormlog's")
    values = {key: attrs.get(key) for key in ATTRIBUTES}
    values |= {key: session.get(key) for key in SESSION_FIELDS}
    values["timestamp_ns"] = mark.get("ts_ns")
    values["event_type"] = name.removeprefix(PREFIX)
    is_known = mark.get("value_type") == "int"
    values["allocator_allocated_bytes"] = mark.get("value") if is_known else None
    values["metadata"] = attrs.get("metadata", {})
    return {key: values[key] for key in FIELDS}
