"""The search of DuckDB for the sessions of batches that name none.

The topmost spans go into an index, in which the code of `core/analysis` finds their sessions.
DuckDB then descends level by level through the spans that contain others. In most batches all spans
belong to one session, which follows from the parents that they name. Only the spans of the other
batches are looked up one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Self

from ..analysis.index import SpoolIndex
from ..analysis.run_batch import STEP_NAMES
from ..analysis.session_search import BatchOfSession, IndexSearch, OutlinedBatch
from ..analysis.sessions import assign_sessions
from .columnar_batches import ColumnarBatch
from .duckdb_engine import DuckDBEngine
from .engine import PLACES, SPAN, Schema, Table
from .expanded_rows import ADD_SPAN, span_row
from .expressions import FALSE, as_number, union_of
from .unsupported import NeedsPythonError

_MAX_LEVELS: Final = 50
"""A search of an index is faster for deeper levels; they are rare."""
_MOST_ODD: Final = 0.5
"""The share of batches that are expanded, above which a search of an index is faster."""
_TOP: Final[Schema] = {"no": "int64", "session": "int64"}
_MEMBERS: Final = "SELECT no, session FROM member"
_SESSIONS: Final = "SELECT no, key, state FROM session"


class EngineSearch:
    """A session search in the files of tables."""

    def __init__(
        self,
        engine: DuckDBEngine,
        batches: Sequence[ColumnarBatch],
        open_batches: Callable[[frozenset[str]], AbstractContextManager[object]],
        odd: Collection[str],
    ) -> None:
        """`open_batches` opens the batches with some names in the engine, of which those with the
        keys `odd` are expanded.
        """
        self._engine, self._batches, self._open = engine, batches, open_batches
        self._odd = {batch.name for batch in batches if batch.key in odd}
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
        names = frozenset(batch.name for batch in self._added)
        if len(names & self._odd) > _MOST_ODD * len(names):
            self._search_in_index()
            return
        try:
            with self._open(names), SpoolIndex() as index:
                levels = _levels(self._engine, index.ready())
                self._read(levels, {number: rest for number, *rest in index.rows(_SESSIONS)})
        except NeedsPythonError:
            self._search_in_index()

    def of_spans(self) -> Iterable[BatchOfSession]:
        """Return the spans by session, batch and rank."""
        return self._of_spans

    def of_marks(self) -> Iterable[tuple[int, str]]:
        """Return the batches with marks of a session."""
        return self._of_marks

    def _read(self, levels: _Levels, sessions: dict[int, list[Any]]) -> None:
        """Read the results; `sessions` maps the number of a session to its key and state."""
        rows = sorted(_figures(self._engine, levels), key=_place)
        for number, file, rank, *figures in rows:
            start_ns, end_ns, spans, steps = figures
            key, state = sessions[number]
            name = self._batches[file].name
            self._of_spans.append(
                BatchOfSession(number, key, state, name, start_ns, end_ns, rank, spans, steps)
            )
        for number, file in _marked(self._engine, levels):
            self._of_marks.append((number, self._batches[file].name))

    def _search_in_index(self) -> None:
        """Search like Python."""
        with IndexSearch() as search:
            for batch in self._added:
                search.add(batch)
            search.search()
            self._of_spans += search.of_spans()
            self._of_marks += search.of_marks()


class _Levels(NamedTuple):
    """The sessions of the spans that have others inside them, and of the topmost ones."""

    parents: Table
    """The ids of the parents that each file names, except those of topmost spans."""
    known: Table
    """The id of each span that contains others and belongs to a session, and that session."""
    top: Table
    """The numbers of the topmost spans, and the session of each."""


def _levels(engine: DuckDBEngine, index: SpoolIndex) -> _Levels:
    """Find the sessions.

    `index` is empty. Afterwards it has the topmost spans and the sessions. Raises NeedsPythonError
    if an id is in several sessions, or the levels are too many.
    """
    span = engine.span
    named = span.filter(span.parent.notnull()).select("parent", file=span.no // PLACES)
    named = engine.store(named.distinct())
    unique = engine.store(named.select("parent").distinct())
    inner = span.semi_join(unique, span.id == unique.parent).select("no", "id", "parent")
    inner = engine.store(inner)
    missing = engine.store(unique.anti_join(inner, unique.parent == inner.id))
    tops = span.filter(span.parent.isnull())
    if engine.count(missing):
        tops = tops.union(span.semi_join(missing, "parent"))
        named = engine.store(named.anti_join(missing, "parent"))
    tops = tops.select(*SPAN).order_by("no")
    index.change(ADD_SPAN, map(span_row, engine.rows(tops)))
    assign_sessions(index)
    top = engine.put("top_session", _TOP, index.rows(_MEMBERS))
    return _Levels(named, _inside(engine, inner, top), top)


def _inside(engine: DuckDBEngine, inner: Table, top: Table) -> Table:
    """Return the id of each of `inner` that belongs to a session, and that session."""
    joined = inner.inner_join(top, inner.no == top.no)
    levels = [engine.store(joined.select(inner.id, top.session).distinct())]
    while engine.count(above := levels[-1]):
        if len(levels) > _MAX_LEVELS:
            raise NeedsPythonError("scopes are nested in too many levels")
        below = inner.inner_join(above, inner.parent == above.id)
        levels.append(engine.store(below.select(inner.id, above.session).distinct()))
    known = engine.store(union_of(levels).distinct())
    if engine.count(known) != engine.count(known.select("id").distinct()):
        raise NeedsPythonError("spans with the same id belong to different sessions")
    return known


def _figures(engine: DuckDBEngine, levels: _Levels) -> Iterator[tuple[Any, ...]]:
    """Yield session, file, rank, start, end, and the numbers of spans and steps."""
    parents, known, top = levels
    placed = parents.left_join(known, parents.parent == known.id)
    pairs = placed.select(parents.file, known.session)
    pairs = pairs.union(top.select(file=top.no // PLACES, session=top.session)).distinct()
    sessions: dict[int, set[int | None]] = {}
    for file, session in engine.rows(pairs):
        sessions.setdefault(file, set()).add(session)
    mixed = sorted(file for file, numbers in sessions.items() if len(numbers) > 1)
    span, number = engine.span, engine.span.no // PLACES
    if mixed:
        of_mixed = span.filter(number.isin(mixed)).select(*_COLUMNS, "parent", file=number)
        of_spans = _sessions_of(engine.store(of_mixed), levels)
        yield from engine.rows(_aggregated(of_spans, "session", "file", "rank"))
        span = span.filter(~number.isin(mixed))
    span = span.select(*_COLUMNS, file=number)
    for file, *figures in engine.rows(_aggregated(span, "file", "rank")):
        [session] = sessions[file]
        if session is not None:
            yield session, file, *figures


_COLUMNS: Final = ("no", "id", "name", "start_ns", "end_ns", "rank")


def _aggregated(span: Table, *keys: str) -> Table:
    is_step = span.name.isin(STEP_NAMES).fill_null(FALSE)
    return span.group_by(*keys).agg(
        start_ns=span.start_ns.min(), end_ns=span.end_ns.max(), spans=span.count(),
        steps=as_number(is_step).sum().cast("int64"),
    )  # fmt: skip


def _place(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return the key of the order by session, file and rank, no rank first."""
    session, file, rank, *_ = row
    return session, file, rank is not None, rank or 0


