"""The records of a recording in columns, with what figures need of them.

The scopes of producers that need a shape are changed to the canonical form after they were read.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ....semconv import OOM, OVERHEAD_NS, SESSION
from ...analysis.breakdown import STEP
from ...analysis.run_batch import details_of_rows
from ...records.rows import IndexedBatch, IndexedMark, IndexedSpan, detach
from ...records.run_summary import SummaryValue, values_of_marks, values_of_spans
from ...spool.reader import BatchFile
from ..relations import INTEGER, NO_TEXT, SAMPLED, SUMMARY, SUMS, Texts, known
from ..shapes.hints import Hints
from ..shapes.producers import producer_of
from .columns import Columns
from .lanes import LaneSums, RankSums
from .marks import MOST_OVERHEAD_NS, Marks, forget_digest
from .scopes import Scopes
from .shaping import Shaping
from .stored_span import StoredSpan
from .usage import tokens_of


class Records(Scopes):
    """The records in columns, and the marks that figures need as objects."""

    def __init__(self, batches: Iterable[BatchFile], texts: Texts, unit: str | None = None) -> None:
        """`unit` is the name of the units of another service; None if it is not chosen."""
        self._unit = unit
        self.marks = Marks(texts)
        self.summary: list[SummaryValue] = []
        self.sums = LaneSums()
        """The sums over all spans; those of the spans are still to be added."""
        self._number = 0
        self._firsts: list[int] = []
        self._ranks: list[list[int | None]] = []
        """The first mark of each batch, and the rank of its first span, if it has one."""
        self._hints = Hints()
        self.usage: dict[int, int] = {}
        """The tokens of the scopes that have them as attributes."""
        self._row = 0
        self._shaping: Shaping | None = None
        super().__init__(batches, once=True, texts=texts)
        self.is_kept = np.zeros(self._number + 1, bool)
        """Whether the mark with a number counts."""
        self.is_kept[self.mark_rows + 1] = True
        self._add_overhead()

    def _read(self, batch: BatchFile) -> IndexedBatch:
        rows = super()._read(batch)
        self._hints.producer = producer_of(rows)
        self._firsts.append(self._number)
        self._ranks.append([each.rank for each in rows.spans[:1]])
        if rows.spans:
            self.sums.add_details((each.rank for each in rows.spans), details_of_rows(rows))
        self.summary += [*values_of_spans(rows.spans), *values_of_marks(rows.marks)]
        return rows

    def _add_overhead(self) -> None:
        """Add the time of tracing, by the marks that count."""
        rows = self.mark_rows
        names, types, values = (self.mark_column(n)[rows] for n in ("name", "type", "value"))
        is_due = (names == self.texts.token(OVERHEAD_NS)) & (types == INTEGER)
        is_due &= (values > 0) & (values <= MOST_OVERHEAD_NS)
        is_due &= ~self._is_included(self.mark_scope[rows[is_due]])[self.mark_scope[rows]]
        batches = np.searchsorted(np.array(self._firsts), rows[is_due], side="right") - 1
        for batch in np.unique(batches).tolist():
            ns = int(values[is_due][batches == batch].sum())
            for rank in self._ranks[batch]:
                self.sums.add_overhead(rank, ns)

    def _is_included(self, marked: np.ndarray) -> np.ndarray:
        """Return by id whether the time of tracing is included in that of the scope around.

        `marked` are the ids of the scopes with such times (see `overheads`).
        """
        is_marked = np.zeros(len(self._ids) + 1, bool)
        is_marked[marked] = True
        is_session = self.column("name")[self.rows] == self.texts.token(SESSION)
        is_marked[self.id[self.rows[is_session]]] = is_marked[-1] = False
        is_included = np.zeros(len(self._ids) + 1, bool)
        is_included[self.id[self.rows[is_marked[self.parent[self.rows]]]]] = True
        is_included[-1] = False
        return is_included

    def _add(self, batch: BatchFile, spans: Columns, marks: Columns, snapshots: Columns) -> None:
        first = spans.count
        super()._add(batch, spans, marks, snapshots)
        self._hints.end_batch(first, spans.count)

    def _span(self, span: IndexedSpan) -> tuple[int, ...]:
        if (tokens := tokens_of(span)) is not None:
            self.usage[self._row] = tokens
        self._row += 1
        if self._hints.producer is not None:
            self._hints.add(span)
        return super()._span(span)

    def _shape(self) -> None:
        shaping = Shaping(self, self._hints, self._unit)
        if shaping.is_needed:
            self._shaping = shaping
            shaping.apply()

    @property
    def unit_name(self) -> str:
        """The recorded name of most units."""
        return STEP if self._shaping is None else self._shaping.unit_name

    def count_recorded(self, sums: LaneSums) -> None:
        """Count the spans of each rank as they are recorded."""
        if self._shaping is not None:
            ranks = self.column("rank")
            for rows, count in ((self._shaping.dissolved, 1), (self._shaping.added, -1)):
                for row in rows:
                    rank = known(int(ranks[row]))
                    sums.ranks.setdefault(rank, RankSums()).spans += count

    def recorded_row(self, row: int) -> int:
        """Return a scope, or the recorded scope that an added one was made from."""
        return row if self._shaping is None else self._shaping.recorded_row(row)

    def _noted(self, mark: IndexedMark) -> tuple[int, int]:
        self._number += 1
        forget_digest(mark)
        detach(mark)
        if mark.name == OOM:
            self.marks.out_of_memory.append((self._number, mark))
        return int(self.marks.is_listed(self._number, mark, ())), self.marks.device(mark)

    def span(self, row: int) -> StoredSpan:
        """Return a scope."""
        text = self.texts.text
        name, index, *rest = self.values(row)
        times_and_ids, (error, flags, gpu_ns, memory_peak, *peaks, training) = rest[:5], rest[5:]
        start_ns, end_ns, rank, pid, thread_id = map(known, times_and_ids)
        allocated, reserved = map(known, peaks)
        return StoredSpan(
            self.id_of(int(self.id[row])), self.id_of(int(self.parent[row])), text(name),
            text(index), start_ns, end_ns, pid, rank, thread_id, known(gpu_ns), known(memory_peak),
            otel=None if error == NO_TEXT else {}, message=text(error), peaks=(allocated, reserved),
            has_samples=bool(flags & SAMPLED), has_sums=bool(flags & SUMS),
            has_origin=bool(flags & SUMMARY), training=training,
        )  # fmt: skip
