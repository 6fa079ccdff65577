"""The fields of a batch that determine its run, its session, and the session's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ... import exactjson
from ...errors import InputError
from ...ids import is_id
from ...semconv import CONFIGURATION, FAILURE_CAUSE, HOST_NAME, JOB, OUT_OF_MEMORY, SESSION
from ..records.rows import IndexedBatch, IndexedSpan, rows_of
from ..records.step_summaries import GROUP, STEP_COUNT
from ..spool.oom_kills import KILLS_CAUSE

RUN_ID, RUN_NAME, SCRIPT = "cirron.run.id", "cirron.run.name", "cirron.run.script"
CLOSED, FAILED, KILLED = "closed", "failed", "killed"
UNFINISHED, OPEN = "unfinished", "open"
_SEVERITY = (None, CLOSED, OPEN, UNFINISHED, KILLED, FAILED)
STEP_NAMES = ("step", "batch")
"""The names of the scopes that are counted as steps of a run; `batch` is that of cirron-sdk."""
_ENDED_BY_SIGNAL = ("incomplete:", "killed:")
_ERROR = 2


class _GroupAttributes(msgspec.Struct, gc=False):
    count: int = msgspec.field(default=0, name=STEP_COUNT)


class _Resource(msgspec.Struct, gc=False):
    attributes: dict[str, Any] = {}


class _Otel(msgspec.Struct, gc=False):
    session: str | None = None
    session_trace_id: str | None = None
    resource: _Resource | None = None
    resource_spans: list[msgspec.Raw] = []


class _DetailsOtel(msgspec.Struct, gc=False):
    resource: _Resource | None = None


_otel_decoder = msgspec.json.Decoder(_Otel | None)
_details_decoder = msgspec.json.Decoder(_DetailsOtel | None)
_DETAILS = CONFIGURATION | {HOST_NAME}
_COUNTED = frozenset({*STEP_NAMES, GROUP, JOB, SESSION})


@dataclass(slots=True)
class RunBatchOutline:
    """The run and the session of a batch, and a summary of its spans."""

    session: str | None = None
    """The session of all records; None if the batch does not name its session."""
    session_trace_id: str | None = None
    is_foreign: bool = False
    """Whether its spans were received as OTLP from another service."""
    resource: dict[str, Any] = field(default_factory=dict)
    start_ns: int | None = None
    end_ns: int | None = None
    ranks: set[int] = field(default_factory=set)
    steps: dict[int | None, int] = field(default_factory=dict)
    spans: int = 0
    trace_halves: frozenset[str] = frozenset()
    """The lower halves of the traces of a foreign batch's spans."""
    status: str | None = None
    """The status of the session, if its own span is in the batch; `failed` for a failed job."""
    cause: str | None = None
    """The cause of a failure, if the session's own span or the job's states a known one."""

    def join(self, other: RunBatchOutline) -> None:
        """Add the fields of another batch of the same session or run."""
        self.session_trace_id = self.session_trace_id or other.session_trace_id
        self.resource.update(other.resource)
        self.spans += other.spans
        self.start_ns = either(min, self.start_ns, other.start_ns)
        self.end_ns = either(max, self.end_ns, other.end_ns)
        self.ranks |= other.ranks
        for rank, steps in other.steps.items():
            self.steps[rank] = self.steps.get(rank, 0) + steps
        self.status = worse(self.status, other.status)
        self.cause = self.cause or other.cause

    def text(self, attribute: str) -> str | None:
        """Return an attribute of the resource if it is a non-empty string."""
        value = self.resource.get(attribute)
        return value if isinstance(value, str) and value else None


def either(choose: Callable[..., int], one: int | None, other: int | None) -> int | None:
    """Return the chosen one of two numbers, of which each may be missing."""
    return other if one is None else one if other is None else choose(one, other)


def outline_of(data: bytes) -> RunBatchOutline:
    """Return the outline of a batch; fields of an unexpected type count as absent."""
    return outline_of_rows(rows_of(data), data)


def outline_of_rows(rows: IndexedBatch, data: bytes) -> RunBatchOutline:
    """Return the outline of a batch whose rows have been read from `data`."""
    spans = rows.spans
    try:
        otel = _otel_decoder.decode(rows.otel) if rows.otel else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        otel, spans = _lenient(rows.spans, data)
    outline = _outline(otel)
    outline.spans = len(spans)
    if outline.is_foreign:
        outline.trace_halves = frozenset((span.id or "")[16:] for span in spans)
    outline.start_ns = min((span.start_ns or 0 for span in spans), default=None)
    outline.end_ns = max((span.end_ns or 0 for span in spans), default=None)
    outline.ranks = {span.rank for span in spans if span.rank is not None}
    for span in spans:
        if span.name in _COUNTED:
            _count(span, outline)
    return outline


