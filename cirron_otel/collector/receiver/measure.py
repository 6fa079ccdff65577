"""Count the elements of a serialized request without creating an object for each.

A message of upb, the parser inside protobuf, takes up to about 90 times the bytes of its wire form:
4 MiB of empty spans become 350 MiB. Here upb parses with special descriptors (shapes.py), derived
from those of OTLP, so that it creates almost no objects: each repeated field of OTLP is declared as
a single message, into which upb merges every element (protobuf.dev/programming-guides/encoding,
"Last One Wins"). One pass per nesting level leaves the elements of that level as bytes, and counts
them. A last pass reads everything with the types of OTLP, so that a request is accepted if and only
if OTLP's own messages can parse it (wire types, lengths, UTF-8, at most 100 levels). If a body is
too short to contain too many elements, only the last pass and the one for spans are needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor

from ...core.otlp.wire import FIXED32, FIXED64, LEN, VARINT, decode_varint
from ...errors import InputError
from .consumer import ReceivedSignal
from .shapes import ALL, ROOTS, TEXT, VALUES, MalformedError, MessageShape, is_element, shape_for

__all__ = [
    "MAX_ELEMENTS",
    "MalformedError",
    "Measure",
    "RequestContent",
    "TooManyElementsError",
    "content",
    "measure",
]

MAX_ELEMENTS = 200_000

_WHOLE = 4 * 1024 * 1024
"""The number of bytes to measure at a time; a longer body is split first. An element has at least
two bytes on the wire and takes 16 in memory (up to 32 while the array grows), so this needs at most
64 MiB."""

_FEWEST_BYTES = 2
"""The size of the smallest element: a tag and a length."""
_SPANS_DEPTH = 3
"""Spans are elements of scopes, which are elements of resources, which are elements of the root."""

_Leaves = defaultdict[Descriptor, list[bytes]]


class TooManyElementsError(InputError):
    """The message contains more elements than one request may have."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The content of a request. A request without any element is valid."""

    spans: int = 0
    events: int = 0
    links: int = 0
    attributes: int = 0
    """All key-value pairs, including those nested in values."""
    elements: int = 0
    """All messages and strings in repeated fields: spans, events, links, attributes, their
    containers (resources, scopes), array values, log records, metrics and metric points."""

    @property
    def is_empty(self) -> bool:
        """Whether the request has no element, not even a resource."""
        return self.elements == 0


class RequestContent(NamedTuple):
    """The properties of a request that its response depends on."""

    spans: int
    is_empty: bool
    """Whether the request has no element, not even a resource."""


def content(
    body: bytes, signal: ReceivedSignal = ReceivedSignal.TRACES, max_elements: int = MAX_ELEMENTS
) -> RequestContent:
    """Return the properties that a response depends on; raise the same errors as `measure`.

    For a typical body this is half the work of `measure`: the body is too short to contain more
    than `max_elements` elements, so they are not all counted.
    """
    if len(body) > min(max_elements * _FEWEST_BYTES, _WHOLE):
        measured = measure(body, signal, max_elements)
        return RequestContent(measured.spans, measured.is_empty)
    root, counts = ROOTS[signal], _ElementCounts(max_elements)
    shape_for(root, ALL).read(body)
    for depth in (_SPANS_DEPTH, 1):
        _count_leaves(*shape_for(root, depth).read(body), counts)
        if counts.elements:
            break
    return RequestContent(counts.by_kind["Span"], not counts.elements)


def measure(
    body: bytes, signal: ReceivedSignal = ReceivedSignal.TRACES, max_elements: int = MAX_ELEMENTS
) -> Measure:
    """Return the content of the serialized request `body`.

    Raises MalformedError if a protobuf parser refuses the body, and TooManyElementsError. Unknown
    fields, and known fields with a wrong wire type, are skipped as in protobuf.
    """
    counts = _ElementCounts(max_elements)
    try:
        _count_request(body, ROOTS[signal], counts)
    except (MalformedError, TooManyElementsError) as error:
        # While the error is handled, its traceback would keep the parsed message alive.
        refusal = error.with_traceback(None)
    else:
        return counts.measure()
    try:
        raise refusal
    finally:
        del refusal  # otherwise this frame and the error would keep each other and the body alive


