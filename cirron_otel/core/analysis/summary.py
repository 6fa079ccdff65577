"""The sessions of a spool, and the states of the processes that record them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ...errors import InputError
from ..spool.journal import read_journal
from ..spool.owner import is_alive, owners
from ..spool.paths import SpoolPaths
from .sessions import State

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


def with_processes(
    sessions: list[SessionSummary],
    paths: SpoolPaths,
    *,
    adds: bool = True,
    added_owners: Collection[str] = (),
) -> list[SessionSummary]:
    """Update sessions from the owners' journals and locks, which show the live processes.

    A session without a sealed batch is added; if `adds` is false, only that of `added_owners`.
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
        if session is None and not adds and prefix not in added_owners:
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
            if not session.ranks and state.rank is not None:
                session.ranks = [state.rank]
    return sorted([*sessions, *added], key=_order)


def _of_process(sessions: list[SessionSummary], pid: int) -> SessionSummary | None:
    """Return the summary of a process whose session span is not sealed yet."""
    return next((each for each in sessions if each.id is None and each.pids == [pid]), None)


def _order(session: SessionSummary) -> tuple[bool, int, str]:
    return session.id is None, session.start_ns or 0, session.id or ""