def _sessions_of(span: Table, levels: _Levels) -> Table:
    """Return those of some spans that are in a session, with its number."""
    top, known = levels.top, levels.known
    columns = [name for name in span.columns if name != "parent"]
    of_tops = span.inner_join(top, span.no == top.no)
    of_others = span.inner_join(known, span.parent == known.id)
    return of_tops.select(*(span[name] for name in columns), top.session).union(
        of_others.select(*(span[name] for name in columns), known.session)
    )


def _marked(engine: DuckDBEngine, levels: _Levels) -> Iterator[tuple[int, int]]:
    """Yield session and file of the marks, each pair at least once."""
    span, mark, known = engine.span, engine.mark, levels.known
    marks = mark.filter(mark.span.notnull()).select("span", file=mark.no // PLACES)
    marks = engine.store(marks.distinct())
    joined = marks.inner_join(known, marks.span == known.id)
    yield from engine.rows(joined.select(known.session, marks.file).distinct())
    others = engine.store(marks.anti_join(known, marks.span == known.id))
    if engine.count(others):
        marked = span.semi_join(others, span.id == others.span).select("no", "id", "parent")
        placed = _sessions_of(engine.store(marked), levels)
        joined = others.inner_join(placed, others.span == placed.id)
        yield from engine.rows(joined.select(placed.session, others.file).distinct())
