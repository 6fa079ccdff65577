"""A summary of a spool: its sessions, ranks and processes, its record counts and its time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from ...errors import InputError
from ..spool.journal import read_journal
from ..spool.owner import is_alive, owners
from ..spool.paths import SpoolPaths
from ..spool.reader import SpoolReader
from .index import SpoolIndex, id_of
from .sessions import State, assign_sessions

_MAX_LISTED = 1000


@dataclass(slots=True)
class SessionSummary:
    """One session: the records of one process between `profile()` and its end."""

    id: str | None
    """None for the records of one process that belong to no session."""
    state: State
    """`closed`: the session ended. `failed`: it ended with an error. `killed`: a signal ended the
    process, or it died without recording an end. `open`: the process is alive. `unfinished`: the
    end was not recorded, and whether the process is alive is unknown. `none`: no session."""
    error: str | None = None
    """The reason for `failed` or `killed`, if it was recorded."""
    start_ns: int | None = None
    end_ns: int | None = None
    """The earliest start and the latest end of its spans so far."""
    spans: int = 0
    marks: int = 0
    snapshots: int = 0
    ranks: list[int] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SpoolSummary:
    """The summary of a complete spool."""

    path: str
    files: int
    bytes: int
    """The size of the batch files that were read."""
    skipped: int
    """The number of files that are not readable batches; the reader's findings give the reasons."""
    sdk_versions: list[str]
    first_ns: int | None
    last_ns: int | None
    """The earliest start and the latest end of a span."""
    spans: int
    marks: int
    snapshots: int
    sessions: list[SessionSummary]
    """The first 1,000 sessions, in order of their start."""
    session_count: int
    ranks: list[int]
    marks_unattached: int
    """The number of marks whose span is in no known session, including the `root` sentinel."""

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return asdict(self)


def summarise(reader: SpoolReader) -> SpoolSummary:
    """Return the summary of a spool, in bounded memory (with an index on disk)."""
    with SpoolIndex().load(reader) as index:
        assign_sessions(index)
        found, marks = sessions_of(index), index.one("SELECT count(*) FROM mark")
        sessions = with_processes(found, reader.paths)
        first_ns, last_ns = next(index.rows("SELECT min(start_ns), max(end_ns) FROM span"))
        ranks = (row[0] for row in index.rows("SELECT DISTINCT rank FROM span ORDER BY rank"))
        return SpoolSummary(
            path=str(reader.paths.spool),
            files=index.files,
            bytes=index.bytes,
            skipped=reader.skipped,
            sdk_versions=sorted(index.sdk_versions),
            first_ns=first_ns,
            last_ns=last_ns,
            spans=index.one("SELECT count(*) FROM span"),
            marks=marks,
            snapshots=index.one("SELECT count(*) FROM snapshot"),
            sessions=sessions[:_MAX_LISTED],
            session_count=len(sessions),
            ranks=[rank for rank in ranks if rank is not None][:_MAX_LISTED],
            marks_unattached=marks - sum(each.marks for each in found),
        )


_PER_SESSION = """
SELECT session, rank, pid, count(*), min(start_ns), max(end_ns) FROM member JOIN span USING (no)
GROUP BY session, rank, pid ORDER BY session, rank, pid
"""
_ERRORS = """
SELECT session.no, span.error FROM session JOIN span ON span.id = session.key
WHERE span.error IS NOT NULL
"""
# A mark or snapshot belongs to its span's session, or to the session that its span_id names.
_ATTACHED = """
SELECT coalesce(
    (SELECT session FROM span JOIN member USING (no) WHERE span.id = {0}.span LIMIT 1),
    (SELECT session.no FROM session WHERE session.key = {0}.span)
), count(*) FROM {0} GROUP BY 1
"""


def sessions_of(index: SpoolIndex) -> list[SessionSummary]:
    """Return all sessions of an index in order of their start; those without an id come last.

    `assign_sessions` must have been applied to the index.
    """
    marks, snapshots = (dict(index.rows(_ATTACHED.format(kind))) for kind in ("mark", "snapshot"))
    sessions = {
        number: SessionSummary(id_of(key) if key is not None else None, state)
        for number, key, state in index.rows("SELECT no, key, state FROM session")
    }
    pids: defaultdict[int, set[int]] = defaultdict(set)
    for number, rank, pid, spans, *times in index.rows(_PER_SESSION):
        session = sessions[number]
        session.spans += spans
        starts, ends = (session.start_ns, times[0]), (session.end_ns, times[1])
        session.start_ns = min((ns for ns in starts if ns is not None), default=None)
        session.end_ns = max((ns for ns in ends if ns is not None), default=None)
        _append(session.ranks, rank)
        pids[number].add(pid)
    for number, error in index.rows(_ERRORS):
        sessions[number].error = error
    for number, session in sessions.items():
        session.marks, session.snapshots = marks.get(number, 0), snapshots.get(number, 0)
        session.pids = sorted(pids[number] - {None})[:_MAX_LISTED]
    return sorted(sessions.values(), key=_order)


def with_processes(
    sessions: list[SessionSummary], paths: SpoolPaths, *, adds: bool = True
) -> list[SessionSummary]:
    """Update sessions from the owners' journals and locks, which show the live processes.

    A session without a sealed batch is added, unless `adds` is false.
    """
    known = {each.id: each for each in sessions if each.id is not None}
    added = []
    for prefix in owners(paths)[:_MAX_LISTED]:
        try:
            journal = read_journal(paths, prefix)
        except InputError:
            continue
        if journal is None:
            continue
        state = journal.state
        session = known.get(state.session) or _of_process(sessions, state.pid)
        if session is not None and session.id is None:
            session.id, session.state = state.session, "unfinished"
        if session is None and not adds:
            continue
        if session is None:
            start_ns = min((span.start_ns for span in state.open), default=None)
            session = SessionSummary(
                state.session, "unfinished", start_ns=start_ns, end_ns=state.written_ns
            )
            added.append(session)
        if session.state == "unfinished":
            session.state = "open" if is_alive(paths, prefix) else "killed"
            session.pids = session.pids or [state.pid]
            if not session.ranks:
                _append(session.ranks, state.rank)
    return sorted([*sessions, *added], key=_order)


def _of_process(sessions: list[SessionSummary], pid: int) -> SessionSummary | None:
    """Return the summary of a process whose session span is not sealed yet."""
    return next((each for each in sessions if each.id is None and each.pids == [pid]), None)


def _order(session: SessionSummary) -> tuple[bool, int, str]:
    return session.id is None, session.start_ns or 0, session.id or ""


def _append(numbers: list[int], number: int | None) -> None:
    if number is not None and number not in numbers and len(numbers) < _MAX_LISTED:
        numbers.append(number)
