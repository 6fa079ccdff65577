"""Cirron → OTLP: a pure function of one batch and of the plan that places its records."""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from .. import exactjson
from ..errors import InputError
from .batch_encoder import BatchEncoder
from .decode import Regrouper
from .events import Record
from .header import LISTS, file_of
from .options import DEFAULT, DEFAULT_SERVICE_NAME, SEGMENTED, SESSION_LAYOUT, Options
from .parts import whole_of
from .placement import Plan
from .top import file_name

__all__ = [
    "DEFAULT",
    "DEFAULT_SERVICE_NAME",
    "SEGMENTED",
    "SESSION_LAYOUT",
    "Options",
    "encode_batch",
    "file_name",
]


def encode_batch(
    batch: Record, plan: Plan, name: str | None = None, options: Options = DEFAULT
) -> list[ResourceSpans]:
    """Say a batch as ResourceSpans, one a session; every one carries the batch's header.

    `batch` is a JSON object as `exactjson.loads` gives it; `name` is its file's name where it has
    one. Nothing of the batch is lost: `decode` gives it back, equal as a JSON value.

    Where records ride apart from their span, and for a part of a batch, the messages are decoded
    again, and the header's rest takes what that does not give. Raises InputError where it cannot.
    """
    whole, part = whole_of(batch)
    if part is not None:
        messages = BatchEncoder(whole, plan, part.file, options, part).run()
        if not _difference(batch, name, messages):
            return messages
    own_name = file_name(batch)
    file = name if name != own_name else None
    encoder = BatchEncoder(batch, plan, file, options)
    messages = encoder.run()
    if not encoder.rides_apart:
        return messages
    wrong = _difference(batch, name, messages)
    if not wrong:
        return messages
    if set(wrong) <= set(LISTS):
        messages = BatchEncoder(batch, plan, file, options, corrected=wrong).run()
        if not _difference(batch, name, messages):
            return messages
    raise InputError("the batch cannot be said in OTLP: decoding would not give it back")


def _difference(batch: Record, name: str | None, messages: list[ResourceSpans]) -> list[str]:
    """The members of the batch that decoding its messages does not give."""
    reader = Regrouper()
    found, foreign = reader.feed(messages)
    found += reader.finish()
    if len(found) != 1 or foreign or (name is not None and found[0].name != name and file_of(name)):
        return ["name"]
    decoded = found[0].batch
    keys = sorted(decoded.keys() | batch.keys())
    missing = object()
    return [k for k in keys if not exactjson.equal(decoded.get(k, missing), batch.get(k, missing))]
