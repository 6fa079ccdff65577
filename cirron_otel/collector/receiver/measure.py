"""Measuring a request on the wire, before anything makes objects of it.

A message of upb, the parser behind protobuf, takes up to about 90 times the bytes of its wire
form: 4 MiB of empty spans become 350 MiB. Here upb parses with descriptors of our own (shapes.py),
derived from OTLP's, that make next to no objects: what is repeated in OTLP is a single message in
them, into which upb merges every element (protobuf.dev/programming-guides/encoding, "Last One
Wins"). A pass a level of nesting leaves just that level's elements as bytes, and their number is
what it counts. A last pass reads everything with the types of OTLP, so that a request is taken and
refused just as by a parse of its messages: wire types, lengths, UTF-8, 100 levels. Only that pass
and the one for spans are needed where a body is too short to hold too many elements.
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
"""Bytes that are measured at once. An element is two bytes at least, and sixteen here (with the
array's growth, up to 32): at most 64 MiB. What is longer is cut first."""

_FEWEST_BYTES = 2
"""Of an element: a tag and a length."""
_SPANS_DEPTH = 3
"""A span is in a list of a scope's spans, in one of scopes, in one of resources."""

_Leaves = defaultdict[Descriptor, list[bytes]]


class TooManyElementsError(InputError):
    """The message holds more elements than are taken at once."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What a request holds; nothing at all is an empty request, which succeeds."""

    spans: int = 0
    events: int = 0
    links: int = 0
    attributes: int = 0
    """Key-values of everything, those within values included."""
    elements: int = 0
    """All messages and texts of repeated fields: the above, and what holds them (resources,
    scopes), the values of arrays, log records, metrics and their points."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it, not even a resource."""
        return self.elements == 0


class RequestContent(NamedTuple):
    """What an answer to a request depends on."""

    spans: int
    is_empty: bool
    """See `Measure.is_empty`."""


def content(
    body: bytes, signal: ReceivedSignal = ReceivedSignal.TRACES, max_elements: int = MAX_ELEMENTS
) -> RequestContent:
    """What `measure` finds, and raises; with half its work where `body` is a common one.

    That is too short to hold more than `max_elements`, so they need not all be counted.
    """
    if len(body) > min(max_elements * _FEWEST_BYTES, _WHOLE):
        found = measure(body, signal, max_elements)
        return RequestContent(found.spans, found.is_empty)
    root, tally = ROOTS[signal], _ElementCounts(max_elements)
    shape_for(root, ALL).read(body)
    for depth in (_SPANS_DEPTH, 1):
        _count_leaves(*shape_for(root, depth).read(body), tally)
        if tally.elements:
            break
    return RequestContent(tally.by_kind["Span"], not tally.elements)


def measure(
    body: bytes, signal: ReceivedSignal = ReceivedSignal.TRACES, max_elements: int = MAX_ELEMENTS
) -> Measure:
    """What the serialised request `body` holds.

    Raises MalformedError for what a protobuf parser refuses, and TooManyElementsError. Unknown
    fields, and known ones of another wire type, are skipped as protobuf has it.
    """
    tally = _ElementCounts(max_elements)
    try:
        _count_request(body, ROOTS[signal], tally)
    except (MalformedError, TooManyElementsError) as error:
        # Its traceback would hold on to what was parsed for as long as it is handled.
        refusal = error.with_traceback(None)
    else:
        return tally.measure()
    try:
        raise refusal
    finally:
        del refusal  # else this frame and the error would hold on to each other, and to the body


class _ElementCounts:
    """What has been counted so far, by the name of its message type."""

    def __init__(self, most: int) -> None:
        self.by_kind: defaultdict[str, int] = defaultdict(int)
        self.elements = 0
        self.most = most

    def add(self, kind: str, count: int) -> None:
        """Raise TooManyElementsError above the limit."""
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


def _count_request(body: bytes, root: Descriptor, tally: _ElementCounts) -> None:
    if len(body) <= _WHOLE:
        _count(body, root, tally)
    else:
        shape_for(root, ALL).read(body)
        _cut(body, root, 0, len(body), tally)


def _count(data: bytes, kind: Descriptor, tally: _ElementCounts) -> None:
    """Count what is in a message of at most `_WHOLE` bytes."""
    depth = 1
    while _count_leaves(*shape_for(kind, depth).read(data), tally):
        depth += 1
    shape = shape_for(kind, VALUES)
    message, _ = shape.read(data)
    if not _count_leaves(message, shape, tally):
        return
    shape_for(kind, ALL).read(data)
    leaves: _Leaves = defaultdict(list)
    _gather_leaves(message, shape, leaves)
    while leaves:
        leaves = _count_values(leaves, tally)


def _count_values(values: _Leaves, tally: _ElementCounts) -> _Leaves:
    """Count what is in values, which are valid; what is in that in turn is returned."""
    deeper: _Leaves = defaultdict(list)
    for kind, elements in values.items():
        # Valid messages, one behind the other, are one valid message: their merge.
        message, shape = shape_for(kind, VALUES).read(b"".join(elements))
        if _count_leaves(message, shape, tally):
            _gather_leaves(message, shape, deeper)
    return deeper


def _count_leaves(message: Any, shape: MessageShape, tally: _ElementCounts) -> bool:
    """Count the elements of the one depth; whether some are of a kind that holds elements."""
    is_deeper = False
    for name, counted, kind in shape.counted:
        if count := len(getattr(message, name)):
            tally.add(counted, count)
            is_deeper = is_deeper or kind is not None
    for name, inner in shape.inner:
        if message.HasField(name):
            is_deeper = _count_leaves(getattr(message, name), inner, tally) or is_deeper
    return is_deeper


def _gather_leaves(message: Any, shape: MessageShape, leaves: _Leaves) -> None:
    for name, _, kind in shape.counted:
        if kind is not None and (elements := getattr(message, name)):
            leaves[kind] += elements
    for name, inner in shape.inner:
        if message.HasField(name):
            _gather_leaves(getattr(message, name), inner, leaves)


def _cut(data: bytes, kind: Descriptor, start: int, end: int, tally: _ElementCounts) -> None:
    """Count what is in the message `data[start:end]`, which is valid, in runs of whole fields."""
    run = start
    walked = 0
    for number, wire_type, field_start, value, stop in _fields(data, start, end):
        walked += 1
        tally.check(walked // 2)  # as many fields that are no elements as ones that are
        if stop - run <= _WHOLE:
            continue
        if field_start > run:
            _count(data[run:field_start], kind, tally)
        run = field_start
        if stop - run > _WHOLE:
            field = kind.fields_by_number.get(number)
            if field is not None and wire_type == LEN:
                inner = field.message_type
                if is_element(field):
                    tally.add(inner.name if inner is not None else TEXT, 1)
                if inner is not None:
                    _cut(data, inner, value, stop, tally)
            run = stop
    if run < end:
        _count(data[run:end], kind, tally)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Each field of a message that is valid: (number, wire type, start, value, stop).

    Raises MalformedError for groups, which OTLP has none of: their end is slow to find.
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
