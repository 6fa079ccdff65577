"""Translate serialised attributes into members of a JSON object, cached by their bytes.

The same attribute occurs in thousands of spans, so its text is built once. Most attributes are
short: their first bytes determine how to read the value. The others are parsed as messages.
"""

from __future__ import annotations

import struct
from json.encoder import encode_basestring
from typing import Any

from msgspec import Struct
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from .json_text_cache import MOST_KNOWN, Memo, encoded, length, plain, quoted, read
from .typed import NotCanonicalError

_INFINITE = float("inf")
_KEY, _VALUE, _STRING, _BOOL, _INT, _DOUBLE, _ARRAY = 0x0A, 0x12, 0x0A, 0x10, 0x18, 0x21, 0x2A
_ITEM = 0x0A
_SIZES = {
    _STRING: range(2, 128),
    _BOOL: range(2, 3),
    _INT: range(2, 11),  # a tag, and up to nine bytes for a non-negative number
    _DOUBLE: range(9, 10),
    _ARRAY: range(2, 128),
}
"""The valid sizes in bytes of a value including its tag and length, by the tag."""
_SHORTEST = 7
"""The minimum size in bytes of an attribute from which a `_Head` can be read."""
_FEW = 64
"""The maximum number of cached values per key; a key with more values is not worth caching."""
_LARGEST_KNOWN = 2048
"""The maximum size in bytes of a cached attribute, including its string (such as a query or a stack
trace). It limits the cache to 4 MiB.
"""
_LASTING = 16
"""How many times the cache is cleared before keys with many values may be cached again."""
_VALUES = frozenset({"string_value", "int_value", "bool_value", "double_value"})
_BOOLS = {b"\0": "false", b"\1": "true"}
_double = struct.Struct("<d").unpack_from


class _Count(Struct, gc=False):
    """The number of values of a key that have been cached."""

    values: int = 0


class Pairs(Memo):
    """Maps a serialised KeyValue to its key and to its member of a JSON object (key, colon, value).

    Values of a key with many different values are not cached. A lookup raises NotCanonicalError if
    the KeyValue needs the generic path, and DecodeError, UnicodeDecodeError or IndexError if the
    data is not a KeyValue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heads = _Heads()
        self._items = _Items()
        self._cleared = 0

    def clear(self) -> None:
        """Clear the cache, but remember for some time which keys have many values."""
        super().clear()
        self._cleared += 1
        self._heads.forget(at_all=not self._cleared % _LASTING)

    def __missing__(self, data: bytes) -> tuple[str, str]:
        size = len(data)
        if size < _SHORTEST:
            return self._slowly(data)
        at = data[1] + 5
        head = self._heads[data[:at]]
        if head is None:
            long = _long(data)
            return self._found(data, *long) if long else self._slowly(data)
        key, member, whole, kind, inner, count = head
        if whole != size:
            return self._slowly(data)
        if kind == _STRING and data[at] == inner:
            text = data[at + 1 :].decode()
            if len(text) != inner:
                text = data[at + 1 :].decode("latin-1")
            pair = key, member + encode_basestring(text)
        else:
            value_text = _number(data, at) if kind == _INT else self._other(kind, inner, data, at)
            if value_text is None:
                return self._slowly(data)
            pair = key, member + value_text
        if count.values < _FEW:
            count.values += 1
            self.keep(data, pair)
        return pair

    def _other(self, kind: int, inner: int, data: bytes, at: int) -> str | None:
        """Return the JSON of a value that is neither a string nor an int; `at` is after its tag.

        Returns None if the value is not in canonical form or is of a kind that this method does not
        read.
        """
        if kind == _ARRAY:
            return self._array(data, at + 1) if data[at] == inner else None
        if kind == _BOOL:
            return _BOOLS.get(data[at:])
        if kind == _DOUBLE:
            number: float = _double(data, at)[0]
            return encoded(number) if -_INFINITE < number < _INFINITE else None
        return None

    def _array(self, data: bytes, at: int) -> str | None:
        """Return an array as JSON; None if it is not valid. The array has at most 127 bytes."""
        items, size = [], len(data)
        while at < size - 1:
            if data[at] != _ITEM:
                return None
            ends = at + 2 + data[at + 1]
            items.append(self._items[data[at + 2 : ends]])
            at = ends
        return f"[{','.join(items)}]" if at == size else None

    def _slowly(self, data: bytes) -> tuple[str, str]:
        pair = read(KeyValue, data)
        key = pair.key.encode()
        return self._found(data, plain(key), f"{quoted(key)}:{encoded(_value(pair.value))}")

    def _found(self, data: bytes, key: str, member: str) -> tuple[str, str]:
        pair = key, member
        if len(data) + len(member) <= _LARGEST_KNOWN:
            count = self._heads.count(key)
            if count.values < _FEW:
                count.values += 1
                self.keep(data, pair)
        return pair


_Head = tuple[str, str, int, int, int, _Count]
"""The first bytes of a KeyValue, decoded, up to the tag of its value.

