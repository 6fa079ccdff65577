"""OTLP messages no longer than what `read_messages` reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ..errors import InputError
from ..otlp.files import MAX_MESSAGE_BYTES
from ..otlp.json_codec import json_losses, traces_to_json
from ..otlp.split import halve_request
from ..otlp.wire import encode_varint
from ..spool.reader import MAX_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes above which nothing is written, because no reader of ours takes it."""

    message_bytes: int = MAX_MESSAGE_BYTES
    """Of a message in protobuf, or of a line of JSON."""
    batch_bytes: int = MAX_BATCH_BYTES
    """Of a batch file."""


DEFAULT_LIMITS = Limits()


class MessageTooLongError(InputError):
    """A message that cannot be split is longer than what is read."""

    def __init__(self, limit: int) -> None:
        """Report the `limit` in bytes."""
        super().__init__(f"as OTLP it is longer than the {limit} bytes of a message that are read")


def framed(
    data: bytes, limit: int, *, is_json: bool, traces: TracesData | None = None
) -> Iterator[tuple[bytes, list[str]]]:
    """A message as it is in a file, with what JSON cannot express of it.

    A message that is longer than `limit` bytes is split between its spans. `traces` is `data`,
    parsed, if that is at hand. Raises MessageTooLongError if a part is still too long.
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
