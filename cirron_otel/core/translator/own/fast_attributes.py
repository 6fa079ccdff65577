"""Translate the serialised KeyValues of our own spans and events into JSON text.

Text is UTF-8 with one character for each byte (Latin-1), as in `json_text_cache`. The order on the
wire is not significant, since `canonical_form` does not compare it. A repeated key raises
NotCanonicalError.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from ....semconv import ESCAPE
from ..attribute_cache import Pairs
from ..json_text_cache import LARGEST_KNOWN, Memo, quoted
from ..pieces import SPAN_TAG, sized
from ..typed import NotCanonicalError, encode
from ..values import UnencodableError, add, escape, is_reserved, read_value
from .fast_wire import length_at

_INT, _DOUBLE = 0x18, 0x21
_SIZES = {_INT: range(2, 12), _DOUBLE: range(9, 10)}
"""The valid sizes in bytes of a number and its tag, by the tag."""
_USERS, _OURS, _ESCAPED = range(3)
_ESCAPE = len(ESCAPE) + 1
"""The length of the prefix of an escaped key in JSON text, including the quotation mark."""
_double = Struct("<d").unpack_from


class AttributeCache(Pairs):
    """`Pairs` that also reads null, nested and non-finite values."""

    def _slowly(self, data: bytes) -> tuple[str, str]:
        try:
            return super()._slowly(data)
        except NotCanonicalError:
            return self._nested(data)

    def _nested(self, data: bytes) -> tuple[str, str]:
        """Read a value of any kind.

        Raises NotCanonicalError if encoding the value again does not produce the same bytes.
        """
        field = SPAN_TAG + sized(data)
        try:
            (pair,) = Span.FromString(field).attributes
            value = read_value(pair.value)
        except (DecodeError, UnencodableError):
            raise NotCanonicalError from None
        again = Span()
        add(again.attributes, pair.key, value)
        if again.SerializeToString() != field:
            raise NotCanonicalError
        key = pair.key.encode()
        text = exactjson.dumps(value).decode("latin-1")
        return self._found(data, key.decode("latin-1"), f"{quoted(key)}:{text}")


class _OwnerCache(Memo):
    """The owner of each attribute key: the mapping, or the user (an escaped or a plain key)."""

    def __missing__(self, key: str) -> int:
        name = key.encode("latin-1").decode()
        if is_reserved(name):
            owner = _OURS
        elif escape(name.removeprefix(ESCAPE)) != name:
            raise NotCanonicalError  # escaped although it needs no escape
        else:
            owner = _ESCAPED if name.startswith(ESCAPE) else _USERS
        if len(key) <= LARGEST_KNOWN:
            self.keep(key, owner)
        return owner


class _Head(NamedTuple):
    """The first bytes of a numeric attribute, up to the number."""

    size: int
    """The size of the attribute in bytes."""
    kind: int
    key: str
    member: str
    """The key as JSON, followed by a colon; empty for an attribute of the mapping."""


class _Heads(Memo):
    """The `_Head` of each byte string; None for an attribute that is not numeric."""


_pairs = AttributeCache()
_owners = _OwnerCache()
_heads = _Heads()


def read_attributes(
    data: bytes, at: int, end: int, tag: int
) -> tuple[dict[str, str], dict[str, str], int]:
    """Read the attributes at `at`.

    Returns the mapping's attributes as JSON values by key, the user's as members of a JSON object,
    and the position after them.
    """
    ours: dict[str, str] = {}
    users: dict[str, str] = {}
    count = 0
    while at < end and data[at] == tag:
        size, begin = data[at + 1], at + 2
        if size > 127:
            size, begin = length_at(data, at + 1)
        at = begin + size
        count += 1
        value = begin + data[begin + 1] + 5
        head = _heads.get(data[begin:value])
        if head is None or head.size != size:
            _add(data[begin:at], data[begin:value], ours, users)
            continue
        if head.kind == _INT:
            number, after = data[value], value + 1
            if number > 127:
                number, after = length_at(data, value)
            if after != at:
                raise NotCanonicalError
            text = str(number if number < 2**63 else _negative(number))
        else:
            text = _finite(data, value)
        if head.member:
            users[head.key] = head.member + text
        else:
            ours[head.key] = text
    if at > end or count != len(ours) + len(users):
        raise NotCanonicalError
    return ours, users, at


def _negative(number: int) -> int:
    if number >= 2**64:
        raise NotCanonicalError
    return number - 2**64


def _finite(data: bytes, at: int) -> str:
    number: float = _double(data, at)[0]
    if number - number != 0.0:
        raise NotCanonicalError
    return encode(number).decode()


def _add(data: bytes, head: bytes, ours: dict[str, str], users: dict[str, str]) -> None:
    """Add an attribute of any type; cache its `_Head` if it is numeric.

    `head` contains the first bytes of the attribute; if it is numeric, the bytes up to the number.
    """
    key, member = _pairs[data]
    owner = _owners[key]
    text = member[len(key) + 3 :] if owner == _OURS else ""
    if owner == _ESCAPED:
        member = '"' + member[_ESCAPE:]
    if owner == _OURS:
        ours[key] = text
    else:
        users[key] = member
    size, kind = head[-2], head[-1]
    if size not in _SIZES.get(kind, ()) or len(data) != len(head) + size - 1:
        return
    if len(head) <= LARGEST_KNOWN and head[0] == 0x0A and head[-3] == 0x12 and data[1] < 128:
        name = quoted(key.encode("latin-1").removeprefix(ESCAPE.encode())) + ":"
        _heads.keep(head, _Head(len(data), kind, key, "" if owner == _OURS else name))


def object_of(users: dict[str, str]) -> str:
    """Join the user's attributes into a JSON object."""
    return f"{{{','.join(users.values())}}}" if users else "{}"


def int_of(text: str | None) -> int | None:
    """Convert the JSON text of an int; None stays None. Raises NotCanonicalError for other text."""
    return None if text is None else int(int_text(text))


def int_text(text: str) -> str:
    """Return `text` if it is the JSON of an int, else raise NotCanonicalError."""
    if not text.isdigit() and not (text[0] == "-" and text[1:].isdigit()):
        raise NotCanonicalError
    return text


def string_of(text: str | None) -> str:
    """Return `text` if it is a JSON string, else raise NotCanonicalError."""
    if text is None or text[0] != '"':
        raise NotCanonicalError
    return text