def outline_of_otel(otel: Any) -> RunBatchOutline:
    """Return the outline of a batch without its spans, from the value of its `otel`."""
    return _outline(_otel(otel) if isinstance(otel, dict) else None)


def details_of(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a resource that describe the recording process: its host, and the
    configuration of its training. Each is a text, a number or a boolean.
    """
    return {
        name: resource[name]
        for name in resource.keys() & _DETAILS
        if isinstance(resource[name], (str, int, float)) and resource[name] != ""
    }


def details_of_rows(rows: IndexedBatch) -> dict[str, Any]:
    """Return the details of the process that recorded a batch, as `details_of` does."""
    try:
        otel = _details_decoder.decode(rows.otel) if rows.otel else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return {} if otel is None or otel.resource is None else details_of(otel.resource.attributes)


def _outline(otel: _Otel | None) -> RunBatchOutline:
    outline = RunBatchOutline()
    if otel is not None:
        named = otel.session
        outline.session = named if is_id(named) else None
        outline.session_trace_id = otel.session_trace_id
        outline.is_foreign = bool(otel.resource_spans)
        outline.resource = otel.resource.attributes if otel.resource is not None else {}
    return outline


def _count(span: IndexedSpan, outline: RunBatchOutline) -> None:
    attrs = span.attrs
    if not isinstance(attrs, msgspec.Raw):
        attrs = msgspec.Raw(exactjson.dumps(attrs))
    if span.name in STEP_NAMES:
        outline.steps[span.rank] = outline.steps.get(span.rank, 0) + 1
    elif span.name == GROUP:
        outline.steps[span.rank] = outline.steps.get(span.rank, 0) + _steps_of_group(attrs)
    elif span.name == JOB or (span.name == SESSION and span.parent_id is None):
        add_end(outline, span.name, span.otel if isinstance(span.otel, dict) else None, attrs)


def add_end(
    outline: RunBatchOutline, name: str, otel: dict[str, Any] | None, attrs: msgspec.Raw
) -> None:
    """Add the end of a session or of a job, by the fields of its span, to an outline."""
    status = status_of(otel)
    if name == SESSION or status != CLOSED:
        outline.status = worse(outline.status, status)
        outline.cause = outline.cause or cause_of(otel, attrs)


def _steps_of_group(attrs: msgspec.Raw) -> int:
    try:
        count = msgspec.json.decode(attrs, type=_GroupAttributes).count if attrs else 0
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return 0
    return max(count, 0)


def worse(one: str | None, other: str | None) -> str | None:
    """Return the more serious of two states; None is less serious than any."""
    return max(one, other, key=_SEVERITY.index)


def status_of(otel: dict[str, Any] | None) -> str:
    """Return the state of a session or job by the status of its span."""
    status = otel.get("status") if otel is not None else None
    if not isinstance(status, dict) or status.get("code") != _ERROR:
        return CLOSED
    message = status.get("message")
    is_signal = isinstance(message, str) and message.startswith(_ENDED_BY_SIGNAL)
    return KILLED if is_signal else FAILED


def cause_of(otel: dict[str, Any] | None, attrs: msgspec.Raw) -> str | None:
    """Return `out of memory` if a session or job ended because of that, else None."""
    if status_of(otel) == CLOSED:
        return None
    message = (otel or {})["status"].get("message")
    if isinstance(message, str) and KILLS_CAUSE in message:
        return OUT_OF_MEMORY
    try:
        named = msgspec.json.decode(attrs, type=dict[str, Any]) if attrs else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return OUT_OF_MEMORY if named.get(FAILURE_CAUSE) == OUT_OF_MEMORY else None


def _lenient(spans: list[IndexedSpan], data: bytes) -> tuple[_Otel | None, list[IndexedSpan]]:
    """Return the fields of a batch with values of unexpected types, which count as absent.

    `spans` are its rows, of which those of objects count.
    """
    try:
        batch = exactjson.loads(data)
    except InputError:
        return None, []
    if not isinstance(batch, dict):
        return None, []
    otel, records = batch.get("otel"), batch.get("spans")
    return (
        _otel(otel) if isinstance(otel, dict) else None,
        [span for span, record in zip(spans, records, strict=True) if isinstance(record, dict)]
        if isinstance(records, list)
        else [],
    )


def _otel(otel: dict[str, Any]) -> _Otel:
    resource = otel.get("resource")
    attributes = resource.get("attributes") if isinstance(resource, dict) else None
    spans = otel.get("resource_spans")
    return _Otel(
        _text(otel.get("session")),
        _text(otel.get("session_trace_id")),
        _Resource(attributes if isinstance(attributes, dict) else {}),
        [msgspec.Raw()] if isinstance(spans, list) and spans else [],
    )


def _text(value: object) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