The fields are the key, the key as JSON with a colon, the size in bytes of the complete KeyValue,
the tag, the size in bytes of a string or array, and the key's count of cached values.
"""


class _Heads(Memo):
    """Maps the first bytes of a KeyValue to its head; to None if the KeyValue is not short."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, _Count] = {}

    def __missing__(self, data: bytes) -> _Head | None:
        head: _Head | None = self.keep(data, self._head(data))
        return head

    def forget(self, *, at_all: bool) -> None:
        """Reset the counts of cached values.

        With `at_all`, this resets the counts of all keys, otherwise only the counts of keys whose
        values are still being cached.
        """
        for count in self._counts.values():
            count.values = 0 if at_all or count.values < _FEW else count.values

    def count(self, key: str) -> _Count:
        """Return the count of cached values of a key."""
        if key not in self._counts:
            if len(self._counts) >= MOST_KNOWN:
                self._counts.clear()
                self.clear()
            self._counts[key] = _Count()
        return self._counts[key]

    def _head(self, data: bytes) -> _Head | None:
        """Decode the head of a short KeyValue whose value is of a kind in `_SIZES`.

        The lengths and tags of a short KeyValue are one byte each. Returns None for any other
        KeyValue.
        """
        at = len(data) - 3
        if data[0] != _KEY or data[1] > 127 or at != data[1] + 2 or data[at] != _VALUE:
            return None
        size, kind = data[at + 1], data[at + 2]
        if size not in _SIZES.get(kind, ()):
            return None
        name = data[2:at]
        key = plain(name)
        return key, f"{quoted(name)}:", at + 2 + size, kind, size - 2, self.count(key)


class _Items(Memo):
    """Maps a serialised AnyValue to JSON. A lookup raises the errors of a lookup in `Pairs`."""

    def __missing__(self, data: bytes) -> str:
        if len(data) > 1 and data[0] == _STRING and data[1] == len(data) - 2:
            text = quoted(data[2:])
        else:
            item = read(AnyValue, data)
            text = encoded(_scalar(item, item.WhichOneof("value")))
        self.keep(data, text)
        return text


def _long(data: bytes) -> tuple[str, str] | None:
    """Return the key and member of a KeyValue whose value is a string of up to 2 MiB.

    Returns None for any other KeyValue.
    """
    at = data[1] + 2
    if data[0] != _KEY or data[1] > 0x7F or at + 5 > len(data) or data[at] != _VALUE:
        return None
    size, begins = length(data, at + 1)
    if begins + size != len(data) or data[begins] != _STRING:
        return None
    size, begins = length(data, begins + 1)
    if begins + size != len(data):
        return None
    key = data[2:at]
    return plain(key), f"{quoted(key)}:{quoted(data[begins:])}"


def _number(data: bytes, at: int) -> str | None:
    """Return the varint from `at` to the end in decimal; None if it is not in its shortest form."""
    last = data[-1]
    if last > 0x7F or (not last and len(data) > at + 1):
        return None  # truncated, or longer than necessary
    number = last
    for byte in data[-2 : at - 1 : -1]:
        if byte < 0x80:
            return None  # more data follows the number
        number = number << 7 | byte & 0x7F
    return str(number)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_scalar(item, item.WhichOneof("value")) for item in value.array_value.values]
    return _scalar(value, kind)


def _scalar(value: Any, kind: str | None) -> Any:
    if kind not in _VALUES:
        raise NotCanonicalError
    scalar = getattr(value, kind)
    if kind == "double_value" and not -_INFINITE < scalar < _INFINITE:
        raise NotCanonicalError
    return scalar


def attributes(data: bytes, at: int, tag: int, pairs: Pairs) -> tuple[dict[str, str], int]:
    """Read the attributes that start at `at`.

    Returns their members of a JSON object, by key, and the position after them. Raises
    NotCanonicalError, IndexError, and the errors of `Pairs`.
    """
    members: dict[str, str] = {}
    count, size = 0, len(data)
    while at < size and data[at] == tag:
        inner = data[at + 1]
        if inner < 0x80:
            begins = at + 2
        else:
            inner, begins = length(data, at + 1)
        at = begins + inner
        key, members[key] = pairs[data[begins:at]]
        count += 1
    if at > size or count != len(members):
        raise NotCanonicalError  # truncated, or a key is repeated
    return members, at
