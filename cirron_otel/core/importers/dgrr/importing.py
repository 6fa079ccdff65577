"""The batches of a trace: a session with the header's fields, and a mark for each record."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import Any, Final

from ....ids import INT64_LIMIT, digest
from ....semconv import SESSION
from ...placement.joined_steps import StepPlace
from ..sealing import ImportedBatch, seal_batch
from .checking import TraceData
from .layout import (
    MAGIC,
    RECORD,
    RECORD_CRC_BYTES,
    TraceHeader,
    complete_fields,
    json_number,
)

KEY: Final = "dgrr"
"""The key of the object with the trace's own data in a batch and in a mark."""
MARK: Final = "dgrr.step"
PREFIX: Final = "dgrr."
POSITION: Final = "record"
"""The attribute of a mark with the position of its record, from 0."""
VERBATIM: Final = "verbatim"
BATCH_MARKS: Final = 2_000
_NS: Final = 1_000_000_000


class TraceImport:
    """A trace as batches. Its records are in order; their marks have no times of their own."""

    def __init__(
        self, trace: TraceData, content_digest: bytes, steps: Iterator[StepPlace] | None = None
    ) -> None:
        """Attach the marks to `steps` instead of a session of the trace's own.

        `content_digest` is the SHA-256 of the file, from which the ids follow.
        """
        self._trace, self._steps = trace, steps
        self._id = digest("dgrr-trace", content_digest)[:16].hex()
        created = TraceHeader.parse(trace.head).created_at * _NS
        self._created_ns = created if created < INT64_LIMIT else 0
        self._members: dict[str, Any] = {
            "trace": self._id,
            "records": trace.records,
            "header": _text(trace.head),
            **({"tail": _text(trace.tail)} if trace.tail else {}),
        }
        self.unplaced = 0
        """The number of records without a step."""

    def batches(self) -> Iterator[ImportedBatch]:
        """Yield the batches."""
        if self._steps is None:
            yield from self._own_session()
        else:
            yield from self._on_steps(self._steps)

    def _own_session(self) -> Iterator[ImportedBatch]:
        spans = [self._session_span()]
        marks: list[dict[str, Any]] = []
        for mark in self._marks():
            mark["span_id"], mark["ts_ns"] = self._id, self._created_ns
            marks.append(mark)
            if len(marks) >= BATCH_MARKS:
                yield self._batch(spans, marks, self._id)
                spans, marks = [], []
        if spans or marks:
            yield self._batch(spans, marks, self._id)

    def _on_steps(self, steps: Iterator[StepPlace]) -> Iterator[ImportedBatch]:
        session, marks = self._id, list[dict[str, Any]]()
        is_written = False
        own_spans = [self._session_span()]
        for mark in self._marks():
            place = next(steps, None)
            if place is None:
                place = StepPlace(self._id, self._id, self._created_ns)
                self.unplaced += 1
            if marks and (place.session != session or len(marks) >= BATCH_MARKS):
                yield self._batch(own_spans if session == self._id else [], marks, session)
                own_spans = [] if session == self._id else own_spans
                marks, is_written = [], True
            session = place.session
            mark["span_id"], mark["ts_ns"] = place.id, place.end_ns
            marks.append(mark)
        if marks or not is_written:
            yield self._batch(own_spans if session == self._id else [], marks, session)

    def _batch(
        self, spans: list[dict[str, Any]], marks: list[dict[str, Any]], session: str
    ) -> ImportedBatch:
        created = max((mark["ts_ns"] for mark in marks), default=self._created_ns)
        return seal_batch(KEY, self._members, spans, marks, {"session": session}, created)

    def _session_span(self) -> dict[str, Any]:
        attrs: dict[str, Any] = {"source": KEY}
        for name, value in complete_fields(self._trace.head).items():
            attrs[PREFIX + name] = _attribute(value)
        attrs["dgrr.untimed"] = True
        return {
            "id": self._id, "name": SESSION, "parent_id": None, "index": None,
            "start_ns": self._created_ns, "end_ns": self._created_ns, "cpu_ns": None,
            "gpu_ns": None, "memory_peak_bytes": None, "thread_id": None, "pid": None,
            "rank": None, "attrs": attrs, "mark_ids": [],
        }  # fmt: skip

    def _marks(self) -> Iterator[dict[str, Any]]:
        """Yield the marks without their scopes and times."""
        prefix = self._id[16:]
        number = 0
        for chunk in self._trace.chunks():
            view = memoryview(chunk)
            start = 0
            for (
                step_id,
                w,
                b,
                grad_w,
                grad_b,
                w_after,
                b_after,
                loss,
                crc,
                pad,
            ) in RECORD.iter_unpack(chunk):
                attrs = {
                    POSITION: number, "step_id": step_id, "w_before": w, "b_before": b,
                    "grad_w": grad_w, "grad_b": grad_b, "w_after": w_after, "b_after": b_after,
                }  # fmt: skip
                mark: dict[str, Any] = {
                    "id": f"{prefix}{number:016x}", "span_id": "", "name": MARK,
                    "value_type": "float", "value": loss, "attrs": attrs, "ts_ns": 0,
                    "kind": "point",
                }  # fmt: skip
                # An infinity or a NaN makes this product a NaN.
                sums = (w + b + grad_w + grad_b + w_after + b_after + loss) * 0.0
                is_plain = sums == 0.0 and not pad
                if not is_plain or crc != zlib.crc32(view[start : start + RECORD_CRC_BYTES]):
                    _keep_verbatim(mark, chunk[start : start + RECORD.size])
                yield mark
                number += 1
                start += RECORD.size


def _keep_verbatim(mark: dict[str, Any], data: bytes) -> None:
    """Keep the bytes of a record that does not follow from its fields, or that JSON cannot write.

    Numbers that are not finite become the texts `nan`, `inf` and `-inf`.
    """
    mark["attrs"] = {
        key: json_number(value) if isinstance(value, float) else value
        for key, value in mark["attrs"].items()
    }
    loss = json_number(mark["value"])
    if isinstance(loss, str):
        mark["value"], mark["value_nonfinite"] = None, loss
    mark[KEY] = {VERBATIM: _text(data)}


def _attribute(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode() if value == MAGIC else value.hex()
    return json_number(value) if isinstance(value, float) else value


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
