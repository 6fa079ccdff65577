"""Spans and marks of the rows of a stream."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from .envelopes import Row, shown
from .numbers import identifier
from .sample_rows import marks_of, plain_object, row_time
from .step_rows import (
    MEMORY_TABLE,
    PEAK,
    STEP_NS,
    STEP_TABLE,
    SUMS,
    StepRow,
    Timing,
    UsualStep,
    peaks_of,
    step_number,
    step_of,
    usual_step_of,
)

MAX_PENDING: Final = 1_000
_KNOWN_TABLES: Final = frozenset({
    "ProcessTable", "SystemTable", "RuntimeEnvironmentTable", STEP_TABLE, MEMORY_TABLE,
})  # fmt: skip


class StreamIdentity(msgspec.Struct, frozen=True):
    """The process that sends a stream, as its first frame describes it."""

    stream: str
    """The digest of the first frame."""
    session: str
    trace: str
    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    world_size: int | None = None
    local_rank: int | None = None
    session_id: str | None = None
    run_nonce: str | None = None

    @property
    def is_stamped(self) -> bool:
        """Whether the stream names its run, as TraceML 0.5.0 does."""
        return self.session_id is not None and self.run_nonce is not None

    def members(self) -> dict[str, Any]:
        """Return the members of a batch's object `traceml` that name the stream."""
        return {"stream": self.stream, "rank": self.rank, "pid": self.pid}