class _ElementCounts:
    """The number of elements counted so far, by the name of their message type."""

    def __init__(self, most: int) -> None:
        self.by_kind: defaultdict[str, int] = defaultdict(int)
        self.elements = 0
        self.most = most

    def add(self, kind: str, count: int) -> None:
        """Count `count` elements. Raises TooManyElementsError above the limit."""
        self.by_kind[kind] += count
        self.elements += count
        self.check(self.elements)

    def measure(self) -> Measure:
        kinds = self.by_kind
        return Measure(
            kinds["Span"], kinds["Event"], kinds["Link"], kinds["KeyValue"], self.elements
        )

    def check(self, count: int) -> None:
        if count > self.most:
            raise TooManyElementsError(
                f"more than {self.most} elements (spans, events, attributes, …) in one request:"
                " send smaller batches"
            )


def _count_request(body: bytes, root: Descriptor, counts: _ElementCounts) -> None:
    if len(body) <= _WHOLE:
        _count(body, root, counts)
    else:
        shape_for(root, ALL).read(body)
        _cut(body, root, 0, len(body), counts)


def _count(data: bytes, kind: Descriptor, counts: _ElementCounts) -> None:
    """Count the elements of a message of at most `_WHOLE` bytes."""
    depth = 1
    while _count_leaves(*shape_for(kind, depth).read(data), counts):
        depth += 1
    shape = shape_for(kind, VALUES)
    message, _ = shape.read(data)
    if not _count_leaves(message, shape, counts):
        return
    shape_for(kind, ALL).read(data)
    leaves: _Leaves = defaultdict(list)
    _gather_leaves(message, shape, leaves)
    while leaves:
        leaves = _count_values(leaves, counts)


def _count_values(values: _Leaves, counts: _ElementCounts) -> _Leaves:
    """Count the elements of valid values; return the elements that may contain further elements."""
    deeper: _Leaves = defaultdict(list)
    for kind, elements in values.items():
        # The concatenation of valid messages is a valid message: their merge.
        message, shape = shape_for(kind, VALUES).read(b"".join(elements))
        if _count_leaves(message, shape, counts):
            _gather_leaves(message, shape, deeper)
    return deeper


def _count_leaves(message: Any, shape: MessageShape, counts: _ElementCounts) -> bool:
    """Count the elements at one depth; return whether any of them may contain further elements."""
    is_deeper = False
    for name, counted, kind in shape.counted:
        if count := len(getattr(message, name)):
            counts.add(counted, count)
            is_deeper = is_deeper or kind is not None
    for name, inner in shape.inner:
        if message.HasField(name):
            is_deeper = _count_leaves(getattr(message, name), inner, counts) or is_deeper
    return is_deeper


def _gather_leaves(message: Any, shape: MessageShape, leaves: _Leaves) -> None:
    for name, _, kind in shape.counted:
        if kind is not None and (elements := getattr(message, name)):
            leaves[kind] += elements
    for name, inner in shape.inner:
        if message.HasField(name):
            _gather_leaves(getattr(message, name), inner, leaves)


def _cut(data: bytes, kind: Descriptor, start: int, end: int, counts: _ElementCounts) -> None:
    """Count the elements of the valid message `data[start:end]`, in runs of complete fields."""
    run = start
    walked = 0
    for number, wire_type, field_start, value, stop in _fields(data, start, end):
        walked += 1
        counts.check(walked // 2)  # allow as many other fields as elements
        if stop - run <= _WHOLE:
            continue
        if field_start > run:
            _count(data[run:field_start], kind, counts)
        run = field_start
        if stop - run > _WHOLE:
            field = kind.fields_by_number.get(number)
            if field is not None and wire_type == LEN:
                inner = field.message_type
                if is_element(field):
                    counts.add(inner.name if inner is not None else TEXT, 1)
                if inner is not None:
                    _cut(data, inner, value, stop, counts)
            run = stop
    if run < end:
        _count(data[run:end], kind, counts)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield each field of a valid message: (number, wire type, start, value, stop).

    Raises MalformedError for groups: OTLP has none, and finding their end is slow.
    """
    while at < end:
        start = at
        tag, at = decode_varint(data, at)
        wire_type = tag & 7
        value = at
        if wire_type == LEN:
            size, value = decode_varint(data, at)
            at = value + size
        elif wire_type == VARINT:
            _, at = decode_varint(data, at)
        elif wire_type == FIXED64:
            at += 8
        elif wire_type == FIXED32:
            at += 4
        else:
            raise MalformedError(
                f"a group (field {tag >> 3}) in a request of more than {_WHOLE} bytes: expected"
                " OTLP, which has no groups"
            )
        yield tag >> 3, wire_type, start, value, at
