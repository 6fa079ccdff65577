"""The trace of a scope: the session's first trace, a later segment, or a caller's trace.

docs/otlp-mapping.md, "Trace layout": a trace is complete once it contains 4,000 records or is 10
minutes old. When the next child or grandchild of the session starts, it opens a new segment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import TraceState

from ...ids import segment_trace_id
from .clock import now, wall

SAMPLED = 1

UNIT_DEPTH = 2
"""The deepest scope that opens a segment: a grandchild of the session."""
_MOST_UNITS = 64
"""Maximum number of units between two counts of the records."""


class Trace:
    """A trace that contains scopes."""

    __slots__ = ("flags", "is_apart", "low", "state", "trace_id")

    def __init__(
        self, trace_id: bytes, flags: int = SAMPLED, state: TraceState | None = None,
        *, is_apart: bool = False,
    ) -> None:  # fmt: skip
        self.trace_id = trace_id
        self.low = trace_id[8:].hex()
        """The second half of the ids of the trace's scopes."""
        self.flags = flags
        self.state = state
        self.is_apart = is_apart
        """Whether the trace belongs to a caller outside of the session; then it has no segments."""

    @property
    def is_sampled(self) -> bool:
        """Whether its spans are exported."""
        return bool(self.flags & SAMPLED)


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """A segment that was opened, with the fields of the batch's `otel.segments`."""

    number: int
    trace_id: bytes
    previous: bytes
    unit_id: str
    parent_id: str
    parent_trace_id: bytes
    start: int
    """Monotonic nanoseconds."""

    def record(self) -> dict[str, Any]:
        """Return the segment's record in a batch."""
        return {
            "number": self.number,
            "trace_id": self.trace_id.hex(),
            "previous_trace_id": self.previous.hex(),
            "start_ns": wall(self.start),
            "unit_id": self.unit_id,
            "parent_id": self.parent_id,
            "parent_trace_id": self.parent_trace_id.hex(),
        }


class Segments:
    """The chain of a session's traces.

    Records are counted only occasionally. The next count is due after the number of units that
    should fill half of the remaining room, estimated from the size of the previous units.
    """

    __slots__ = (
        "_age", "_base", "_counted", "_limit", "_lock", "_opened_at", "_recorded", "_session",
        "_units", "new", "number", "tick", "trace",
    )  # fmt: skip

    def __init__(
        self,
        session: str,
        trace: Trace,
        limit: int,
        age_ns: int,
        recorded: Callable[[], int],
    ) -> None:
        """`recorded` returns the number of scopes and marks that the process has begun so far.

        A trace is complete once it contains `limit` records or is `age_ns` nanoseconds old.
        """
        self._session = session
        self._recorded = recorded
        self.trace = trace
        """The trace that new units are added to."""
        self.tick = 0
        """Number of units that may still start before records are counted again."""
        self.number = 0
        self.new: list[SegmentStart] = []
        """Segments that no batch contains yet."""
        self._limit, self._age = limit, age_ns
        self._base = self._counted = recorded()
        self._units = 0
        self._opened_at = now()
        self._lock = threading.Lock()

    def choose(self, unit_id: str, parent_id: str, parent: Trace) -> Trace:
        """Return the trace of a unit that starts now; this may open a segment."""
        if not self._lock.acquire(blocking=False):
            return self.trace  # another thread is choosing
        try:
            count = self._recorded()
            used = count - self._base
            # `count` already includes the unit that starts.
            if used > self._limit or now() - self._opened_at >= self._age:
                return self._open(unit_id, parent_id, parent, count)
            units = max(self._units - self.tick, 1)
            each = max((count - self._counted) // units, 1)
            self._counted = count
            # At most twice the previous number: the first units predict little about later units.
            foreseen = min(_MOST_UNITS, (self._limit - used) // (2 * each), 2 * self._units + 1)
            self._units = self.tick = foreseen
            return self.trace
        finally:
            self._lock.release()

    def _open(self, unit_id: str, parent_id: str, parent: Trace, count: int) -> Trace:
        before = self.trace
        self.number += 1
        trace_id = segment_trace_id(self._session, unit_id, self.number, before.trace_id)
        self.new.append(
            SegmentStart(
                self.number, trace_id, before.trace_id, unit_id, parent_id, parent.trace_id, now()
            )
        )
        self.trace = Trace(trace_id, before.flags, before.state)
        self._base = self._counted = count - 1
        self._opened_at = now()
        self.tick = self._units = 0
        return self.trace

    def request_count(self) -> None:
        """Make the next unit count the records; the flush thread calls this."""
        self.tick = 0
