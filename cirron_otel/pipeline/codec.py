"""One batch's bytes to one OTLP message's bytes and back: the fast way where it is exact."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from .. import exactjson
from ..ids import digest
from ..model import Batch
from ..translator.encode import Options
from ..translator.translate import to_otlp
from .light import LightBatch
from .sessions import SessionIndex


class Encoded(NamedTuple):
    """A batch as OTLP."""

    name: str
    data: bytes
    """A serialised TracesData."""
    spans: int
    marks: int
    snapshots: int
    size: int
    """Bytes of the batch's file."""


def encode(
    name: str, data: bytes, seen: LightBatch, index: SessionIndex, options: Options
) -> Encoded:
    """Translate a batch file's content."""
    plan = index.plan(seen, options.layout == "segmented", digest("session", name)[:16].hex())
    messages = to_otlp(exactjson.loads(data), plan, name, options)
    return Encoded(
        name,
        TracesData(resource_spans=messages).SerializeToString(),
        len(seen.spans),
        len(seen.marks),
        len(seen.snapshots),
        len(data),
    )


def batch_bytes(batch: dict[str, Any]) -> bytes:
    """A batch as this package writes it: byte for byte the same for the same content."""
    try:
        data = msgspec.json.encode(msgspec.convert(batch, Batch, strict=True))
    except (msgspec.ValidationError, UnicodeError, OverflowError, TypeError):
        return exactjson.dumps(batch)
    return data if exactjson.equal(exactjson.loads(data), batch) else exactjson.dumps(batch)
