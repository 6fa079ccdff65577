"""Translate a batch file to one OTLP message, on the fast path if its result is exact."""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ... import exactjson
from ...ids import digest
from ..placement.batch_outline import BatchOutline, read_outline
from ..placement.session_index import SessionIndex
from ..records.check import BatchProblem, check_batch
from .foreign.batch_header import drop_headers
from .foreign.messages import regular
from .own.encode import SEGMENTED, Options
from .own.fast_encode import fast_encode, typed_batch
from .own.own import plan_of, plan_of_typed
from .translate import to_otlp
from .typed import NotCanonicalError, TypedBatch


class NoBatchError(Exception):
    """The content of a file is not a valid batch."""

    def __init__(self, problem: BatchProblem) -> None:
        """Store the `problem` that was found."""
        super().__init__(problem.message)
        self.problem = problem


class Encoded(NamedTuple):
    """A batch as OTLP."""

    name: str
    data: bytes
    """A serialised TracesData."""
    spans: int
    marks: int
    snapshots: int
    size: int
    """The size of the batch's file in bytes."""
    messages: int = 1
    """The number of messages in `data`."""
    derived_ids: int = 0
    """The number of spans in `data` with an id that `pushable` derived."""


def encode(name: str, data: bytes, index: SessionIndex, options: Options) -> Encoded:
    """Translate the content of a batch file. Raises NoBatchError if it is not a valid batch.

    The index is not used for a batch that names its session.
    """
    segmented = options.layout == SEGMENTED
    fallback = digest("session", name)[:16].hex()
    outline: BatchOutline | TypedBatch
    try:
        outline = typed_batch(data)
        plan = plan_of_typed(outline) or index.plan(outline, segmented, fallback)
        message = fast_encode(outline, plan, name, options)
    except NotCanonicalError:
        problem = check_batch(data)
        if problem is not None:
            raise NoBatchError(problem) from None
        outline, batch = read_outline(data), exactjson.loads(data)
        plan = plan_of(batch) or index.plan(outline, segmented, fallback)
        messages = to_otlp(batch, plan, name, options)
        message = TracesData(resource_spans=messages).SerializeToString()
    counts = len(outline.spans), len(outline.marks), len(outline.snapshots)
    return Encoded(name, message, *counts, len(data))


class Pushable(NamedTuple):
    """A message that backends accept."""

    data: bytes
    derived_ids: int
    """The number of spans with a derived id in place of one that is not valid."""


def pushable(message: bytes) -> Pushable:
    """Return a message that backends accept, with derived ids in place of invalid ones.

    An id is invalid if it is missing, zero, or of the wrong length.

    Headers of batches that were created from OTLP are removed, since a collector would store them
    as content.
    """
    traces = TracesData.FromString(message)
    has_headers = drop_headers(traces.resource_spans)
    derived = regular(traces.resource_spans)
    is_changed = has_headers or derived
    return Pushable(traces.SerializeToString() if is_changed else message, derived)
