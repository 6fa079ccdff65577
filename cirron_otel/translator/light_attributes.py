"""Serialised attributes as members of a JSON object, as light_text tells the rest of a span.

An attribute stands in thousands of spans: its text is made once. Nearly all are short, so that a
few bytes tell their form; what is not goes through a message.
"""

from __future__ import annotations

import struct
from json.encoder import encode_basestring as quoted
from typing import Any

from msgspec import Struct
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from .light_text import MOST_KNOWN, Memo, SlowError, encode, read

_INFINITE = float("inf")
_KEY, _VALUE, _STRING, _BOOL, _INT, _DOUBLE, _ARRAY = 0x0A, 0x12, 0x0A, 0x10, 0x18, 0x21, 0x2A
_ITEM = 0x0A
_SIZES = {
    _STRING: range(2, 128),
    _BOOL: range(2, 3),
    _INT: range(2, 11),  # a tag and nine bytes: all that are not negative
    _DOUBLE: range(9, 10),
    _ARRAY: range(2, 128),
}
"""Of a value, with its tag and its length, bytes."""
_SHORTEST = 7
"""A key of a letter and a number of a byte."""
_FEW = 64
"""So many values of a key are kept before they are too many."""
_LARGEST_KNOWN = 1024
"""Bytes of what is kept, as a query or where an exception was raised: two MiB in all, at most."""
_VALUES = frozenset({"string_value", "int_value", "bool_value", "double_value"})
_BOOLS = {b"\0": "false", b"\1": "true"}
_double = struct.Struct("<d").unpack


class _Head(Struct, gc=False):
    """What the first bytes of serialised KeyValues say, up to their value's kind."""

    key: str
    member: str
    """The key as JSON, and a colon."""
    size: int
    """Of the whole KeyValue, bytes."""
    kind: int
    """The tag of its value."""
    text: int
    """Bytes of the text or the array that its value is."""
    kept: _Kept
    """Of the key."""


class _Kept(Struct, gc=False):
    """How many values of a key are kept, or were."""

    values: int = 0


class Pairs(Memo):
    """The key of a serialised KeyValue, and its member of a JSON object: key, colon and value.

    A key whose values are many is not worth keeping. Raises SlowError; DecodeError and
    UnicodeDecodeError for what is no KeyValue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heads = _Heads()
        self._items = _Items()

    def clear(self) -> None:
        """Know nothing any more but whose values are many."""
        super().clear()
        self._heads.forget()

    def __missing__(self, data: bytes) -> tuple[str, str]:
        size = len(data)
        if size >= _SHORTEST:
            at = data[1] + 5
            head = self._heads[data[:at]]
            if head is None:
                long = _long(data)
                if long is not None:
                    return self._kept(data, *long)
            elif head.size == size:
                told = self._short(data, head, at)
                if told is not None:
                    found = head.key, head.member + told
                    if head.kept.values < _FEW:
                        head.kept.values += 1
                        self.keep(data, found)
                    return found
        return self._slowly(data)

    def _short(self, data: bytes, head: _Head, at: int) -> str | None:
        """The value begins at `at`; None where it is not in canonical form, or no such value."""
        kind = head.kind
        if kind == _STRING:
            return quoted(data[at + 1 :].decode()) if data[at] == head.text else None
        if kind == _INT:
            return _number(data, at)
        if kind == _ARRAY:
            return self._array(data, at + 1) if data[at] == head.text else None
        if kind == _BOOL:
            return _BOOLS.get(data[at:])
        number: float = _double(data[at:])[0]
        return str(encode(number), "ascii") if -_INFINITE < number < _INFINITE else None

    def _array(self, data: bytes, at: int) -> str | None:
        """Items of at most 127 bytes each, for the array is no longer."""
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
        key = pair.key
        return self._kept(data, key, f"{quoted(key)}:{encode(_value(pair.value)).decode()}")

    def _kept(self, data: bytes, key: str, member: str) -> tuple[str, str]:
        found = key, member
        if len(data) <= _LARGEST_KNOWN:
            kept = self._heads.kept(key)
            if kept.values < _FEW:
                kept.values += 1
                self.keep(data, found)
        return found


class _Heads(Memo):
    """By the first bytes of KeyValues: their _Head, None where it says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, _Kept] = {}

    def __missing__(self, data: bytes) -> _Head | None:
        head: _Head | None = self.keep(data, self._head(data))
        return head

    def forget(self) -> None:
        """Nothing is kept any more of keys with few values."""
        for kept in self._kept.values():
            kept.values = kept.values if kept.values >= _FEW else 0

    def kept(self, key: str) -> _Kept:
        """How many are kept of a key."""
        if key not in self._kept:
            if len(self._kept) >= MOST_KNOWN:
                self._kept.clear()
            self._kept[key] = _Kept()
        return self._kept[key]

    def _head(self, data: bytes) -> _Head | None:
        """None where it is no short one of a text or a number: lengths and tags are a byte each."""
        at = len(data) - 3
        if data[0] != _KEY or data[1] > 127 or at != data[1] + 2 or data[at] != _VALUE:
            return None
        size, kind = data[at + 1], data[at + 2]
        if size not in _SIZES.get(kind, ()):
            return None
        key = data[2:at].decode()
        return _Head(key, f"{quoted(key)}:", at + 2 + size, kind, size - 2, self.kept(key))


class _Items(Memo):
    """A serialised AnyValue as JSON. Raises as Pairs does."""

    def __missing__(self, data: bytes) -> str:
        if len(data) > 1 and data[0] == _STRING and data[1] == len(data) - 2:
            text = quoted(data[2:].decode())
        else:
            item = read(AnyValue, data)
            text = encode(_scalar(item, item.WhichOneof("value"))).decode()
        self.keep(data, text)
        return text


def _long(data: bytes) -> tuple[str, str] | None:
    """A KeyValue of a text of up to 16,380 bytes whose size takes two; None where it is no such."""
    at = data[1] + 2
    if data[0] != _KEY or data[1] > 127 or at + 6 > len(data) or data[at] != _VALUE:
        return None
    low, high, kind = data[at + 1 : at + 4]
    size = low & 0x7F | high << 7
    if low < 0x80 or not 0 < high < 0x80 or at + 3 + size != len(data) or kind != _STRING:
        return None
    low, high = data[at + 4 : at + 6]
    begins = at + 5
    if low < 0x80:
        high = 0
    elif 0 < high < 0x80:
        begins += 1
    else:
        return None
    if begins + (low & 0x7F | high << 7) != len(data):
        return None
    key = data[2:at].decode()
    return key, f"{quoted(key)}:{quoted(data[begins:].decode())}"


def _number(data: bytes, at: int) -> str | None:
    """The number that the rest of `data` is, in the fewest bytes; None where it is none."""
    last = data[-1]
    if last > 0x7F or (not last and len(data) > at + 1):
        return None  # it is cut off, or in more bytes than it needs
    number = last
    for byte in data[-2 : at - 1 : -1]:
        if byte < 0x80:
            return None  # there is more than a number
        number = number << 7 | byte & 0x7F
    return str(number)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_scalar(item, item.WhichOneof("value")) for item in value.array_value.values]
    return _scalar(value, kind)


def _scalar(value: Any, kind: str | None) -> Any:
    if kind not in _VALUES:
        raise SlowError
    found = getattr(value, kind)
    if kind == "double_value" and not -_INFINITE < found < _INFINITE:
        raise SlowError
    return found
