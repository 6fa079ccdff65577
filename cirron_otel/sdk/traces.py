"""In which trace a scope stands: the session's own, one of its later segments, or another's.

docs/otlp-mapping.md, "Trace layout": a trace is filled until it holds 4,000 records or is 10
minutes old; the next child or grandchild of the session to start opens the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import TraceState

from ..ids import segment_trace_id
from .clock import now, wall

SAMPLED = 1

UNIT_DEPTH = 2
"""The deepest scope that opens a segment: a grandchild of the session."""
_MOST_UNITS = 64
"""Units that may pass before records are counted again."""


class Trace:
    """A trace that scopes stand in."""

    __slots__ = ("flags", "is_apart", "low", "state", "trace_id")

    def __init__(
        self, trace_id: bytes, flags: int = SAMPLED, state: TraceState | None = None,
        *, is_apart: bool = False,
    ) -> None:  # fmt: skip
        self.trace_id = trace_id
        self.low = trace_id[8:].hex()
        """The second half of the ids of its scopes."""
        self.flags = flags
        self.state = state
        self.is_apart = is_apart
        """Whether it belongs to somebody else (a caller's): no segment opens inside."""

    @property
    def is_sampled(self) -> bool:
        """Whether its spans are exported."""
        return bool(self.flags & SAMPLED)


@dataclass(frozen=True, slots=True)
class Opened:
    """A segment that was opened: what the batch's `otel.segments` says about it."""

    number: int
    trace_id: bytes
    previous: bytes
    unit_id: str
    parent_id: str
    parent_trace_id: bytes
    start: int
    """Monotonic nanoseconds."""

    def record(self) -> dict[str, Any]:
        """As it stands in a batch."""
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

    Records are counted only now and then: after each count, as many units may pass as fit into
    half of what is left by the size of the units before.
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

        A trace is complete once it holds `limit` records or is `age_ns` nanoseconds old.
        """
        self._session = session
        self._recorded = recorded
        self.trace = trace
        """The trace that is being filled."""
        self.tick = 0
        """Units that may still start before records are counted again."""
        self.number = 0
        self.new: list[Opened] = []
        """Segments that no batch has named yet."""
        self._limit, self._age = limit, age_ns
        self._base = self._counted = recorded()
        self._units = 0
        self._opened_at = now()
        self._lock = threading.Lock()

    def choose(self, unit_id: str, parent_id: str, parent: Trace) -> Trace:
        """The trace of a unit that starts now; it may open a segment."""
        if not self._lock.acquire(blocking=False):
            return self.trace  # another thread is choosing
        try:
            count = self._recorded()
            used = count - self._base
            # The unit that starts is counted already.
            if used > self._limit or now() - self._opened_at >= self._age:
                return self._open(unit_id, parent_id, parent, count)
            units = max(self._units - self.tick, 1)
            each = max((count - self._counted) // units, 1)
            self._counted = count
            # Twice as many as the last time at most: the first units tell little of the next.
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
            Opened(
                self.number, trace_id, before.trace_id, unit_id, parent_id, parent.trace_id, now()
            )
        )
        self.trace = Trace(trace_id, before.flags, before.state)
        self._base = self._counted = count - 1
        self._opened_at = now()
        self.tick = self._units = 0
        return self.trace

    def look_again(self) -> None:
        """Count at the next unit, whatever was foreseen: the flush thread calls it."""
        self.tick = 0
