"""The session of each span, by the chain of its parents or else by its process and time.

The format does not record it. If the chain is broken (the session is still open, or was killed),
the result is a best effort: an unrecorded parent of epochs or requests counts as a session, and any
other span belongs to the session of its process.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Final, Literal, NamedTuple, Self

from ...semconv import SESSION
from ..spool.reader import BatchFile
from .index import SpoolIndex, id_of, key_of
from .run_batch import CLOSED, FAILED, KILLED, STEP_NAMES, RunBatchOutline

State = Literal["closed", "failed", "killed", "open", "unfinished", "none"]
HANG_ON_SESSIONS: Final = ("epoch", "request")
"""The scopes whose parent is a session even if it was not recorded."""

_TABLES = """
CREATE TABLE session (no INTEGER PRIMARY KEY, key BLOB, state TEXT);
CREATE TABLE top (no INTEGER PRIMARY KEY, session INTEGER);
CREATE TABLE member (no INTEGER PRIMARY KEY, session INTEGER);
"""
_CLOSED = """
SELECT id, pid, start_ns, end_ns, error FROM span
WHERE parent IS NULL AND name = ? AND id IS NOT NULL ORDER BY no
"""
_UNRECORDED = "NOT EXISTS (SELECT 1 FROM span WHERE span.id = child.parent)"
_OPEN = f"""
SELECT parent, pid, start_ns FROM span AS child
WHERE name IN {HANG_ON_SESSIONS} AND parent IS NOT NULL AND {_UNRECORDED} ORDER BY no
"""  # noqa: S608 - constants
# The topmost recorded spans: those without a parent, and those whose parent is not recorded.
_TOPS = f"""
SELECT no, CASE WHEN parent IS NOT NULL THEN parent WHEN name = ? THEN id END, pid, start_ns
FROM span AS child WHERE parent IS NULL OR {_UNRECORDED} ORDER BY no
"""  # noqa: S608 - constants
_MEMBERS = """
INSERT OR IGNORE INTO member
WITH RECURSIVE found (no, session) AS (
    SELECT no, session FROM top
    UNION
    SELECT child.no, found.session FROM found
    JOIN span AS parent ON parent.no = found.no
    JOIN span AS child ON child.parent = parent.id
)
SELECT no, session FROM found
"""


class FoundSession(NamedTuple):
    """A session; its number is its place in the list."""

    key: str | None
    state: State
    pid: int | None
    start_ns: int | None
    end_ns: int | None


class SessionFinder:
    """Finds the session of each topmost span, by its parent, or else by its process and time."""

    def __init__(self, closed: Iterable[FoundSession], opened: Iterable[FoundSession]) -> None:
        """`closed` are the spans of sessions; `opened` has, for each epoch or request whose parent
        is not recorded, a session with that parent's id. Both are in the order of the recording.
        """
        self.sessions = [*_joined(closed), *_joined(opened)]
        self._numbers = {each.key: number for number, each in enumerate(self.sessions)}
        self._by_pid: dict[int | None, list[tuple[int, int, int | None]]] = {}
        ordered = sorted(
            enumerate(self.sessions),
            key=lambda each: (each[1].start_ns is not None, each[1].start_ns or 0, each[0]),
        )
        for number, each in ordered:
            entry = each.start_ns or 0, number, each.end_ns
            self._by_pid.setdefault(each.pid, []).append(entry)
        self._without: dict[int | None, int] = {}

    def of_top(self, key: str | None, pid: int | None, start_ns: int) -> int:
        """Return the session with a key, or else that of a process at a time.

        A process without a session at that time gets one without a key.
        """
        if key is not None and key in self._numbers:
            return self._numbers[key]
        sessions = self._by_pid.get(pid, [])
        if len(sessions) == 1:
            return sessions[0][1]
        place = bisect.bisect_right(sessions, start_ns, key=lambda session: session[0])
        for _, number, end_ns in reversed(sessions[:place]):
            if end_ns is None or end_ns >= start_ns:
                return number
        if pid not in self._without:
            self._without[pid] = len(self.sessions)
            self.sessions.append(FoundSession(None, "none", pid, None, None))
        return self._without[pid]

    def is_unclear(self, key: str | None, pid: int | None) -> bool:
        """Return whether the session of units depends on the time of each."""
        return key not in self._numbers and len(self._by_pid.get(pid, ())) > 1


_STATES: Final[tuple[State, ...]] = ("unfinished", "closed", "failed", "killed")
"""In order of precedence, the last first."""


def _joined(found: Iterable[FoundSession]) -> list[FoundSession]:
    """Return the sessions in order of their keys; the spans of each may be several.

    The process of a closed session is that of its first span; that of an open one is the process
    that began first.
    """
    sessions: dict[str, FoundSession] = {}
    for each in found:
        key = each.key or ""
        known = sessions.setdefault(key, each)
        if known is each:
            continue
        is_earlier = each.start_ns is not None and (
            known.start_ns is None or each.start_ns < known.start_ns
        )
        ends = [end for end in (known.end_ns, each.end_ns) if end is not None]
        sessions[key] = FoundSession(
            each.key,
            max(known.state, each.state, key=_STATES.index),
            each.pid if is_earlier and each.state == "unfinished" else known.pid,
            each.start_ns if is_earlier else known.start_ns,
            max(ends, default=None),
        )
    return sorted(sessions.values(), key=lambda each: (each.key or "").encode(*_UTF8))


_UTF8: Final = "utf-8", "surrogatepass"


def closed_session(
    key: str | None, pid: int | None, start_ns: int | None, end_ns: int | None, error: str | None
) -> FoundSession:
    """Return the session of a span."""
    state: State = "closed" if error is None else "failed"
    if error is not None and error.lower().startswith(("incomplete:", "killed:")):
        state = "killed"
    return FoundSession(key, state, pid, start_ns, end_ns)


def assign_sessions(index: SpoolIndex) -> None:
    """Create and fill the tables `session` and `member` (span number → session number)."""
    index.script(_TABLES)
    finder = SessionFinder(
        (closed_session(id_of(key), *rest) for key, *rest in index.rows(_CLOSED, SESSION)),
        (
            FoundSession(id_of(key), "unfinished", pid, start_ns, None)
            for key, pid, start_ns in index.rows(_OPEN)
        ),
    )
    tops = (
        (no, 1 + finder.of_top(None if key is None else id_of(key), pid, start_ns or 0))
        for no, key, pid, start_ns in index.rows(_TOPS, SESSION)
    )
    index.change("INSERT INTO top VALUES (?, ?)", tops)
    sessions = ((key_of(each.key), each.state) for each in finder.sessions)
    index.change("INSERT INTO session (key, state) VALUES (?, ?)", sessions)
    index.change(_MEMBERS, [()])


class OutlinedBatch(NamedTuple):
    """A batch by its outline; its content is needed only if it names neither session nor trace."""

    name: str
    outline: RunBatchOutline
    content: Callable[[], BatchFile]


class SessionSearch:
    """The search for the sessions of batches that name none, such as those of cirron-sdk.

    A context manager that removes its temporary index. The batches are added in their order.
    """

    def __init__(self) -> None:
        self._names: list[str] = []

    @cached_property
    def _index(self) -> SpoolIndex:
        """The index, which most spools do not need."""
        return SpoolIndex()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "_index" in self.__dict__:
            self._index.connection.close()

    def add(self, batch: OutlinedBatch) -> None:
        """Add a batch."""
        self._index.add(batch.content())
        self._names.append(batch.name)

    def search(self) -> None:
        """Find the sessions. Raises TargetError if there is no disk space."""
        assign_sessions(self._index.ready())

    def outlines(self) -> Iterator[tuple[str, str, RunBatchOutline]]:
        """Yield the id of a session, and the name and the outline of a batch with records of it.

        There is an outline for each rank, and an empty one for marks.
        """
        for number, key, state, file, start_ns, end_ns, rank, spans, steps in self._index.rows(
            _SPANS
        ):
            yield _id(number, key), self._names[file], RunBatchOutline(
                start_ns=start_ns, end_ns=end_ns, spans=spans, status=_STATUS.get(state),
                steps={rank: steps} if steps else {}, ranks=set() if rank is None else {rank},
            )  # fmt: skip
        for number, key, file in self._index.rows(_MARKS):
            yield _id(number, key), self._names[file], RunBatchOutline()


def _id(number: int, key: bytes | None) -> str:
    return f"process-{number}" if key is None else id_of(key)


_STATUS: Final = {"closed": CLOSED, "killed": KILLED, "failed": FAILED}
"""The status of a run, keyed by the state of its session."""
_SPANS = f"""
SELECT session.no, session.key, session.state, span.file, min(span.start_ns), max(span.end_ns),
    span.rank, count(*), sum(span.name IN {STEP_NAMES})
FROM member JOIN span USING (no) JOIN session ON session.no = member.session
GROUP BY session.no, span.file, span.rank ORDER BY session.no, span.file, span.rank
"""  # noqa: S608 - constants
_MARKS = """
SELECT DISTINCT session.no, session.key, mark.file
FROM mark JOIN span ON span.id = mark.span JOIN member ON member.no = span.no
JOIN session ON session.no = member.session
"""
