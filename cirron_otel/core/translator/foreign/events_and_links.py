"""The less common fields of a span as JSON: dropped counts, events, links.

They are read without a parser: to create a message takes longer than to write its text. A span that
is not in the usual form takes the generic path.
"""

from __future__ import annotations

from ..attribute_cache import Pairs, attributes
from ..json_text_cache import Names, length, quoted
from ..typed import NotCanonicalError

_EVENT, _LINK = 0x5A, 0x6A
_DROPPED = {0x50: "attributes", 0x60: "events", 0x70: "links"}
FIRST, LAST = min(_DROPPED), max(_DROPPED)
"""The tags that may follow a span's attributes, among the fields that this module reads."""
_EVENT_TIME, _EVENT_NAME, _EVENT_ATTRIBUTE = 0x09, 0x12, 0x1A
_LINK_TRACE_ID, _LINK_SPAN_ID = b"\x0a\x10", b"\x12\x08"
_LINK_STATE, _LINK_ATTRIBUTE, _LINK_FLAGS = 0x1A, 0x22, 0x35


def more(data: bytes, at: int, pairs: Pairs, names: Names) -> tuple[str, int]:
    """Read a serialised span from `at` up to its status; return its members and the end position.

    Each member is preceded by a comma. Raises NotCanonicalError, IndexError, and the errors of
    Pairs.
    """
    text, events, links = "", [], []
    size, last = len(data), 0
    while at < size and last <= (tag := data[at]) <= LAST:
        inner, at = data[at + 1], at + 2
        if inner > 0x7F:
            inner, at = length(data, at - 1)
        if tag == _EVENT:
            events.append(_event(data[at : at + inner], pairs, names))
            at += inner
        elif tag == _LINK:
            links.append(_link(data[at : at + inner], pairs))
            at += inner
        elif tag in _DROPPED and last < tag and 0 < inner < 0x80:
            text += f',"dropped_{_DROPPED[tag]}_count":{inner}'
        else:
            raise NotCanonicalError
        last = tag
    if at > size:
        raise NotCanonicalError
    if links:
        text += f',"links":[{",".join(links)}]'
    if events:
        text += f',"events":[{",".join(events)}]'
    return text, at


def _event(data: bytes, pairs: Pairs, names: Names) -> str:
    """Read an event with a time, a name and perhaps attributes."""
    size = len(data)
    if data[0] != _EVENT_TIME or data[9] != _EVENT_NAME:
        raise NotCanonicalError
    inner, begins = length(data, 10)
    at = begins + inner
    if at > size:
        raise NotCanonicalError
    text = f'{{"name":{names[data[begins:at]]},"time_ns":{int.from_bytes(data[1:9], "little")}'
    if at == size:
        return text + "}"
    members, at = attributes(data, at, _EVENT_ATTRIBUTE, pairs)
    if at != size:
        raise NotCanonicalError
    return f'{text},"attributes":{{{",".join(members.values())}}}}}'


def _link(data: bytes, pairs: Pairs) -> str:
    """Read a link with both ids, and perhaps trace_state, attributes and flags."""
    size = len(data)
    if size < 28 or data[:2] != _LINK_TRACE_ID or data[18:20] != _LINK_SPAN_ID:
        raise NotCanonicalError
    text = f'{{"trace_id":"{data[2:18].hex()}","span_id":"{data[20:28].hex()}"'
    at = 28
    if at < size and data[at] == _LINK_STATE:
        inner, begins = length(data, 29)
        at = begins + inner
        if not inner or at > size:
            raise NotCanonicalError
        text += f',"trace_state":{quoted(data[begins:at])}'
    members, at = attributes(data, at, _LINK_ATTRIBUTE, pairs)
    if at == size - 5 and data[at] == _LINK_FLAGS:
        if flags := int.from_bytes(data[at + 1 :], "little"):
            text += f',"flags":{flags}'
        at = size
    if at != size:
        raise NotCanonicalError
    return f'{text},"attributes":{{{",".join(members.values())}}}}}' if members else text + "}"
