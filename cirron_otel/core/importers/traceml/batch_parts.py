"""Put records and frames into batches: valid by construction, in the canonical order."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple

import orjson

from ..sealing import ImportedBatch, seal_batch

MAX_FRAMES_TEXT: Final = 300_000
"""The most bytes of frames in one batch, so that its OTLP form stays within 1 MB a span."""
MAX_RECORDS: Final = 4_000
_PART: Final = 200_000
"""The length of a part of a frame that is larger than a batch's frames may be; a multiple of 4."""


class FrameText(NamedTuple):
    """A frame for the batch's object `traceml`."""

    number: int
    """The number of the frame in its stream, from 0."""
    text: bytes
    """`Payload.text`, or a part of it."""


def batches_of(
    spans: list[dict[str, Any]],
    marks: list[dict[str, Any]],
    frames: list[FrameText],
    otel: dict[str, Any],
    stream: dict[str, Any],
    last: dict[str, Any],
    earliest_ns: int = 0,
) -> Iterator[ImportedBatch]:
    """Yield one batch, or several if the records or the frames are too many for one.

    `stream` has the members of `traceml` that each batch has; `last` those of the last batch only.
    Without a stream, `frames` are the parts of documents. `created_ns` is the time of the last
    record, or `earliest_ns`.
    """
    spans.sort(key=itemgetter("end_ns", "id"))
    marks.sort(key=itemgetter("ts_ns", "id"))
    packs = list(_packs(frames)) or [[]]
    times = [earliest_ns, *(span["end_ns"] for span in spans), *(mark["ts_ns"] for mark in marks)]
    created = max(times)
    number = 0
    while number < len(packs) or spans or marks:
        pack = packs[number] if number < len(packs) else []
        some_spans, spans = spans[:MAX_RECORDS], spans[MAX_RECORDS:]
        room = MAX_RECORDS - len(some_spans)
        some_marks, marks = marks[:room], marks[room:]
        number += 1
        is_last = number >= len(packs) and not spans and not marks
        traceml = stream | (last if is_last else {})
        yield _batch(some_spans, some_marks, pack, otel, traceml, created)


def _packs(frames: list[FrameText]) -> Iterator[list[FrameText]]:
    """Yield the frames of each batch; a large frame is divided into parts of its base64 form."""
    pack: list[FrameText] = []
    size = 0
    for frame in frames:
        for part in _parts(frame):
            if pack and size + len(part.text) > MAX_FRAMES_TEXT:
                yield pack
                pack, size = [], 0
            pack.append(part)
            size += len(part.text)
    if pack:
        yield pack


def _parts(frame: FrameText) -> Iterator[FrameText]:
    if len(frame.text) <= MAX_FRAMES_TEXT:
        yield frame
        return
    encoded = base64.b64encode(frame.text)
    count = -(-len(encoded) // _PART)
    for index in range(count):
        part = encoded[index * _PART : (index + 1) * _PART].decode()
        text = orjson.dumps({"part": index, "parts": count, "text": part})
        yield FrameText(frame.number, text)


def _batch(
    spans: list[dict[str, Any]],
    marks: list[dict[str, Any]],
    frames: list[FrameText],
    otel: dict[str, Any],
    traceml: dict[str, Any],
    created: int,
) -> ImportedBatch:
    texts = [orjson.Fragment(each.text) for each in frames]
    if "stream" in traceml:
        first = {"first": frames[0].number} if frames else {}
        traceml = traceml | first | {"frames": texts}
    else:
        traceml = {"documents": texts}
    return seal_batch("traceml", traceml, spans, marks, otel, created)