class RecordBuilder:
    """The records of a batch's rows. Ids are digests of the stream and the place in it."""

    def __init__(
        self,
        identity: StreamIdentity,
        peaks: dict[int, dict[str, Any]],
        steps: dict[int, str],
    ) -> None:
        """Match steps with `peaks` that arrived earlier, and peaks with earlier `steps`."""
        self._identity, self._peaks, self._steps = identity, peaks, steps
        self._new_steps: dict[int, dict[str, Any]] = {}
        self._place = self._digits = ""
        self._suffix = identity.session[16:]
        self._number = 0
        self._meta: dict[str, Any] | None = None
        self._sender: tuple[int | None, int | None] = None, None
        self.spans: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.start_ns: int | None = None
        self.end_ns: int | None = None

    def begin_frame(self, number: int) -> None:
        """Start the frame of this number."""
        self._place, self._number = f"{self._identity.stream}\0{number}\0", 0

    def note_time(self, time_ns: int | None) -> None:
        """Extend the session to this time."""
        if time_ns is None:
            return
        if self.start_ns is None or time_ns < self.start_ns:
            self.start_ns = time_ns
        if self.end_ns is None or time_ns > self.end_ns:
            self.end_ns = time_ns

    def add_row(self, meta: dict[str, Any], row: Row, sent_ns: int | None) -> str:
        """Add the records of a row; return a problem, or an empty string."""
        if meta is not self._meta:
            self._meta, self._sender = meta, self._sender_of(meta)
        place = self._sender
        if row.table == STEP_TABLE:
            usual = usual_step_of(row.value)
            if usual is not None:
                self._add_usual_step(usual, *place)
                return ""
            step = step_of(row.value)
            if step is not None:
                return self._add_step(step, *place)
        elif row.table == MEMORY_TABLE:
            number, peaks = step_number(row.value), peaks_of(row.value)
            if number is not None and peaks is not None:
                self._add_peaks(number, peaks.attributes())
                return ""
        time_ns = row_time(row.value)
        time_ns = sent_ns if time_ns is None else time_ns
        if time_ns is None:
            return f"a row of {shown(row.table)} without a valid time: kept, not converted"
        self.note_time(time_ns)
        for name, value, attrs in marks_of(row.table, row.value):
            self._add_mark(self._identity.session, name, value, attrs, time_ns)
        if row.table not in _KNOWN_TABLES:
            return f"table {shown(row.table)}: its rows are marks with their fields"
        if row.table in (STEP_TABLE, MEMORY_TABLE):
            return f"a row of {row.table} with invalid values: a mark with its fields"
        return ""

    def _sender_of(self, meta: dict[str, Any]) -> tuple[int | None, int | None]:
        """Return the pid and the rank of an envelope."""
        rank = identifier(meta.get("global_rank"))
        rank = identifier(meta.get("rank")) if rank is None else rank
        return identifier(meta.get("pid")), self._identity.rank if rank is None else rank

    def _next_id(self) -> str:
        """Return the next id; a digest has the digits of four."""
        at = self._number % 4
        if not at:
            content = f"traceml-record\0{self._place}{self._number}"
            self._digits = hashlib.sha256(content.encode()).hexdigest()
        self._number += 1
        return self._digits[16 * at : 16 * at + 16] + self._suffix

    def _add_usual_step(self, step: UsualStep, pid: int | None, rank: int | None) -> None:
        """Add the spans of a step; the same as `_add_step` of the same row."""
        self.note_time(step.start_ns)
        self.note_time(step.end_ns)
        attrs: dict[str, Any] = {SUMS: True}
        if step.whole_ns is not None:
            attrs[STEP_NS] = step.whole_ns
        span_id, session, at = self._next_id(), self._identity.session, step.start_ns
        span = _span(span_id, "step", session, at, step.end_ns, None, pid, rank, attrs)
        span["index"] = step.number
        self.spans.append(span)
        for _, name, duration_ns, calls in step.phases:
            phase_attrs = {"traceml.calls": calls} if calls != 1 else {}
            phase_id, end_ns = self._next_id(), at + duration_ns
            self.spans.append(
                _span(phase_id, name, span_id, at, end_ns, None, pid, rank, phase_attrs)
            )
            at = end_ns
        self._new_steps[step.number] = span

    def _add_step(self, step: StepRow, pid: int | None, rank: int | None) -> str:
        self.note_time(step.start_ns)
        self.note_time(step.end_ns)
        attrs: dict[str, Any] = {SUMS: True}
        if step.whole is not None:
            attrs[STEP_NS] = step.whole.duration_ns
        span_id = self._next_id()
        gpu_ns = step.whole.gpu_ns if step.whole is not None else None
        session = self._identity.session
        span = _span(span_id, "step", session, step.start_ns, step.end_ns, gpu_ns, pid, rank, attrs)
        span["index"] = step.number
        self.spans.append(span)
        for phase in step.phases:
            end_ns = phase.start_ns + phase.timing.duration_ns
            self.spans.append(
                _span(self._next_id(), phase.name, span_id, phase.start_ns, end_ns,
                      phase.timing.gpu_ns, pid, rank, _timing_attributes(phase.timing))
            )  # fmt: skip
        if step.number is not None:
            self._new_steps[step.number] = span
        if not step.extra:
            return ""
        span["traceml"] = plain_object(step.extra)
        return f"keys of {STEP_TABLE} without a field of a step: kept in the span's traceml"

    def _add_peaks(self, step: int, attributes: dict[str, Any]) -> None:
        if step in self._steps and step not in self._new_steps:
            self._add_late_peaks(self._steps.pop(step), step, attributes, self.end_ns or 0)
        else:
            self._peaks[step] = attributes
            while len(self._peaks) > MAX_PENDING:
                oldest = next(iter(self._peaks))
                late = self._peaks.pop(oldest)
                self._add_late_peaks(self._identity.session, oldest, late, self.end_ns or 0)

    def place_peaks(self) -> None:
        """Set the peaks of the batch's steps, and note those without."""
        for number, span in self._new_steps.items():
            peaks = self._peaks.pop(number, None)
            if peaks is not None:
                span["attrs"] |= peaks
            else:
                self._steps[number] = span["id"]
        while len(self._steps) > MAX_PENDING:
            del self._steps[next(iter(self._steps))]

    def add_pending_peaks(self, time_ns: int) -> None:
        """Add the peaks of steps that did not arrive as marks on the session."""
        self.place_peaks()
        self._new_steps = {}
        for number, attributes in self._peaks.items():
            self._add_late_peaks(self._identity.session, number, attributes, time_ns)
        self._peaks.clear()

    def _add_late_peaks(
        self, span_id: str, step: int, attributes: dict[str, Any], time_ns: int
    ) -> None:
        """Add the peaks of a step that is in another batch, or in none, as a mark."""
        if not attributes:
            return
        value = attributes.get(PEAK, MEMORY_TABLE)
        self._add_mark(span_id, f"traceml.{MEMORY_TABLE}", value, {"step": step} | attributes,
                       time_ns)  # fmt: skip

    def _add_mark(
        self, span_id: str, name: str, value: Any, attrs: dict[str, Any], ts_ns: int
    ) -> None:
        kind = {int: "int", float: "float", str: "string"}[type(value)]
        self.marks.append({
            "id": self._next_id(), "span_id": span_id, "name": name, "value_type": kind,
            "value": value, "attrs": attrs, "ts_ns": ts_ns, "kind": "point",
        })  # fmt: skip


def _timing_attributes(timing: Timing) -> dict[str, Any]:
    """Return the attributes of a phase; one call on the CPU, the usual case, has none."""
    attrs: dict[str, Any] = {}
    if timing.calls != 1:
        attrs["traceml.calls"] = timing.calls
    if timing.devices != ("cpu",):
        attrs["traceml.devices"] = list(timing.devices)
    return attrs


def _span(
    span_id: str,
    name: str,
    parent_id: str,
    start_ns: int,
    end_ns: int,
    gpu_ns: int | None,
    pid: int | None,
    rank: int | None,
    attrs: dict[str, Any],
) -> dict[str, Any]:
    return {
        "id": span_id, "name": name, "parent_id": parent_id, "index": None,
        "start_ns": start_ns, "end_ns": end_ns, "cpu_ns": None, "gpu_ns": gpu_ns,
        "memory_peak_bytes": None, "thread_id": None, "pid": pid, "rank": rank,
        "attrs": attrs, "mark_ids": [],
    }  # fmt: skip
