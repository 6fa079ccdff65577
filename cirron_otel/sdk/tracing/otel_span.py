"""The OpenTelemetry interface of a recorded scope: a full Span and a ReadableSpan.

Everything expensive (the SpanContext, events, links, status) is created on first access.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from opentelemetry import trace as trace_api
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from ... import semconv as sc
from ...ids import INT64_LIMIT
from ..flush.json_attributes import plain_attributes, text_of
from ..session.errors import record_error
from .clock import ANCHOR, now, wall, wall_now
from .coerce import USUAL, held, hold
from .span_extras import UNSET, SpanExtras, exception_attributes
from .state import INSTRUMENTATION_SCOPE, state
from .traces import Trace

_MOST_INDENT = 80

F = TypeVar("F", bound=Callable[..., Any])


def _unraising(method: F) -> F:
    """Wrap `method` so that errors, including those of its arguments' code, are only counted."""

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            record_error("span", error)

    return wrapper  # type: ignore[return-value]


class SharedAttributes(dict[str, Any]):
    """Attributes that several scopes share; a scope copies them before it changes them."""

    __slots__ = ()


class RecordedScope(trace_api.Span, ReadableSpan):
    """The slots of a scope, and OpenTelemetry's interfaces to them."""

    __slots__ = (
        "_above",
        "_attrs",
        "_depth",
        "_end",
        "_extras",
        "_id",
        "_index",
        "_name",
        "_overhead",
        "_start",
        "_thread",
        "_token",
        "_trace",
    )  # fmt: skip

    _name: str
    _index: Any
    _attrs: dict[str, Any] | None
    _id: int
    """First half of the id; 0 if the scope is not recorded (too deep, or dropped)."""
    _above: RecordedScope
    _trace: Trace
    _start: int
    _end: int
    _depth: int
    _thread: int
    _overhead: int
    _extras: SpanExtras | None

    # --- Cirron's names -------------------------------------------------------------------------

    @property
    def id(self) -> str | None:
        """The Cirron id, 32 hex digits; None before the scope is entered."""
        return f"{self._id:016x}{self._trace.low}" if self._start and self._id else None

    @property
    def parent_id(self) -> str | None:
        """The Cirron id of the parent scope; None for a session, and outside of every session."""
        parent = getattr(self, "_above", None)
        return parent.id if parent is not None else None

    @property
    def index(self) -> Any:
        """The number of the scope among the scopes with the same name."""
        return self._index

    @index.setter
    def index(self, index: Any) -> None:
        self._index = index

    @property
    def cpu_ns(self) -> int | None:
        """CPU time, ns; None if not measured. Writable, like `gpu_ns` and `memory_peak_bytes`."""
        return self._extras.cpu_ns if self._extras is not None else None

    @cpu_ns.setter
    def cpu_ns(self, value: int | None) -> None:
        self.more.cpu_ns = value

    @property
    def gpu_ns(self) -> int | None:
        """GPU time, nanoseconds; None if it was not measured."""
        return self._extras.gpu_ns if self._extras is not None else None

    @gpu_ns.setter
    def gpu_ns(self, value: int | None) -> None:
        self.more.gpu_ns = value

    @property
    def memory_peak_bytes(self) -> int | None:
        """Peak resident set, bytes; None if it was not measured."""
        return self._extras.memory_peak_bytes if self._extras is not None else None

    @memory_peak_bytes.setter
    def memory_peak_bytes(self, value: int | None) -> None:
        self.more.memory_peak_bytes = value

    @property
    def attrs(self) -> dict[str, Any]:
        """The user's attributes."""
        attrs = self._attrs
        if attrs is None or type(attrs) is SharedAttributes:
            self._attrs = attrs = dict(attrs or ())
        return attrs

    @property
    def start_ns(self) -> int:
        """Start, nanoseconds since the Unix epoch; 0 before the scope is entered."""
        return wall(self._start) if self._start else 0

    @property
    def end_ns(self) -> int:
        """End, nanoseconds since the Unix epoch; 0 while it is open."""
        return wall(self._end) if self._end else 0

    @property
    def thread_id(self) -> int:
        """The thread that entered the scope; 0 before that, and if the scope is not recorded."""
        return getattr(self, "_thread", 0)

    @property
    def more(self) -> SpanExtras:
        """The rarely used fields (`SpanExtras`), created on first access."""
        if self._extras is None:
            self._extras = SpanExtras()
        return self._extras

    # --- opentelemetry.trace.Span ---------------------------------------------------------------

    def get_span_context(self) -> SpanContext:
        """Return the trace id, the span id, and the flags."""
        if not self._start or not self._id:
            return trace_api.INVALID_SPAN_CONTEXT
        try:
            extras = self.more
            if extras.context is None:
                trace = self._trace
                extras.context = SpanContext(
                    int.from_bytes(trace.trace_id, "big"), self._id, False,
                    TraceFlags(trace.flags), trace.state,
                )  # fmt: skip
            return extras.context
        except Exception as error:
            record_error("span", error)
            return trace_api.INVALID_SPAN_CONTEXT

    def is_recording(self) -> bool:
        """Return whether the scope is open and recorded."""
        return bool(self._start) and not self._end and state.recording

    def set_attribute(self, key: str, value: Any) -> None:
        """Set one attribute; ignored once the scope has ended."""
        try:
            if not self._end and isinstance(key, str):
                self.attrs[key] = value if type(value) in USUAL else held(value)
        except Exception as error:
            record_error("span", error)

    @_unraising
    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes."""
        if isinstance(attributes, Mapping):
            for key, value in attributes.items():
                self.set_attribute(key, value)

    @_unraising
    def add_event(
        self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None
    ) -> None:
        """Add an event that is not a mark; `timestamp` in nanoseconds since the Unix epoch."""
        if not self._end:
            attrs = dict(attributes) if isinstance(attributes, Mapping) else {}
            hold(attrs)
            is_time = isinstance(timestamp, int) and 0 <= timestamp < INT64_LIMIT
            at = timestamp if is_time else wall_now()
            self.more.events.append(Event(text_of(name), attrs, at))

    @_unraising
    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        """Add a link to another span."""
        if not self._end and isinstance(context, SpanContext):
            attrs = dict(attributes) if isinstance(attributes, Mapping) else {}
            hold(attrs)
            self.more.links.append(Link(context, attrs))

    @_unraising
    def update_name(self, name: str) -> None:
        """Change the name."""
        if not self._end:
            self._name = text_of(name)

    @_unraising
    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status; OK is final, UNSET is ignored (OpenTelemetry's specification)."""
        if self._end:
            return
        if isinstance(status, StatusCode):
            status = Status(status, description if status is StatusCode.ERROR else None)
        if not isinstance(status, Status) or status.status_code is StatusCode.UNSET:
            return
        extras = self.more
        if extras.status.status_code is not StatusCode.OK:
            extras.status = status

    @_unraising
    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add the event `exception` as OpenTelemetry's semantic conventions define it."""
        attrs = exception_attributes(exception, escaped=escaped)
        if isinstance(attributes, Mapping):
            attrs.update(attributes)
        self.add_event("exception", attrs, timestamp)

    @_unraising
    def end(self, end_time: int | None = None) -> None:
        """End the scope now or at `end_time` (ns since the Unix epoch), not before its start."""
        if self._start and not self._end:
            if isinstance(end_time, int) and end_time < INT64_LIMIT:
                self._end = max(end_time - ANCHOR, self._start)
            else:
                self._end = now()

    # --- opentelemetry.sdk.trace.ReadableSpan ---------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the scope."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self.update_name(name)

    @property
    def context(self) -> SpanContext:
        """The trace id, the span id, and the flags."""
        return self.get_span_context()

    @property
    def parent(self) -> SpanContext | None:
        """OpenTelemetry's parent: the span that was current at the start; it may be remote."""
        parent: RecordedScope | None = getattr(self, "_above", None)
        if parent is None or not self._id:
            return None
        if self._extras is not None and self._extras.is_rooted:
            return self._extras.otel_parent
        context = parent.get_span_context()
        if not context.is_valid:
            return None
        if parent._trace.trace_id != self._trace.trace_id:
            # the continuation span that represents the parent in this segment
            trace_id = int.from_bytes(self._trace.trace_id, "big")
            return SpanContext(trace_id, context.span_id, False, context.trace_flags)
        return context

    @property
    def kind(self) -> SpanKind:
        """The span kind; INTERNAL by default."""
        return self._extras.kind if self._extras is not None else SpanKind.INTERNAL

    @property
    def start_time(self) -> int | None:
        """Start, nanoseconds since the Unix epoch; None before the scope is entered."""
        return self.start_ns or None

    @property
    def end_time(self) -> int | None:
        """End, nanoseconds since the Unix epoch; None while the scope is open."""
        return self.end_ns or None

    @property
    def status(self) -> Status:
        """UNSET, OK or ERROR."""
        return self._extras.status if self._extras is not None else UNSET

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes as the OTLP mapping defines them: the user's, escaped, and `cirron.*`."""
        attributes: dict[str, Any] = {}
        for key, value in self.attrs.copy().items():
            attributes[sc.ESCAPE + key if sc.needs_escape(key) else key] = value
        if isinstance(self._index, int):
            attributes[sc.INDEX] = self._index
        if self.thread_id:
            attributes[sc.THREAD_ID] = self.thread_id
        return attributes

    @property
    def events(self) -> Sequence[Event]:
        """The events that are not marks."""
        return tuple(self._extras.events) if self._extras is not None else ()

    @property
    def links(self) -> Sequence[Link]:
        """The links to other spans."""
        return tuple(self._extras.links) if self._extras is not None else ()

    @property
    def resource(self) -> Resource:
        """The provider's resource."""
        return state.resource or Resource.get_empty()

    @property
    def instrumentation_scope(self) -> InstrumentationScope:
        """The instrumentation scope: `cirron` and the SDK's version."""
        return INSTRUMENTATION_SCOPE

    @property
    def instrumentation_info(self) -> Any:
        """The instrumentation scope, by OpenTelemetry's older name."""
        return INSTRUMENTATION_SCOPE

    @property
    def dropped_attributes(self) -> int:
        """Always 0: the limits of OpenTelemetry apply only to export."""
        return 0

    dropped_events = dropped_links = dropped_attributes

    def to_json(self, indent: int | None = 4) -> str:
        """Return the scope as JSON text, in the format of the OpenTelemetry SDK's spans."""
        if indent is not None and not (type(indent) is int and 0 <= indent <= _MOST_INDENT):
            indent = 4
        text: str = ReadableSpan(
            text_of(self.name), self.context, self.parent, self.resource,
            plain_attributes(self.attributes),
            [Event(e.name, plain_attributes(e.attributes), e.timestamp) for e in self.events],
            [Link(link.context, plain_attributes(link.attributes)) for link in self.links],
            self.kind, None, self.status, self.start_time, self.end_time,
            self.instrumentation_scope,
        ).to_json(indent)  # fmt: skip
        return text
