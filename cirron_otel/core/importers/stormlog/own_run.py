"""Collect runs of our own, to be written as strict records of schema 3 (docs/stormlog.md)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from .... import exactjson
from ....errors import InputError
from ....ids import is_id
from ....semconv import JOB, SAMPLE_INTERVAL, SESSION
from ...records.memory_records import milliseconds, summary_of
from ...state_database import TEMPORARY, open_database

MEMORY: Final = "memory"
OOM: Final = "oom"
ALERTS: Final = {
    "memory.warning": "warning",
    "memory.critical": "critical",
    "memory.degraded": "collector_degraded",
    "memory.recovered": "collector_recovered",
}
OOM_FOLDER: Final = "oom"
_TABLES: Final = (
    "CREATE TABLE span (id TEXT PRIMARY KEY, session TEXT, parent TEXT, name TEXT, start INTEGER,"
    " end INTEGER, thread INTEGER, pid INTEGER, rank INTEGER, attrs BLOB, error TEXT)"
    " WITHOUT ROWID",
    "CREATE TABLE mark (session TEXT, ts INTEGER, id TEXT, span TEXT, name TEXT, value INTEGER,"
    " attrs BLOB, PRIMARY KEY (session, ts, id)) WITHOUT ROWID",
    "CREATE TABLE resource (session TEXT PRIMARY KEY, attrs BLOB)",
)
_ERROR: Final = 2


class ScopeRow(NamedTuple):
    """A scope of a run."""

    id: str
    parent: str | None
    name: str
    start_ns: int
    end_ns: int
    thread_id: int | None
    attrs: dict[str, Any]


class MemoryMarkRow(NamedTuple):
    """A mark about memory; `value` is None if it is not an integer."""

    ts_ns: int
    id: str
    scope_id: str
    name: str
    value: int | None
    attrs: dict[str, Any]


class RunFacts(NamedTuple):
    """The facts about a session that every record has."""

    uuid: str
    """Stormlog's form of the id: a UUID with dashes."""
    host: str
    pid: int
    job_id: str | None
    rank: int
    local_rank: int
    world_size: int
    started_ns: int
    ended_ns: int | None
    """None if the session's scope is missing."""
    is_complete: bool
    """Whether the session ended normally."""
    sampling_interval_ms: int
    """0 if it is unknown."""


class OwnRuns:
    """Collects scopes and marks about memory in a temporary file."""

    def __init__(self, folder: Path) -> None:
        """Use a temporary file in `folder`. Raises sqlite3.Error."""
        self.database = open_database(folder / "runs.sqlite", *TEMPORARY)
        for statement in _TABLES:
            self.database.execute(statement)
        self.database.execute("BEGIN")
        self.has_runs = False
        self.without_samples: list[str] = []
        """The sessions that cannot be written, because they have no sample."""

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def add(self, batch: dict[str, Any]) -> None:
        """Add a batch that names its session; other batches have no samples."""
        self.has_runs = True
        otel = batch.get("otel")
        session = otel.get("session") if isinstance(otel, dict) else None
        if not isinstance(session, str) or not is_id(session):
            return
        resource = otel.get("resource", {}) if isinstance(otel, dict) else {}
        attributes = resource.get("attributes", {}) if isinstance(resource, dict) else {}
        run = self.database.executemany
        run("INSERT OR IGNORE INTO resource VALUES (?,?)", [(session, exactjson.dumps(attributes))])
        spans = (each for each in batch.get("spans", ()) if isinstance(each, dict))
        run("INSERT OR IGNORE INTO span VALUES (?,?,?,?,?,?,?,?,?,?,?)", [
            row for each in spans if (row := _span_row(session, each)) is not None
        ])  # fmt: skip
        marks = (each for each in batch.get("marks", ()) if isinstance(each, dict))
        run("INSERT OR IGNORE INTO mark VALUES (?,?,?,?,?,?,?)", [
            row for each in marks if (row := _mark_row(session, each)) is not None
        ])  # fmt: skip

    def sessions(self) -> list[OwnSession]:
        """Return the sessions that have samples, in the order of their starts.

        Raises InputError if there are runs, and none of them has a sample.
        """
        if not self.has_runs:
            return []
        query = "SELECT session FROM span UNION SELECT session FROM mark"
        found, self.without_samples = [], []
        for (session,) in self.database.execute(query).fetchall():
            own = OwnSession(self.database, session)
            if own.first_sample is not None:
                found.append(own)
            elif own.is_training:
                self.without_samples.append(session)
        if not found:
            raise InputError(
                "the run has no sample of its memory, and zeros would be wrong: record it with the"
                " option sample_interval (docs/memory.md)"
            )
        return sorted(found, key=lambda each: (each.facts.started_ns, each.session_id))


def _span_row(session: str, span: dict[str, Any]) -> tuple[Any, ...] | None:
    start, end, some_id = span.get("start_ns"), span.get("end_ns"), span.get("id")
    if type(start) is not int or type(end) is not int or not isinstance(some_id, str):
        return None
    attrs = dict(span["attrs"]) if isinstance(span.get("attrs"), dict) else {}
    name, number, thread = str(span.get("name")), span.get("index"), span.get("thread_id")
    if type(number) is int and name not in attrs:
        attrs[name] = number
    otel = span.get("otel")
    status = otel.get("status") if isinstance(otel, dict) else None
    is_error = isinstance(status, dict) and status.get("code") == _ERROR
    return (some_id, session, span.get("parent_id"), name, start, end, thread, span.get("pid"),
            span.get("rank"), exactjson.dumps(attrs), "error" if is_error else None)  # fmt: skip


