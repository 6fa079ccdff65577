"""An index with the few records that a report needs one by one.

The engine aggregates the steps and the phases. Failures, memory, sessions and verdicts need single
records: sessions and epochs, failed scopes, the last 10,000 steps, samples of memory. These records
go into an index like that of a complete spool, on which the code of `core/analysis` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import ibis

from ...semconv import OOM
from ..analysis.breakdown import STEP
from ..analysis.index import SpoolIndex, id_of, key_of
from ..records.memory_marks import memory_mark
from ..records.rows import shown
from .duckdb_engine import DuckDBEngine
from .engine import PLACES, SPAN, SqlEngine, Table
from .expanded_rows import ADD_SPAN, MEMORY_NAMES, span_row, value_of
from .expressions import FALSE, named
from .steps import MAX_LEVELS, StepRelations

READINGS: Final = (
    "system.cpu.utilization", "process.cpu.utilization", "hw.gpu.utilization", "hw.temperature",
)  # fmt: skip
_NON_FINITE: Final = ("nan", "inf", "-inf")
_AT_ONCE: Final = 1000
_ADD_MARK: Final = f"INSERT OR IGNORE INTO mark VALUES (?{', ?' * 9}, NULL)"  # noqa: S608 - constants
"""Reports do not read `is_text`."""
_ADD_FILE: Final = "INSERT OR IGNORE INTO file VALUES (?, ?, 0, NULL, 0)"
_ADD_SAMPLE: Final = "INSERT OR IGNORE INTO sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TABLES: Final = """
DELETE FROM span;
DELETE FROM mark;
CREATE TABLE step (
    no INTEGER PRIMARY KEY, id BLOB UNIQUE, parent BLOB, rank INTEGER, idx TEXT, start_ns INTEGER,
    ns INTEGER
);
CREATE TABLE phase (
    no INTEGER PRIMARY KEY, step INTEGER, name TEXT, ns INTEGER, gpu_ns INTEGER
);
"""
_MISSING: Final = """
SELECT DISTINCT parent FROM span
WHERE parent IS NOT NULL AND parent NOT IN (SELECT id FROM span WHERE id IS NOT NULL)
"""


class ReducedIndex:
    """Fills an index from an engine."""

    def __init__(
        self,
        engine: SqlEngine,
        files: DuckDBEngine,
        index: SpoolIndex,
        relations: StepRelations,
        mark: Table,
    ) -> None:
        """`index` has the odd batches; `mark` has each mark once."""
        self.engine, self.index = engine, index
        self._files, self._relations, self._mark = files, relations, mark
        self._searched: set[bytes] = set()

    def fill(self, *, only_verdicts: bool = False) -> None:
        """Add the records that all reports need, or only those that verdicts need."""
        index, engine, relations = self.index, self.engine, self._relations
        span = relations.span
        marks = engine.store(self._wanted_marks())
        index.script(_TABLES)
        index.change(
            _ADD_FILE,
            [
                (number, shown(batch.name))
                for number, batch in enumerate(self._files.batches.batches)
            ],
        )
        self._add_spans(relations.others)
        if not only_verdicts:
            self._add_failed_and_peaks()
        self._add_extents()
        if engine.count(marks):
            self._add_spans(span.semi_join(marks, span.id == marks.span))
        self._add_marks(marks)
        self._add_memory()
        self.add_ancestors()

    def add_marks_of(self, marks: Table) -> None:
        """Add marks, and the spans that they are on."""
        span = self._relations.span
        self._add_spans(span.semi_join(marks, span.id == marks.span))
        self._add_marks(marks)

    def add_spans_of(self, spans: Table) -> None:
        """Add spans with their ancestors."""
        self._add_spans(spans)
        self.add_ancestors()

    def add_ancestors(self) -> None:
        """Add the recorded ancestors of all spans."""
        span = self._relations.span
        for _ in range(MAX_LEVELS):
            missing = [key for (key,) in self.index.rows(_MISSING) if key not in self._searched]
            if not missing:
                return
            self._searched.update(missing)
            ids = iter([id_of(key) for key in missing])
            while some := list(islice(ids, _AT_ONCE)):
                self._add_spans(span.filter(span.id.isin(some)))

    def _add_failed_and_peaks(self) -> None:
        """Add the spans with an error, and those with the peaks of memory."""
        engine, span = self.engine, self._relations.span
        numbers = [span.filter(span.error.notnull()).select("no"), *self._peaks()]
        chosen = engine.store(ibis.union(*numbers, distinct=True))
        chosen = engine.store(chosen.anti_join(self._relations.others, "no"))
        if engine.count(chosen):
            self._add_spans(span.semi_join(chosen, "no"))

    def _wanted_marks(self) -> Table:
        mark = self._mark
        names = [*MEMORY_NAMES, *READINGS, OOM]
        return mark.filter(
            mark.name.isin(names).fill_null(FALSE) | mark.text.isin(_NON_FINITE).fill_null(FALSE)
        )

    def _add_extents(self) -> None:
        """Add the steps and scopes that determine the extents and processes of sessions."""
        span, step, children = self._relations.span, self._relations.step, self._relations.children
        groups = step.group_by("parent", "rank", "pid").agg(
            first=step.no.argmin(step.start_ns),
            last=step.no.argmax(step.start_ns + step.ns),
            latest=step.no.argmax(step.position),
        )
        groups = self.engine.store(groups)
        wide = self.engine.store(children.filter(children.is_wider).select("no", "step"))
        numbers = [groups.select(no=groups[name]) for name in ("first", "last", "latest")]
        numbers.append(wide.select(no=wide.step))
        chosen = self.engine.store(ibis.union(*numbers, distinct=True))
        # Their other columns have no effect on extents, and failed steps are added completely.
        columns = {name: ibis.null(SPAN[name]) for name in SPAN if name not in step.columns}
        columns["name"] = ibis.literal(STEP)
        columns["phases_are_sums"] = step.phases_are_sums
        self._add_spans(step.semi_join(chosen, "no").select(
            *(columns[name].name(name) if name in columns else step[name] for name in SPAN)
        ))  # fmt: skip
        if self.engine.count(wide):
            self._add_spans(span.semi_join(wide, "no"))

    def _peaks(self) -> Iterator[Table]:
        span = self._relations.span
        peaks = span.filter(span.device_peak.notnull() | span.memory_peak.notnull())
        peaks = peaks.mutate(listed=named(peaks.name))
        groups = peaks.group_by("rank", "listed", "is_peak_sampled").agg(
            device=peaks.no.argmax(peaks.device_peak), memory=peaks.no.argmax(peaks.memory_peak)
        )
        groups = self.engine.store(groups)
        for name in ("device", "memory"):
            yield groups.filter(groups[name].notnull()).select(no=groups[name])

    def _add_spans(self, spans: Table) -> None:
        rows = self.engine.rows(spans.select(*SPAN))
        self.index.change(ADD_SPAN, map(span_row, rows))

    def _add_marks(self, marks: Table) -> None:
        self.index.change(_ADD_MARK, map(_mark_row, self.engine.rows(marks)))

    def _add_memory(self) -> None:
        """Add what the attributes of marks about memory contain."""
        attributes = {
            number * PLACES + ordinal: values
            for number, ordinal, values in self._files.attributes_of_marks(MEMORY_NAMES)
        }
        marks = self._mark.filter(self._mark.name.isin(MEMORY_NAMES))
        marks = marks.select("no", "name", "text", "number", "integer", "flag")
        rows = []
        for no, name, *value in self.engine.rows(marks):
            memory = memory_mark(name, value_of(*value), attributes.get(no))
            if memory is not None:
                kind, device, *sizes, detail = memory
                rows.append((*divmod(no, PLACES), kind, shown(device), *sizes, shown(detail)))
        self.index.change(_ADD_SAMPLE, rows)


def _mark_row(row: Sequence[Any]) -> tuple[Any, ...]:
    no, id_, span, name, kind, ts_ns, device, *value, _ = row
    file, position = divmod(no, PLACES)
    return (
        no, file, position, key_of(id_), key_of(span), name, shown(value_of(*value)), kind, ts_ns,
        device,
    )  # fmt: skip
