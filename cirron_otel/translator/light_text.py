"""The JSON text of what a span read by light_spans has, but for its attributes.

No value is made of what becomes text at once: a name or a status stands in thousands of spans, and
its text is made once. What JSON cannot say exactly, and what is not in canonical form, is for the
slow way (SlowError).
"""

from __future__ import annotations

from collections.abc import Callable
from json.encoder import encode_basestring as quoted
from typing import Any

import msgspec
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from .events import Record
from .light_spans import is_canonical

MOST_KNOWN = 2048
LARGEST_KNOWN = 128
"""Bytes of what is kept, but for attributes."""
LARGEST = 65_536
"""Bytes of what is made text here: a character of four bytes makes all of its text as wide."""
_READ: dict[Any, set[str]] = {
    KeyValue: {"key", "value"},
    AnyValue: {field.name for field in AnyValue.DESCRIPTOR.fields},
    Status: {"code", "message"},
}
"""The fields that are told here; OTLP has more (`key_strindex`, for profiles), and may get more."""
_UNREAD = {
    kind: frozenset(field.name for field in kind.DESCRIPTOR.fields) - names
    for kind, names in _READ.items()
}

encode = msgspec.json.Encoder().encode
MemberOf = Callable[[bytes], tuple[str, str]]
"""The key of a serialised KeyValue, and its member of a JSON object."""


class SlowError(Exception):
    """Something that a readable view does not say exactly."""


class Memo(dict[Any, Any]):
    """What was made of bytes, by them; a few at a time. What is missing is made (`__missing__`)."""

    def keep(self, key: Any, found: Any) -> Any:
        """Know it from now on; returns it."""
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[key] = found
        return found


def read(kind: Any, data: bytes) -> Any:
    """A message that has nothing but what is told of it here. Raises SlowError, DecodeError."""
    if len(data) > LARGEST:
        raise SlowError
    message = kind.FromString(data)
    if not is_canonical(message, data):
        raise SlowError
    unread = _UNREAD[kind]
    if unread and any(field.name in unread for field, _ in message.ListFields()):
        raise SlowError
    return message


class Names(Memo):
    """A text as JSON, by its bytes. Raises SlowError, UnicodeDecodeError."""

    def __missing__(self, data: bytes) -> str:
        text = _quoted(data)
        return text if len(data) > LARGEST_KNOWN else self.keep(data, text)


def _quoted(data: bytes) -> str:
    if len(data) > LARGEST:
        raise SlowError
    return quoted(data.decode())


class Ends(Memo):
    """What most spans have in `otel` behind their trace: by kind, serialised Status, and flags.

    Each member has a comma before it. Raises SlowError, DecodeError.
    """

    def __missing__(self, key: tuple[int, bytes | None, int]) -> str:
        kind, status, flags = key
        told: Record = {}
        if kind:
            told["kind"] = kind
        if status is not None:
            told["status"] = _status(status)
        if flags:
            told["flags"] = flags
        text = _members(told)
        is_long = status is not None and len(status) > LARGEST_KNOWN
        return text if is_long else self.keep(key, text)


def _members(told: Record) -> str:
    return "," + encode(told)[1:-1].decode() if told else ""


def _status(data: bytes) -> Record:
    status = read(Status, data)
    found: Record = {}
    if code := status.code:
        found["code"] = code
    if told := status.message:
        found["message"] = told
    return found


# --- what few spans have --------------------------------------------------------------------------

_EVENT_TIME, _EVENT_NAME, _EVENT_ATTRIBUTE = 0x09, 0x12, 0x1A
_LINK_IDS, _LINK_SPAN_ID = b"\x0a\x10", b"\x12\x08"
_LINK_STATE, _LINK_ATTRIBUTE, _LINK_FLAGS = 0x1A, 0x22, 0x35


def rare(span: Any, member_of: MemberOf, names: Names) -> str:
    """What most spans have not, as `Ends` tells it. Raises SlowError, and as `member_of` does."""
    told = ""
    if state := span.trace_state:
        told = f',"trace_state":{_quoted(state)}'
    if dropped := span.dropped_attributes_count:
        told += f',"dropped_attributes_count":{dropped}'
    if dropped := span.dropped_events_count:
        told += f',"dropped_events_count":{dropped}'
    if dropped := span.dropped_links_count:
        told += f',"dropped_links_count":{dropped}'
    if links := span.links[:]:
        told += f',"links":[{",".join([_link(link, member_of) for link in links])}]'
    if events := span.events[:]:
        told += f',"events":[{",".join([_event(event, member_of, names) for event in events])}]'
    if len(told) > LARGEST:
        raise SlowError
    return told


def _event(data: bytes, member_of: MemberOf, names: Names) -> str:
    """A serialised event with a time, a name and perhaps attributes, and with no more.

    It is read here: a message of its own takes longer than its text.
    """
    size = len(data)
    if size < 12 or data[0] != _EVENT_TIME or data[9] != _EVENT_NAME or not 0 < data[10] < 0x80:
        raise SlowError
    at = 11 + data[10]
    time = int.from_bytes(data[1:9], "little")
    if not time or at > size:
        raise SlowError
    told = f'{{"name":{names[data[11:at]]},"time_ns":{time}'
    if at == size:
        return told + "}"
    members, at = _attributes(data, at, _EVENT_ATTRIBUTE, member_of)
    if at != size:
        raise SlowError
    return f'{told},"attributes":{{{members}}}}}'


def _link(data: bytes, member_of: MemberOf) -> str:
    """A serialised link with both ids, and perhaps trace_state, attributes and flags."""
    size = len(data)
    if size < 28 or data[:2] != _LINK_IDS or data[18:20] != _LINK_SPAN_ID:
        raise SlowError
    told = f'{{"trace_id":"{data[2:18].hex()}","span_id":"{data[20:28].hex()}"'
    at = 28
    if size > 30 and data[28] == _LINK_STATE:
        at = 30 + data[29]
        if not 30 < at <= min(size, 30 + 0x7F):
            raise SlowError
        told += f',"trace_state":{_quoted(data[30:at])}'
    members, at = _attributes(data, at, _LINK_ATTRIBUTE, member_of)
    if at == size - 5 and data[at] == _LINK_FLAGS:
        flags = int.from_bytes(data[at + 1 :], "little")
        if not flags:
            raise SlowError
        told, at = f'{told},"flags":{flags}', size
    if at != size:
        raise SlowError
    return f'{told},"attributes":{{{members}}}}}' if members else told + "}"


def _attributes(data: bytes, at: int, tag: int, member_of: MemberOf) -> tuple[str, int]:
    """The members of the attributes that begin at `at`, and where they end."""
    members, count, size = {}, 0, len(data)
    while at < size and data[at] == tag:
        begins = at + 2
        if begins >= size:
            raise SlowError
        length = data[at + 1]
        if length > 0x7F:
            high = data[begins]
            if not 0 < high < 0x80:
                raise SlowError
            length, begins = length & 0x7F | high << 7, begins + 1
        at = begins + length
        if at > size:
            raise SlowError
        key, members[key] = member_of(data[begins:at])
        count += 1
    if count != len(members):
        raise SlowError  # a key twice
    return ",".join(members.values()), at
