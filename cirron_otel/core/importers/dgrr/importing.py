"""The batches of a trace: a session with the header's fields, and a mark for each record."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ....ids import INT64_LIMIT, digest
from ....semconv import SESSION
from ...placement.joined_steps import StepPlace
from ...records.trace_marks import TRACE_STEP
from ..sealing import ImportedBatch, SealedMark, seal_batch
from .checking import TraceCheck, TraceData
from .layout import (
    MAGIC,
    RECORD,
    RECORD_CRC_BYTES,
    TraceFinding,
    TraceHeader,
    complete_fields,
    json_number,
)

KEY: Final = "dgrr"
"""The key of the object with the trace's own data in a batch and in a mark."""
PREFIX: Final = "dgrr."
POSITION: Final = "record"
"""The attribute of a mark with the position of its record, from 0."""
VERBATIM: Final = "verbatim"
BATCH_MARKS: Final = 2_000
_NS: Final = 1_000_000_000


class StepAttributes(Struct, gc=False):
    """The attributes of a mark whose numbers are finite."""

    record: int
    """The position, from 0."""
    step_id: int
    w_before: float
    b_before: float
    grad_w: float
    grad_b: float
    w_after: float
    b_after: float


class StepMark(Struct, gc=False):
    """A record as a mark; plain structs are several times faster than objects of the schema."""

    id: str
    span_id: str
    name: str
    value_type: str
    value: float | None
    attrs: StepAttributes | dict[str, Any]
    ts_ns: int
    kind: str
    value_nonfinite: str | UnsetType = UNSET
    dgrr: dict[str, str] | UnsetType = UNSET


_ENCODER: Final = msgspec.json.Encoder()


class TraceImport:
    """A trace as batches. Its records are in order; their marks have no times of their own."""

    def __init__(
        self,
        trace: TraceData,
        content_digest: bytes,
        on_finding: Callable[[TraceFinding], None],
        steps: Iterator[StepPlace] | None = None,
    ) -> None:
        """Attach the marks to `steps` instead of a session of the trace's own.

        `content_digest` is the SHA-256 of the file, from which the ids follow. `on_finding` is
        called with what the checks find while the batches are read.
        """
        self._trace, self._steps, self._on_finding = trace, steps, on_finding
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
        marks: list[StepMark] = []
        for more in self._marks():
            marks += more
            while len(marks) >= BATCH_MARKS:
                yield self._batch(spans, marks[:BATCH_MARKS], self._id)
                spans, marks = [], marks[BATCH_MARKS:]
        if spans or marks:
            yield self._batch(spans, marks, self._id)

    def _on_steps(self, steps: Iterator[StepPlace]) -> Iterator[ImportedBatch]:
        session, marks = self._id, list[StepMark]()
        is_written = False
        own_spans = [self._session_span()]
        for mark in chain.from_iterable(self._marks()):
            place = next(steps, None)
            if place is None:
                place = StepPlace(self._id, self._id, self._created_ns)
                self.unplaced += 1
            if marks and (place.session != session or len(marks) >= BATCH_MARKS):
                yield self._batch(own_spans if session == self._id else [], marks, session)
                own_spans = [] if session == self._id else own_spans
                marks, is_written = [], True
            session = place.session
            mark.span_id, mark.ts_ns = place.id, place.end_ns
            marks.append(mark)
        if marks or not is_written:
            yield self._batch(own_spans if session == self._id else [], marks, session)

    def _batch(
        self, spans: list[dict[str, Any]], marks: list[StepMark], session: str
    ) -> ImportedBatch:
        created = max((mark.ts_ns for mark in marks), default=self._created_ns)
        text = SealedMark(_ENCODER.encode(marks), len(marks))
        return seal_batch(KEY, self._members, spans, text, {"session": session}, created)

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

    def _marks(self) -> Iterator[list[StepMark]]:
        """Check the trace, and yield the marks of each chunk, on the session of the trace."""
        check = TraceCheck(self._trace)
        for finding in check.check_head():
            self._on_finding(finding)
        if not check.is_readable:
            return
        number = 0
        for chunk in self._trace.chunks():
            findings = check.check_chunk(chunk)
            marks = self._marks_of(chunk, number)
            if findings or not _is_plain(chunk):
                for finding in findings:
                    self._on_finding(finding)
                _keep_odd_records(marks, number, chunk)
            yield marks
            number += len(marks)
        for finding in check.finish():
            self._on_finding(finding)

    def _marks_of(self, chunk: bytes, first: int) -> list[StepMark]:
        prefix, span_id, time_ns = self._id[16:], self._id, self._created_ns
        return [
            StepMark(
                f"{prefix}{number:016x}", span_id, TRACE_STEP, "float", loss,
                StepAttributes(number, step_id, w, b, grad_w, grad_b, w_after, b_after),
                time_ns, "point",
            )
            for number, (
                step_id, w, b, grad_w, grad_b, w_after, b_after, loss, _, _
            ) in enumerate(RECORD.iter_unpack(chunk), first)
        ]  # fmt: skip


def _is_plain(chunk: bytes) -> bool:
    """Return whether every number of a chunk is finite and every pad 0; may return False if so.

    The sum is of all 8-byte words, of which the step ids and the CRCs are tiny numbers, or not
    finite either.
    """
    pads = range(RECORD.size - 4, RECORD.size)
    if any(chunk[start :: RECORD.size].strip(b"\0") for start in pads):
        return False
    return math.isfinite(sum(struct.unpack(f"<{len(chunk) // 8}d", chunk)))


def _keep_odd_records(marks: list[StepMark], first: int, chunk: bytes) -> None:
    """Keep the bytes of the records that their marks do not give back."""
    view = memoryview(chunk)
    for number, (mark, fields) in enumerate(zip(marks, RECORD.iter_unpack(chunk), strict=True)):
        start = number * RECORD.size
        crc = zlib.crc32(view[start : start + RECORD_CRC_BYTES])
        if fields[8:] != (crc, 0) or not all(map(math.isfinite, fields[1:8])):
            _keep_verbatim(mark, first + number, fields, chunk[start : start + RECORD.size])


def _keep_verbatim(mark: StepMark, position: int, fields: tuple[Any, ...], data: bytes) -> None:
    """Keep the bytes of a record that does not follow from its fields, or that JSON cannot write.

    Numbers that are not finite become the texts `nan`, `inf` and `-inf`.
    """
    numbers = map(json_number, fields[1:7])
    names = StepAttributes.__struct_fields__[2:]
    mark.attrs = {
        POSITION: position,
        "step_id": fields[0],
        **dict(zip(names, numbers, strict=True)),
    }
    loss = json_number(fields[7])
    if isinstance(loss, str):
        mark.value, mark.value_nonfinite = None, loss
    mark.dgrr = {VERBATIM: _text(data)}


def _attribute(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode() if value == MAGIC else value.hex()
    return json_number(value) if isinstance(value, float) else value


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
