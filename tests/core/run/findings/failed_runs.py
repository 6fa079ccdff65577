"""Sessions and failures of runs for tests."""

from __future__ import annotations

from typing import Any

from cirron_otel.core.analysis.failures import SessionFailure
from cirron_otel.core.analysis.sessions import State
from cirron_otel.core.analysis.summary import SessionSummary


def failure(
    id_: str, rank: int | None, time_ns: int, error: str, state: str = "failed", **others: Any
) -> SessionFailure:
    """Return a failure of a session."""
    return SessionFailure(id_, state, rank, 1, error, time_ns=time_ns, **others)


def session(
    id_: str, rank: int, start_ns: int, end_ns: int, state: State = "closed"
) -> SessionSummary:
    """Return a session of a rank."""
    return SessionSummary(id_, state, start_ns=start_ns, end_ns=end_ns, ranks=[rank])
