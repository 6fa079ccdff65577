"""The sessions of a run that failed or were killed, and how far their training had progressed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ...semconv import JOB, OOM, OUT_OF_MEMORY
from ..records.rows import number_of
from ..spool.oom_kills import KILLS_CAUSE
from .index import SpoolIndex, id_of, key_of
from .run_traces import BatchLookup, records_of
from .summary import SessionSummary

_MOST = 100
_MOST_LEVELS = 64
ENDED = ("failed", "killed")
_LINE = re.compile(r'  File "(.{1,400})", line (\d{1,9}), in (.{1,200})')

_LIBRARY = re.compile(
    r"[/\\](site-packages|dist-packages|cirron_otel)[/\\]|[/\\]lib[/\\]python|^<frozen "
)
_ABOVE = "SELECT name, idx, parent, id FROM span WHERE id = ? LIMIT 1"

_SESSION = """
SELECT session.no, span.error, span.end_ns, span.rank FROM session
LEFT JOIN span ON span.id = session.key WHERE session.key = ? LIMIT 1
"""
_SAME_ERROR = """
SELECT span.id, span.name, span.idx, span.parent FROM member JOIN span USING (no)
WHERE member.session = ? AND span.error = ? AND span.name IS NOT 'cirron.session'
ORDER BY span.start_ns DESC, span.no DESC LIMIT 1
"""
# An error has its mark on the innermost scope that it left.
_OUT_OF_MEMORY = """
SELECT mark.value FROM member JOIN span USING (no) JOIN mark ON mark.span = span.id
WHERE member.session = ? AND span.error = ? AND mark.name = ?
ORDER BY mark.ts_ns DESC, mark.no DESC LIMIT 1
"""
_LAST_STEP = """
SELECT span.id, span.name, span.idx, span.parent FROM member JOIN span USING (no)
WHERE member.session = ? AND span.name = 'step'
ORDER BY span.start_ns DESC, span.no DESC LIMIT 1
"""
# The training started by `cirron-otel run`: its sessions may have closed normally.
_LAST_STEP_BETWEEN = """
SELECT id, name, idx, parent, rank FROM span
WHERE name = 'step' AND start_ns BETWEEN ? AND ? ORDER BY start_ns DESC, no DESC LIMIT 1
"""
_LOSS = """
SELECT mark.name, mark.value FROM mark JOIN span ON span.id = mark.span
WHERE span.rank IS ? AND mark.name LIKE '%loss%' AND mark.ts_ns <= ?
ORDER BY mark.name <> 'loss', mark.ts_ns DESC, mark.no DESC LIMIT 1
"""


@dataclass(slots=True)
class SessionFailure:
    """One session that failed or was killed."""

    session: str
    state: str
    """`failed`, or `killed`."""
    rank: int | None
    pid: int | None
    error: str
    """The status message: the exception, or the signal."""
    where: str | None = None
    """The file, line and function of the exception's innermost frame."""
    scope: str | None = None
    """The name of the innermost scope that was open."""
    span_id: str | None = None
    """The id of that scope."""
    epoch: str | None = None
    step: str | None = None
    """The indexes of the epoch and step that were open at the failure, or of the last ones."""
    time_ns: int | None = None
    """The time at which the session ended, Unix ns."""
    loss_name: str | None = None
    cause: str | None = None
    """`out of memory` if an out-of-memory error or the kernel's OOM killer ended the session."""
    requested_bytes: int | None = None
    """The size of the allocation that failed, if the error stated it."""
    last_loss: float | None = None
    """The rank's last mark that is named `loss`, or whose name contains that word."""

    def to_json(self) -> dict[str, Any]:
        """Return the failure as a JSON object."""
        return asdict(self)


