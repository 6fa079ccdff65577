"""Cirron → OTLP: a pure function of one batch and the plan that places its records."""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from .... import exactjson
from ....errors import InputError
from ....semconv import DEFAULT_SERVICE_NAME
from ...placement.batch_placement import Plan
from ..events import Record
from ..exact_writer import ExactWriter
from ..header import LISTS, file_of
from ..options import DEFAULT, SEGMENTED, SESSION_LAYOUT, Options
from .batch_encoder import BatchEncoder
from .batch_fields import file_name
from .decode import Regrouper
from .parts import whole_of

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
    """Encode a batch as ResourceSpans, one per session; each has the header of the batch.

    `batch` is a JSON object from `exactjson.loads`; `name` is the name of its file, if it has one.
    Nothing of the batch is lost: `decode` restores it, equal as a JSON value.

    If events are not on the span of their scope, and for a part of a batch, the messages are
    decoded again. Lists that this does not restore are written into the header's residual. Raises
    InputError if the batch cannot be restored.
    """
    whole, part = whole_of(batch)
    if part is not None:
        writer = ExactWriter(whole, part.file, options, part)
        messages = BatchEncoder(writer, plan, options, part).encode()
        if not _difference(batch, name, messages):
            return messages
    own_name = file_name(batch)
    file = name if name != own_name else None
    encoder = BatchEncoder(ExactWriter(batch, file, options), plan, options)
    messages = encoder.encode()
    if not encoder.has_detached_events:
        return messages
    wrong = _difference(batch, name, messages)
    if not wrong:
        return messages
    if set(wrong) <= set(LISTS):
        writer = ExactWriter(batch, file, options, corrected=wrong)
        messages = BatchEncoder(writer, plan, options).encode()
        if not _difference(batch, name, messages):
            return messages
    raise InputError("the batch cannot be expressed in OTLP: decoding would not restore it")


def _difference(batch: Record, name: str | None, messages: list[ResourceSpans]) -> list[str]:
    """Return the members of the batch that decoding its messages does not restore."""
    reader = Regrouper()
    batches, foreign = reader.feed(messages)
    batches += reader.finish()
    if (
        len(batches) != 1
        or foreign
        or (name is not None and batches[0].name != name and file_of(name))
    ):
        return ["name"]
    decoded = batches[0].batch
    keys = sorted(decoded.keys() | batch.keys())
    missing = object()
    return [k for k in keys if not exactjson.equal(decoded.get(k, missing), batch.get(k, missing))]
