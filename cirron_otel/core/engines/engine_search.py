"""The search for the sessions of batches of tables that name none, in an index of their records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from ..analysis.index import disk_errors, key_of
from ..analysis.sessions import OutlinedBatch, SessionSearch
from .columnar_batches import ColumnarBatch
from .duckdb_engine import DuckDBEngine
from .engine import PLACES, SPAN
from .expanded_rows import ADD_SPAN, span_row
from .unsupported import NeedsPythonError

_ADD_MARK: Final = "INSERT INTO mark (file, span) VALUES (?, ?)"


class TableSearch(SessionSearch):
    """The search in an index that DuckDB fills."""

    def __init__(
        self,
        engine: DuckDBEngine,
        batches: Sequence[ColumnarBatch],
        open_batches: Callable[[frozenset[str]], AbstractContextManager[object]],
    ) -> None:
        """`open_batches` opens the batches with some names in the engine."""
        super().__init__()
        self._engine, self._batches, self._open = engine, batches, open_batches
        self._added: list[OutlinedBatch] = []

    def add(self, batch: OutlinedBatch) -> None:
        """Add a batch."""
        self._added.append(batch)

    def search(self) -> None:
        """Find the sessions. Raises InputError and TargetError."""
        try:
            with self._open(frozenset(batch.name for batch in self._added)):
                self._fill()
        except NeedsPythonError:
            for batch in self._added:
                super().add(batch)
        super().search()

    def _fill(self) -> None:
        """Add the spans, and the ids of the scopes with marks in each batch."""
        engine, add = self._engine, self._index.connection.executemany
        span, mark = engine.span, engine.mark
        self._names = [batch.name for batch in self._batches]
        marked = mark.filter(mark.span.notnull()).select(file=mark.no // PLACES, span=mark.span)
        with disk_errors():
            add(ADD_SPAN, map(span_row, engine.rows(span.select(*SPAN).order_by("no"))))
            add(_ADD_MARK, ((no, key_of(id_)) for no, id_ in engine.rows(marked.distinct())))
