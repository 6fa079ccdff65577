"""The rarely used fields of a recorded scope, created only for scopes that have one of them."""

from __future__ import annotations

import traceback
from typing import Any

from opentelemetry.sdk.trace import Event
from opentelemetry.trace import Link, SpanContext, SpanKind
from opentelemetry.trace.status import Status, StatusCode

from ..flush.json_attributes import text_of

UNSET = Status(StatusCode.UNSET)


class SpanExtras:
    """Fields that few scopes have, with their default values."""

    __slots__ = (
        "context", "costs", "cpu_ns", "events", "gpu_ns", "inside", "is_rooted", "kind", "left_ns",
        "links", "memory_peak_bytes", "otel_parent", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self.context: SpanContext | None = None
        self.is_rooted = False
        """Whether OpenTelemetry's parent, `otel_parent`, differs from Cirron's."""
        self.otel_parent: SpanContext | None = None
        self.inside: Any = None
        """The context inside the scope of a generator, while the generator is suspended."""
        self.status = UNSET
        self.events: list[Event] = []
        self.links: list[Link] = []
        self.kind = SpanKind.INTERNAL
        self.cpu_ns: int | None = None
        self.gpu_ns: int | None = None
        self.memory_peak_bytes: int | None = None
        self.costs: tuple[int, int, int] | None = None
        """Readings at the start: CPU time of the thread, resident set and peak of the process."""
        self.left_ns = 0
        """The time at which an exception left the scope (monotonic ns), 0 if none did; the end of
        the scope is stored after the exception is recorded."""


def exception_attributes(exception: BaseException, *, escaped: bool) -> dict[str, Any]:
    """Return the attributes of the event `exception`; `escaped`: whether it left the scope."""
    kind = type(exception)
    module = kind.__module__ if kind.__module__ != "builtins" else ""
    stack = "".join(traceback.format_exception(kind, exception, exception.__traceback__))
    return {
        "exception.type": f"{module}.{kind.__qualname__}" if module else kind.__qualname__,
        "exception.message": text_of(exception),
        "exception.stacktrace": stack,
        "exception.escaped": str(escaped),
    }