def failures_of(
    index: SpoolIndex, reader: BatchLookup | None, sessions: Iterable[SessionSummary]
) -> list[SessionFailure]:
    """Return the failures of a run in the order of their end; at most 100.

    `assign_sessions` must have been applied to the index. Processes that a signal ended come after
    those with an exception, because the launcher of a job ends all ranks if one fails.
    """
    ended = [each for each in sessions if each.state in ENDED and each.id is not None][:_MOST]
    failures = [_failure(index, each) for each in ended]
    if all(each.scope == JOB for each in failures):
        for failure, summary in zip(failures, ended, strict=True):
            _place_of_job(index, failure, summary)
    if reader is not None:
        ids = [each.span_id for each in failures if each.span_id is not None]
        records = records_of(index, reader, [*ids, *(each.session for each in failures)])
        for each in failures:
            # The session's exception has all frames; an inner scope's has only the inner ones.
            session, scope = records.get(each.session, {}), records.get(each.span_id or "", {})
            each.where = innermost_frame(session) or innermost_frame(scope)
    return sorted(failures, key=lambda each: (each.state != "failed", each.time_ns or 0))


def _failure(index: SpoolIndex, session: SessionSummary) -> SessionFailure:
    key = key_of(session.id)
    number, error, end_ns, rank = next(index.rows(_SESSION, key), (None, None, None, None))
    failure = SessionFailure(
        session.id or "",
        session.state,
        rank if rank is not None else (session.ranks[0] if session.ranks else None),
        session.pids[0] if session.pids else None,
        error or "the process died without closing its session",
        time_ns=end_ns if end_ns is not None else session.end_ns,
    )
    _place(index, failure, number)
    _cause(index, failure, number)
    if failure.time_ns is not None:
        name, value = next(index.rows(_LOSS, failure.rank, failure.time_ns), (None, None))
        failure.loss_name, failure.last_loss = name, number_of(value)
    return failure


def _place_of_job(index: SpoolIndex, failure: SessionFailure, session: SessionSummary) -> None:
    """Set the last step and loss of a job that ended with an exit code but without an exception."""
    times = session.start_ns, session.end_ns
    row = next(index.rows(_LAST_STEP_BETWEEN, *times), None)
    if row is not None:
        *scope, rank = row
        _around(index, failure, tuple(scope))
        name, value = next(index.rows(_LOSS, rank, session.end_ns), (None, None))
        failure.loss_name, failure.last_loss = name, number_of(value)


def _place(index: SpoolIndex, failure: SessionFailure, number: int | None) -> None:
    """Set the innermost scope of the failure, and the step and epoch around it."""
    row = next(index.rows(_SAME_ERROR, number, failure.error), None)
    if row is not None:
        failure.scope = row[1]
        failure.span_id = id_of(row[0]) if row[0] is not None else None
    row = row if row is not None else next(index.rows(_LAST_STEP, number), None)
    _around(index, failure, row)


def _cause(index: SpoolIndex, failure: SessionFailure, number: int | None) -> None:
    """Set the cause of the failure if it is a lack of memory."""
    row = next(index.rows(_OUT_OF_MEMORY, number, failure.error, OOM), None)
    if row is not None or KILLS_CAUSE in failure.error:
        failure.cause = OUT_OF_MEMORY
    if row is not None:
        failure.requested_bytes = int(row[0]) if (row[0] or "").isdecimal() else None


def _around(index: SpoolIndex, failure: SessionFailure, row: tuple[Any, ...] | None) -> None:
    """Set the failure's step and epoch from the scope in `row` and its ancestors."""
    for _ in range(_MOST_LEVELS):
        if row is None:
            return
        _, name, position, parent = row
        if name == "step" and failure.step is None:
            failure.step = position
        elif name == "epoch" and failure.epoch is None:
            failure.epoch = position
        parent_row = next(index.rows(_ABOVE, parent), None) if parent is not None else None
        row = None if parent_row is None else (parent_row[3], *parent_row[:3])


def innermost_frame(record: dict[str, Any]) -> str | None:
    """Return the innermost frame of a record's exception, preferably in the program's own code."""
    otel = record.get("otel")
    events = otel.get("events") if isinstance(otel, dict) else None
    for event in reversed(events if isinstance(events, list) else []):
        attributes = (
            event.get("attrs", event.get("attributes")) if isinstance(event, dict) else None
        )
        stack = attributes.get("exception.stacktrace") if isinstance(attributes, dict) else None
        lines = _LINE.findall(stack) if isinstance(stack, str) else []
        own_lines = [line for line in lines if not _LIBRARY.search(line[0])]
        if lines:
            path, line, function = (own_lines or lines)[-1]
            return f"{path}:{line} in {function}"
    return None
