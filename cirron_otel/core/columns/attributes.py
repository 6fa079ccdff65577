"""Convert between the attributes of a record and the entries of the column `attributes`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from ... import exactjson
from ...errors import InputError
from ..records.columns import well_formed
from .schema import Entry

_MAX_64 = 1 << 63
_CACHED_BYTES = 200
_MAX_DEPTH = exactjson.MAX_DEPTH - 3
"""The deepest nesting: the batch, its list and the record are three levels."""
_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode

Entries: TypeAlias = tuple[Entry, ...]


def entries_of(value: Any) -> Entries:
    """Return the entries of a record's attributes, a value of `exactjson.loads`.

    Keys that differ only in halves of surrogate pairs become one. A value that is not an object, or
    that repeats a key, has no entries.
    """
    if not isinstance(value, dict):
        return ()
    entries = {(key := well_formed(name)): _entry(key, each) for name, each in value.items()}
    return tuple(entries.values())


def attributes_of(entries: Entries) -> dict[str, Any]:
    """Return the attributes of entries. Raises InputError if a JSON text is damaged."""
    return {entry[0]: _value_of(entry) for entry in entries}


def entries_of_text(text: bytes) -> Entries | None:
    """Return the entries of attributes that are JSON text.

    Returns None if `attributes_of` would not restore the value of `text` from them. Raises
    InputError if it is nested too deep.
    """
    if text == b"{}":
        return ()
    return _known(text) if len(text) <= _CACHED_BYTES else _read(text)


def _entry(key: str, value: Any) -> Entry:
    kind = type(value)
    if kind is str and well_formed(value) == value:
        return Entry(key, string_value=value)
    if kind is bool:
        return Entry(key, bool_value=value)
    if kind is int and -_MAX_64 <= value < _MAX_64:
        return Entry(key, int_value=value)
    if kind is float:
        return Entry(key, double_value=value)
    return Entry(key, json_value=exactjson.dumps_ascii(value))


def _value_of(entry: Entry) -> Any:
    for value in entry[1:5]:
        if value is not None:
            return value
    if entry.json_value is None:
        raise InputError(f"the attribute {entry.key[:40]!a} has no value")
    return exactjson.loads(entry.json_value)


def _read(text: bytes) -> Entries | None:
    try:
        value = _decode(text)
        if _encode(value) == text:
            return entries_of(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    exact = exactjson.loads(text, max_depth=_MAX_DEPTH)
    entries = entries_of(exact)
    return entries if exactjson.equal(attributes_of(entries), exact) else None


_known = lru_cache(maxsize=8192)(_read)
