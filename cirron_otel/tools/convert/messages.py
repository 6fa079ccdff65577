"""Split OTLP messages that are longer than `read_messages` accepts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ...core.otlp.files import MAX_MESSAGE_BYTES
from ...core.otlp.json_codec import json_losses, traces_to_json
from ...core.otlp.split import halve_request
from ...core.otlp.wire import encode_varint
from ...core.spool.reader import MAX_BATCH_BYTES
from ...errors import InputError


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The size limits of our readers. Larger messages and batches are not written."""

    message_bytes: int = MAX_MESSAGE_BYTES
    """The size of a protobuf message, or of a line of JSON."""
    batch_bytes: int = MAX_BATCH_BYTES
    """The size of a batch file."""


DEFAULT_LIMITS = SizeLimits()


class MessageTooLongError(InputError):
    """A message is longer than readers accept, and cannot be split."""

    def __init__(self, limit: int) -> None:
        """`limit` is the longest accepted message, bytes."""
        super().__init__(f"the OTLP message is longer than {limit} bytes, the maximum that is read")


def framed(
    data: bytes, limit: int, *, is_json: bool, traces: TracesData | None = None
) -> Iterator[tuple[bytes, list[str]]]:
    """Frame a message for a file; yield each part with descriptions of what JSON cannot express.

    A message that is longer than `limit` bytes is split between its spans. `traces` is the parsed
    `data`, if the caller has it. Raises MessageTooLongError if a part is still too long.
    """
    if len(data) <= limit:
        if not is_json:
            yield encode_varint(len(data)) + data, []
            return
        message = TracesData.FromString(data) if traces is None else traces
        line = traces_to_json(message)
        if len(line) <= limit:
            yield line + b"\n", json_losses(message, line)
            return
    halves = halve_request(data)
    if halves is None:
        raise MessageTooLongError(limit)
    for half in halves:
        yield from framed(half, limit, is_json=is_json)
