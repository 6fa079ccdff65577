"""Translate serialised spans to the JSON text of their rows, without a protobuf parser.

Creating a message would take longer than writing its text. A span, including its events and links,
is read in the order of its fields, from the first byte to the last: no byte is skipped, so no
content is lost unnoticed. For similar spans, a parser is just as fast; for varied spans, it takes
50 % longer (docs/adr/0012). A span with an unusual order or content takes the generic path.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from struct import error as StructError  # noqa: N812

from .... import semconv as sc
from ..attribute_cache import Pairs, attributes
from ..json_text_cache import Ends, Names, length, quoted
from ..typed import NotCanonicalError

_EVENT, _LINK = 0x5A, 0x6A
_DROPPED = {0x50: "attributes", 0x60: "events", 0x70: "links"}
FIRST, LAST = min(_DROPPED), max(_DROPPED)
"""The range of tags that `more` reads: the fields that may follow a span's attributes."""
_EVENT_TIME, _EVENT_NAME, _EVENT_ATTRIBUTE = 0x09, 0x12, 0x1A
_LINK_TRACE_ID, _LINK_SPAN_ID = b"\x0a\x10", b"\x12\x08"
_LINK_STATE, _LINK_ATTRIBUTE, _LINK_FLAGS = 0x1A, 0x22, 0x35


def more(data: bytes, at: int, pairs: Pairs, names: Names) -> tuple[str, int]:
    """Read the fields of a serialised span between its attributes and its status, from `at`.

    Returns their members as JSON text, each preceded by a comma, and the position after the fields.
    Raises NotCanonicalError, IndexError, and the errors of `Pairs`.
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
    """Read an event that has a time, a name and optionally attributes."""
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
    """Read a link that has both ids, and optionally trace_state, attributes and flags."""
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


_TRACE_ID, _SPAN_ID = 0x100A, 0x0812
"""The tag and length bytes of each id, combined into one number."""
_STATE, _PARENT, _NAME, _KIND, _START, _END, _ATTRIBUTE = 0x1A, 0x22, 0x2A, 0x30, 0x39, 0x41, 0x4A
_ZERO = bytes(8)
_NO_COSTS = "".join(f',"{name}":null' for _, name in sc.COSTS)
_head = struct.Struct("<H16sH8sB").unpack_from
_times = struct.Struct("<BQBQ").unpack_from


class Texts:
    """Caches the text of recent spans' parts for the following spans: at most 15 MiB."""

    def __init__(self) -> None:
        self.pairs, self.names, self.ends = Pairs(), Names(), Ends()


def add_rows(
    spans: Iterable[bytes],
    fixed: str,
    texts: Texts,
    slow: Callable[[bytes], str],
    rows: list[str],
) -> None:
    """Append the row of each span to `rows`, as UTF-8 with one character per byte.

    `fixed` is the text between `thread_id` and `attrs`, which is the same in all rows. `slow`
    translates the spans that need the generic path. Raises UnicodeDecodeError, DecodeError.
    """
    pairs, names, ends = texts.pairs, texts.names, texts.ends
    last: bytes | None = None
    low = otel = ""
    for data in spans:
        try:
            trace_tag, trace_id, span_tag, span_id, tag = _head(data)
            if trace_tag != _TRACE_ID or span_tag != _SPAN_ID or span_id == _ZERO:
                raise NotCanonicalError
            if trace_id != last:
                if not any(trace_id):
                    raise NotCanonicalError
                last, trace_hex = trace_id, trace_id.hex()
                low = trace_hex[16:]
                otel = f'}},"mark_ids":[],"otel":{{"trace_id":"{trace_hex}"'
            at, state, parent_id = 28, "", "null"
            if tag == _STATE:
                state, at = _state(data)
                tag = data[at]
            if tag == _PARENT:
                parent = data[at + 2 : at + 10]
                if data[at + 1] != 8 or parent == _ZERO:
                    raise NotCanonicalError
                parent_id = f'"{parent.hex()}{low}"'
                at += 10
                tag = data[at]
            if tag != _NAME:
                raise NotCanonicalError
            size, begins = data[at + 1], at + 2
            if size > 0x7F:
                size, begins = length(data, at + 1)
            at = begins + size
            name, kind = names[data[begins:at]], 0
            if data[at] == _KIND:
                kind, at = data[at + 1], at + 2
            start_tag, start, end_tag, end = _times(data, at)
            if start_tag != _START or end_tag != _END or kind > 0x7F:
                raise NotCanonicalError
            members, at = attributes(data, at + 18, _ATTRIBUTE, pairs)
            if at < len(data) and FIRST <= data[at] <= LAST:
                otel_end, at = more(data, at, pairs, names)
                otel_end = ends[kind, data[at:]] + state + otel_end
            else:
                otel_end = ends[kind, data[at:]] + state
        except (NotCanonicalError, IndexError, StructError):
            rows.append(slow(data))
            continue
        thread = _thread(members[sc.THREAD_ID]) if sc.THREAD_ID in members else "null"
        rows.append(
            f'{{"id":"{span_id.hex()}{low}","name":{name},"parent_id":{parent_id}'
            f',"index":null,"start_ns":{start},"end_ns":{end}{_NO_COSTS}'
            f',"thread_id":{thread}{fixed}{",".join(members.values())}'
            f"{otel}{otel_end}}}}}"
        )


def _state(data: bytes) -> tuple[str, int]:
    """Read the trace_state after a span's ids.

    Returns it as a JSON object member, preceded by a comma, and the position after it.
    """
    size, begins = length(data, 29)
    ends = begins + size
    if not size:
        raise NotCanonicalError
    return f',"trace_state":{quoted(data[begins:ends])}', ends


def _thread(member: str) -> str:
    """Return the value of the JSON member for the thread id; "null" if it is not an integer."""
    number = member.removeprefix(f'"{sc.THREAD_ID}":')
    return number if number.removeprefix("-").isdigit() else "null"
