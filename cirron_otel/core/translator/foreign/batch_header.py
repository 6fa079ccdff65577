"""The header of a batch that was created from OTLP: the fields that its messages do not contain.

For example, a batch that a collector received has its own id and time, a batch from an older
release has another `sdk_version`, and the second of two equal batches has a copy number. The header
is a ResourceSpans without spans ahead of the batch's messages: backends store nothing for it, and
the messages stay unchanged. It contains a digest of the messages' content, so that it applies to
this content only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from .... import exactjson
from .... import semconv as sc
from ....errors import InputError
from ..events import Record
from ..values import INT64_MAX, is_int
from .messages import COPY, RECEIVED, content_id, decode_foreign

_FIELDS = ("sdk_version", "batch_id", "created_ns")
_OTEL_FIELDS = (COPY, RECEIVED)
_CONTENT, _MESSAGES = "content", "messages"


class ForeignHeader(NamedTuple):
    """The batch-level fields in a header, and how many messages they apply to."""

    fields: Record
    """The fields by name; the fields in `_OTEL_FIELDS` belong to the batch's `otel`."""
    content: str
    """The id that decoding derives from the messages."""
    messages: int

    def applied(self, batch: Record) -> Record:
        """Return a decoded batch with its fields replaced by those of the header."""
        otel = dict(batch["otel"])
        otel.pop(COPY, None)
        otel |= {key: self.fields[key] for key in _OTEL_FIELDS if key in self.fields}
        return batch | {key: self.fields[key] for key in _FIELDS} | {"otel": otel}


def header_of(batch: Record, messages: int) -> ResourceSpans | None:
    """Build the header of a batch with this number of messages; None if that is not possible."""
    otel = batch["otel"]
    if not all(key in batch for key in _FIELDS):
        return None
    fields = {key: batch[key] for key in _FIELDS}
    fields |= {key: otel[key] for key in _OTEL_FIELDS if key in otel}
    return (
        _written(ForeignHeader(fields, content_id(batch), messages)) if _is_valid(fields) else None
    )


def _is_valid(fields: Record) -> bool:
    return (
        isinstance(fields["batch_id"], str)
        and is_int(fields["created_ns"], 0)
        and is_int(fields.get(COPY, 1), 1)
        and is_int(fields.get(RECEIVED, 0), 0, INT64_MAX)
    )


def _written(header: ForeignHeader) -> ResourceSpans | None:
    """Encode a header; return None if its text is too long for one attribute."""
    content = header.fields | {_CONTENT: header.content, _MESSAGES: header.messages}
    text = exactjson.dumps_sorted(content)
    if len(text) > sc.REST_PIECE:
        return None
    message = ResourceSpans()
    message.resource.attributes.add(key=sc.FOREIGN_BATCH).value.string_value = text
    return message


def read_header(message: ResourceSpans) -> ForeignHeader | None:
    """Decode a header; return None if the message is not one that `header_of` wrote."""
    attributes = message.resource.attributes
    if message.scope_spans or len(attributes) != 1 or attributes[0].key != sc.FOREIGN_BATCH:
        return None
    try:
        fields = exactjson.loads(attributes[0].value.string_value)
    except InputError:
        return None
    names = {_CONTENT, _MESSAGES, *_FIELDS}
    if not isinstance(fields, dict) or not names <= fields.keys() <= names.union(_OTEL_FIELDS):
        return None
    content, messages = fields.pop(_CONTENT), fields.pop(_MESSAGES)
    if not isinstance(content, str) or not is_int(messages, 1) or not _is_valid(fields):
        return None
    header = ForeignHeader(fields, content, messages)
    again = _written(header)
    is_exact = again is not None and again.SerializeToString() == message.SerializeToString()
    return header if is_exact else None


class Headed(NamedTuple):
    """The batches of one TracesData that have a header, and its other messages."""

    batches: dict[bytes, Record]
    """Batches by the bytes of their headers. A batch whose header repeats is a duplicate."""
    others: list[ResourceSpans]
    alone: int
    """The number of headers that are not followed by their messages; `others` contains them."""
    duplicates: int
    """The number of spans in repeated batches."""


def take_headed(messages: Iterable[ResourceSpans]) -> Headed:
    """Decode each header together with its messages.

    Many headers that claim the same messages would make this quadratic. So the headers that do not
    match the messages after them may together claim at most twice the number of messages. After
    that, a header that claims more is treated as a header without messages.
    """
    all_messages = list(messages)
    batches: dict[bytes, Record] = {}
    others: list[ResourceSpans] = []
    at = alone = duplicates = 0
    claimable = 2 * len(all_messages)
    while at < len(all_messages):
        message = all_messages[at]
        at += 1
        header = read_header(message)
        batch = None
        if header is not None and header.messages <= min(len(all_messages) - at, claimable):
            batch = _headed(header, all_messages[at : at + header.messages])
            claimable -= header.messages if batch is None else 0
        if header is None or batch is None:
            others.append(message)
            alone += header is not None
            continue
        at += header.messages
        key = message.SerializeToString()
        duplicates += len(batch["spans"]) if key in batches else 0
        batches[key] = batch
    return Headed(batches, others, alone, duplicates)


def _headed(header: ForeignHeader, messages: list[ResourceSpans]) -> Record | None:
    """Decode the batch of a header; return None if the messages do not belong to the header."""
    batch = decode_foreign(messages)
    return header.applied(batch) if batch["batch_id"] == header.content else None


def drop_headers(messages: Any) -> bool:
    """Remove the headers from a repeated field; return whether any were removed."""
    others = [message for message in messages if read_header(message) is None]
    if len(others) == len(messages):
        return False
    del messages[:]
    messages.extend(others)
    return True
