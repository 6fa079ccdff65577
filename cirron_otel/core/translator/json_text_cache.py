"""The JSON text of messages that occur in thousands of spans, cached by their bytes.

Text is UTF-8 with one character for each byte (Latin-1): a character of several bytes makes no row
wider, and a row becomes bytes without being encoded. NotCanonicalError marks input that JSON cannot
express exactly or that is not in the usual form: it takes the generic path.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Any

import msgspec
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from .events import Record
from .lazy_parse import is_canonical
from .typed import NotCanonicalError

MOST_KNOWN = 2048
LARGEST_KNOWN = 128
"""The maximum size of a cached item in bytes, except for attributes."""
LARGEST = 65_536
"""The maximum size in bytes of a message that is read here: its text may be four times as long."""
_READ: dict[Any, set[str]] = {
    KeyValue: {"key", "value"},
    AnyValue: {field.name for field in AnyValue.DESCRIPTOR.fields},
    Status: {"code", "message"},
}
"""The fields that this module reads.

OTLP has more (`key_strindex`, for profiles), and may get more.
"""
_UNREAD = {
    kind: frozenset(field.name for field in kind.DESCRIPTOR.fields) - names
    for kind, names in _READ.items()
}
_STATUS, _FLAGS = 0x7A, b"\x85\x01"

_encode = msgspec.json.Encoder().encode


class Memo(dict[Any, Any]):
    """A bounded cache of results by their bytes; `__missing__` computes a missing one."""

    def keep(self, key: Any, found: Any) -> Any:
        """Cache a result, and return it."""
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[key] = found
        return found


def read(kind: Any, data: bytes) -> Any:
    """Parse a message that has only the fields that this module reads.

    Raises NotCanonicalError for a message with other fields, and DecodeError.
    """
    if len(data) > LARGEST:
        raise NotCanonicalError
    message = kind.FromString(data)
    if not is_canonical(message, data):
        raise NotCanonicalError
    unread = _UNREAD[kind]
    if unread and any(field.name in unread for field, _ in message.ListFields()):
        raise NotCanonicalError
    return message


def plain(data: bytes) -> str:
    """Return UTF-8 with one character for each byte. Raises UnicodeDecodeError."""
    text = data.decode()
    return text if text.isascii() else data.decode("latin-1")


def quoted(data: bytes) -> str:
    """Return a text as JSON, from its UTF-8. Raises UnicodeDecodeError."""
    return encode_basestring(plain(data))


def encoded(value: Any) -> str:
    """Return a value as JSON."""
    return _encode(value).decode("latin-1")


def length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length of at most 2 MiB at `at`; return it and the index after it.

    Raises NotCanonicalError if the varint is longer than needed or than three bytes, and IndexError
    at the end of the data.
    """
    low = data[at]
    if low < 0x80:
        return low, at + 1
    high = data[at + 1]
    if 0 < high < 0x80:
        return low & 0x7F | high << 7, at + 2
    highest = data[at + 2]
    if not (high > 0x7F and 0 < highest < 0x80):
        raise NotCanonicalError
    return low & 0x7F | (high & 0x7F) << 7 | highest << 14, at + 3


class Names(Memo):
    """Maps texts in UTF-8 to JSON. A lookup raises UnicodeDecodeError."""

    def __missing__(self, data: bytes) -> str:
        text = quoted(data)
        return text if len(data) > LARGEST_KNOWN else self.keep(data, text)


class Ends(Memo):
    """The members of `otel` after the trace, as JSON text, by kind and last bytes of a span.

    The last bytes are status and flags. Each member is preceded by a comma. A lookup raises
    NotCanonicalError, DecodeError and IndexError.
    """

    def __missing__(self, key: tuple[int, bytes]) -> str:
        kind, data = key
        members: Record = {}
        if kind:
            members["kind"] = kind
        at = 0
        if data and data[0] == _STATUS:
            size, begins = length(data, 1)
            at = begins + size
            if at > len(data):
                raise NotCanonicalError
            members["status"] = _status(data[begins:at])
        if rest := data[at:]:
            flags = int.from_bytes(rest[2:], "little")
            if rest[:2] != _FLAGS or len(rest) != 6 or not flags:
                raise NotCanonicalError
            members["flags"] = flags
        text = f",{encoded(members)[1:-1]}" if members else ""
        return text if len(data) > LARGEST_KNOWN else self.keep(key, text)


def _status(data: bytes) -> Record:
    status = read(Status, data)
    members: Record = {}
    if code := status.code:
        members["code"] = code
    if message := status.message:
        members["message"] = message
    return members