def _mark_row(session: str, mark: dict[str, Any]) -> tuple[Any, ...] | None:
    name, time_ns, value = mark.get("name"), mark.get("ts_ns"), mark.get("value")
    if name not in (MEMORY, OOM, *ALERTS) or type(time_ns) is not int:
        return None
    attrs = mark.get("attrs")
    is_usable = type(value) is int and 0 <= value < 2**63
    if name == MEMORY and not is_usable:
        return None
    return (session, time_ns, mark.get("id"), mark.get("span_id"), name,
            value if is_usable else None, exactjson.dumps(attrs))  # fmt: skip


class OwnSession:
    """One session of a run of our own."""

    def __init__(self, database: Any, session: str) -> None:
        """Read the facts about a session."""
        self.database, self.session = database, session
        self.session_id = str(uuid.UUID(session))
        self.facts = self._read_facts()
        self.first_sample = next(self.marks(MEMORY), None)

    def _read_facts(self) -> RunFacts:
        run, key = self.database.execute, (self.session,)
        row = run("SELECT attrs FROM resource WHERE session = ?", key).fetchone()
        resource = orjson.loads(row[0]) if row is not None else {}
        pid, rank = run("SELECT MAX(pid), MAX(rank) FROM span WHERE session = ?", key).fetchone()
        root = run("SELECT start, end, attrs, error FROM span WHERE id = ?", key).fetchone()
        spans = run("SELECT MIN(start) FROM span WHERE session = ?", key).fetchone()[0]
        marks = run("SELECT MIN(ts) FROM mark WHERE session = ?", key).fetchone()[0]
        started = min((each for each in (spans, marks) if each is not None), default=0)
        session_attrs = {} if root is None else orjson.loads(root[2])
        is_complete = root is not None and not session_attrs.get("incomplete")
        rank = rank or 0
        local = resource.get("cirron.local_rank")
        size = resource.get("cirron.world_size")
        size = size if type(size) is int and size > rank else rank + 1
        job_id, host = resource.get("cirron.job.id"), resource.get("host.name")
        return RunFacts(
            self.session_id,
            host if isinstance(host, str) and host.strip() else "unknown",
            -1 if pid is None else pid,
            job_id if isinstance(job_id, str) and job_id.strip() else None,
            rank,
            local if type(local) is int and 0 <= local < size else rank,
            size,
            started if root is None else min(started, root[0]),
            None if root is None else root[1],
            is_complete,
            milliseconds(session_attrs.get(SAMPLE_INTERVAL)),
        )

    @property
    def is_training(self) -> bool:
        """Whether the session has other scopes than its own and a job's."""
        query = "SELECT COUNT(*) FROM span WHERE session = ? AND name NOT IN (?, ?)"
        count = self.database.execute(query, (self.session, SESSION, JOB)).fetchone()[0]
        return bool(count)

    def marks(self, *names: str) -> Iterator[MemoryMarkRow]:
        """Yield the marks in the order of time, or those with some names."""
        query = "SELECT ts, id, span, name, value, attrs FROM mark WHERE session = ?"
        if names:
            query += f" AND name IN ({','.join('?' * len(names))})"
        rows = self.database.execute(f"{query} ORDER BY ts, id", (self.session, *names))
        for ts, some_id, scope_id, name, value, attrs in rows:
            values = orjson.loads(attrs)
            known = values if isinstance(values, dict) else {}
            yield MemoryMarkRow(ts, some_id, scope_id, name, value, known)

    def scopes(self) -> Iterator[ScopeRow]:
        """Yield all scopes except the session's own."""
        query = (
            "SELECT id, parent, name, start, end, thread, attrs FROM span"
            " WHERE session = ? AND id != ?"
        )
        for row in self.database.execute(query, (self.session, self.session)):
            some_id, parent, name, start, end, thread, attrs = row
            yield ScopeRow(some_id, parent, name, start, end, thread, exactjson.loads(attrs))

    def scope_names(self, scope_id: str) -> tuple[str | None, str] | None:
        """Return the parent and the name of a scope; None for the session's own or an unknown."""
        if scope_id == self.session:
            return None
        query = "SELECT parent, name FROM span WHERE id = ? AND session = ?"
        row: tuple[str | None, str] | None = self.database.execute(
            query, (scope_id, self.session)
        ).fetchone()
        return row

    def summary(self) -> dict[str, Any]:
        """Return the session's entry in a manifest."""
        facts = self.facts
        status = "completed" if facts.is_complete else "incomplete"
        return summary_of(facts, status, facts.started_ns, facts.ended_ns, "cirron_otel")

    def bundles(self, spool: Path) -> Iterator[Path]:
        """Yield the bundles of the session's scopes beside its `spool`."""
        query = "SELECT id FROM span WHERE session = ? ORDER BY start, id"
        for (scope_id,) in self.database.execute(query, (self.session,)).fetchall():
            bundle = spool / OOM_FOLDER / scope_id
            if is_id(scope_id) and bundle.is_dir() and not bundle.is_symlink():
                yield bundle
