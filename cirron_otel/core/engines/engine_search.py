"""The search of DuckDB for the sessions of batches that name none.

The topmost spans go into an index, in which the code of `core/analysis` finds their sessions.
DuckDB then finds the spans inside them: level by level those with other spans inside, and the rest
in one join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Self

from ..analysis.index import SpoolIndex
from ..analysis.run_batch import STEP_NAMES
from ..analysis.session_search import BatchOfSession, IndexSearch, OutlinedBatch
from ..analysis.sessions import assign_sessions
from .columnar_batches import ColumnarBatch
from .duckdb_engine import DuckDBEngine
from .engine import PLACES, SPAN, Schema, Table
from .expressions import FALSE, as_number, ascending
from .reduced_index import ADD_SPAN, span_row
from .steps import MAX_LEVELS

_TOP: Final[Schema] = {"no": "int64", "session": "int64"}
_SESSIONS: Final = "SELECT no, key, state FROM session"


class EngineSearch:
    """A session search in the files of tables."""

    def __init__(
        self,
        engine: DuckDBEngine,
        batches: Sequence[ColumnarBatch],
        open_batches: Callable[[frozenset[str]], AbstractContextManager[object]],
    ) -> None:
        """`open_batches` opens the batches with some names in the engine."""
        self._engine, self._batches, self._open = engine, batches, open_batches
        self._added: list[OutlinedBatch] = []
        self._of_spans: list[BatchOfSession] = []
        self._of_marks: list[tuple[int, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add(self, batch: OutlinedBatch) -> None:
        """Add a batch."""
        self._added.append(batch)

    def search(self) -> None:
        """Find the sessions. Raises InputError and TargetError."""
        with self._open(frozenset(batch.name for batch in self._added)), SpoolIndex() as index:
            inner, tops = _inner_and_tops(self._engine)
            index.ready().change(ADD_SPAN, map(span_row, self._engine.rows(tops)))
            assign_sessions(index)
            members = index.rows("SELECT no, session FROM member")
            top = self._engine.put("top_session", _TOP, members)
            known = _inside(self._engine, inner, top)
            if known is not None:
                session = _sessions_of_spans(self._engine.span, top, known)
                sessions = {number: rest for number, *rest in index.rows(_SESSIONS)}
                self._read(session, sessions)
                return
        self._search_in_index()

    def of_spans(self) -> Iterable[BatchOfSession]:
        """Return the spans by session, batch and rank."""
        return self._of_spans

    def of_marks(self) -> Iterable[tuple[int, str]]:
        """Return the batches with marks of a session."""
        return self._of_marks

    def _read(self, session: Table, sessions: dict[int, list[Any]]) -> None:
        engine, mark = self._engine, self._engine.mark
        groups = session.group_by("session", "file", "rank").agg(
            start=session.start_ns.min(), end=session.end_ns.max(), spans=session.count(),
            steps=as_number(session.name.isin(STEP_NAMES).fill_null(FALSE)).sum(),
        )  # fmt: skip
        groups = groups.order_by(["session", "file", ascending(groups["rank"])])
        for number, file, rank, *figures in engine.rows(groups):
            start, end, spans, steps = figures
            key, state = sessions[number]
            name = self._batches[file].name
            self._of_spans.append(
                BatchOfSession(number, key, state, name, start, end, rank, spans, int(steps))
            )
        marks = mark.filter(mark.span.notnull()).select("span", file=mark.no // PLACES).distinct()
        joined = marks.inner_join(session, marks.span == session.id)
        pairs = joined.select(session.session, marks.file).distinct()
        self._of_marks += [(n, self._batches[file].name) for n, file in engine.rows(pairs)]

    def _search_in_index(self) -> None:
        """Search like Python, because spans of one id are in different sessions."""
        with IndexSearch() as search:
            for batch in self._added:
                search.add(batch)
            search.search()
            self._of_spans += search.of_spans()
            self._of_marks += search.of_marks()


def _inner_and_tops(engine: DuckDBEngine) -> tuple[Table, Table]:
    """Return the spans with others inside them, and those whose parent is not recorded."""
    span = engine.span
    parents = engine.store(span.filter(span.parent.notnull()).select("parent").distinct())
    inner = span.semi_join(parents, span.id == parents.parent).select("no", "id", "parent")
    inner = engine.store(inner)
    missing = engine.store(parents.anti_join(inner, parents.parent == inner.id))
    numbers = span.filter(span.parent.isnull()).select("no")
    if engine.count(missing):
        numbers = numbers.union(span.semi_join(missing, "parent").select("no"))
    numbers = engine.store(numbers)
    return inner, span.semi_join(numbers, "no").select(*SPAN).order_by("no")


def _inside(engine: DuckDBEngine, inner: Table, top: Table) -> Table | None:
    """Return the ids of the spans with others inside them, and the session of each.

    None if an id is in several sessions, or the levels are too many.
    """
    joined = inner.inner_join(top, inner.no == top.no)
    level = known = engine.store(joined.select(inner.id, top.session).distinct())
    for _ in range(MAX_LEVELS):
        below = inner.inner_join(level, inner.parent == level.id)
        found = below.select(inner.id, level.session).distinct()
        level = engine.store(found.anti_join(known, ["id", "session"]))
        if not engine.count(level):
            is_clear = engine.count(known) == engine.count(known.select("id").distinct())
            return known if is_clear else None
        known = engine.store(known.union(level))
    return None


def _sessions_of_spans(span: Table, top: Table, known: Table) -> Table:
    """Return the spans in a session, with its number."""
    of_tops = span.inner_join(top, span.no == top.no)
    of_others = span.inner_join(known, span.parent == known.id)
    columns = ("id", "name", "start_ns", "end_ns", "rank")
    file = span.no // PLACES
    return of_tops.select(*(span[name] for name in columns), top.session, file=file).union(
        of_others.select(*(span[name] for name in columns), known.session, file=file)
    )
