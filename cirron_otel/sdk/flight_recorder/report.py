"""The facts about an out-of-memory error and its session, from which a bundle is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ...core.records.memory_records import milliseconds, summary_of

if TYPE_CHECKING:
    from .recognition import OutOfMemory

Sample = dict[str, Any]
"""A reading of the sampler: `ts_ns` (Unix ns), `allocated_bytes` (the value of the mark `memory`),
and the attributes of that mark under their own names."""

SOURCE: Final = "cirron_otel.flight_recorder"
RUNNING: Final = "running"


@dataclass(frozen=True, slots=True)
class OomReport:
    """An out-of-memory error, as text and numbers."""

    span_id: str
    trace_id: str
    path: str
    """The names of the scopes around it, outermost first."""
    ts_ns: int
    oom: OutOfMemory
    kind: str
    """The name of the exception's type."""
    module: str
    message: str


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The facts about a session that a bundle contains."""

    session_id: str
    started_ns: int
    host: str
    pid: int
    rank: int
    local_rank: int
    world_size: int
    job_id: str | None
    sample_interval_s: float | None = None
    """The sampler's interval; None if nothing is sampled."""

    @property
    def uuid(self) -> str:
        """The session's id in the form of a UUID."""
        return str(UUID(self.session_id))

    @property
    def sampling_interval_ms(self) -> int:
        """The sampler's interval, ms; 0 if nothing is sampled."""
        return milliseconds(self.sample_interval_s)

    def summary(self) -> dict[str, Any]:
        """Return Stormlog's summary of the session, which still runs."""
        return summary_of(self, RUNNING, self.started_ns, None, SOURCE)
