"""Open the batches of a run in an engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import ibis

from ..analysis.index import SpoolIndex
from ..analysis.run_batch import RunBatchOutline, details_of, details_of_rows, outline_of
from ..analysis.run_selection import (
    ALL,
    ChosenRun,
    choose,
    each_run,
    limit_again,
    unreadable_of,
)
from ..analysis.runs import SpoolRuns, runs_of
from ..analysis.sessions import OutlinedBatch
from ..records.digest_marks import PREFIX
from ..records.rows import rows_of
from ..records.trace_marks import TRACE_STEP
from ..run.files import unreadable_in
from ..run.shapes.producers import NAMES, REQUEST, TRAINING, Producer, is_cirron_sdk
from ..spool.paths import SpoolPaths
from ..spool.reader import SpoolReader
from ..temporary import temporary_folder
from .columnar_batches import ColumnarBatches
from .duckdb_engine import DuckDBEngine
from .engine import SqlEngine, Table
from .engine_search import TableSearch
from .expanded_rows import expanded_rows
from .expressions import TRUE, as_number
from .steps import StepRelations, distinct, step_relations
from .unsupported import NeedsPythonError

_MOST_NS: Final = 1 << 61
"""Times and sums beyond it may overflow in an engine."""

Connect: TypeAlias = Callable[[DuckDBEngine], SqlEngine]
"""Connects to another engine, and creates the relations there."""


@dataclass(slots=True)
class OpenedRun:
    """The records of a run in an engine."""

    engine: SqlEngine
    files: DuckDBEngine
    """The files of the tables; it is the engine if no other is wanted."""
    batches: ColumnarBatches
    relations: StepRelations
    mark: Table
    """The marks, each once."""
    index: SpoolIndex
    """The odd batches."""
    paths: SpoolPaths | None
    """The spool with the states of its processes; None if there is none."""
    chosen: ChosenRun
    is_complete: bool
    """Whether the batches are all of the spool."""
    details: list[tuple[set[int], dict[str, Any]]]
    """For each batch with spans in order: the ranks of its spans, and the details of the process
    that recorded it."""
    unreadable: int
    """The number of batches that could not be read, and may be of the run."""


class OpenedTables:
    """The runs of columnar tables, which are opened one after the other."""

    def __init__(
        self,
        files: DuckDBEngine,
        batches: ColumnarBatches,
        reader: SpoolReader | None,
        connect: Connect | None,
    ) -> None:
        """`reader` and `connect` are those of `opened_tables`."""
        self._files, self._batches, self._reader, self._connect = files, batches, reader, connect
        self._paths = None if reader is None else reader.paths
        self._odd = files.odd_keys()

    def choose(self, wanted: str | None) -> tuple[ChosenRun, frozenset[str] | None]:
        """Return the run that `wanted` names, and the names of its batches; None for all batches.

        The reader is limited to the run, and reports only the files that may belong to it.
        Raises UsageError if no run matches, or several do.
        """
        if wanted == ALL:
            return ChosenRun(None, 0), None
        chosen, is_limited = choose(self.runs, wanted)
        if not is_limited or chosen.run is None:
            return chosen, None
        if self._reader is not None:
            limit_again(self._reader, chosen.run, self.runs)
        return chosen, chosen.run.batches

    def each(self) -> list[tuple[ChosenRun, frozenset[str] | None]]:
        """Return each run with the names of its batches, None for all, like `all_runs`."""
        return each_run(self.runs)

    @cached_property
    def runs(self) -> SpoolRuns:
        """All runs."""
        batches = self._batches.batches
        return runs_of(
            self._outlined(), self._paths, lambda: TableSearch(self._files, batches, self._open)
        )

    def _outlined(self) -> Iterator[OutlinedBatch]:
        outlines = self._outlines
        for number, batch in enumerate(self._batches.batches):
            content = partial(self._batches.content, number)
            outline = outlines[batch.key]
            if batch.key in self._odd or outline.is_foreign:
                outline = outline_of(content().data)
            yield OutlinedBatch(batch.name, outline, content)

    @contextlib.contextmanager
    def run(
        self, chosen: ChosenRun, names: frozenset[str] | None, *, needs_digests: bool = True
    ) -> Iterator[OpenedRun]:
        """Open the batches with these names, None for all, which are those of the chosen run.

        A run with digests is opened only if these are not needed. Raises NeedsPythonError,
        InputError, TargetError and EndpointError.
        """
        files = self._files
        self._check_producers(names)
        with contextlib.ExitStack() as stack:
            index = stack.enter_context(self._open(names))
            engine = files if self._connect is None else stack.enter_context(self._connect(files))
            if needs_digests:
                _check_digests(engine)
            _check_numbers(engine)
            span, mark = engine.span, engine.mark
            if index.has_summaries:
                span, mark = _complete_spans(span), _complete_marks(mark)
            mark = distinct(engine, mark)
            relations = step_relations(engine, distinct(engine, span))
            _check_units(engine, relations)
            yield OpenedRun(
                engine, files, self._batches, relations, mark, index, self._paths, chosen,
                names is None, self._details(names), self._unreadable(chosen, names),
            )  # fmt: skip

    def _check_producers(self, names: frozenset[str] | None) -> None:
        """Raise NeedsPythonError if scopes of the run must be changed to the canonical form."""
        of_run = [
            batch.key for batch in self._batches.batches if names is None or batch.name in names
        ]
        recorders = [self._recorders[key] for key in of_run]
        sdk = [
            key
            for key, (version, is_foreign) in zip(of_run, recorders, strict=True)
            if not is_foreign and is_cirron_sdk(version)
        ]
        if sdk and any(self._outlines[key].spans for key in sdk):
            raise NeedsPythonError(f"the run has scopes of {NAMES[Producer.CIRRON_SDK]}")
        if recorders and all(is_foreign for _, is_foreign in recorders):
            raise NeedsPythonError(f"the run has scopes of {NAMES[Producer.FOREIGN]}")

    def _unreadable(self, chosen: ChosenRun, names: frozenset[str] | None) -> int:
        reader = self._reader
        if reader is None:
            return 0
        if chosen.run is None or names is None:
            return unreadable_in(reader)
        return unreadable_in(reader, unreadable_of(reader, chosen.run, self.runs.runs))

    def _details(self, names: frozenset[str] | None) -> list[tuple[set[int], dict[str, Any]]]:
        details = []
        for number, batch in enumerate(self._batches.batches):
            if names is not None and batch.name not in names:
                continue
            outline = self._outlines[batch.key]
            ranks, spans, found = outline.ranks, outline.spans, details_of(outline.resource)
            if batch.key in self._odd:
                rows = rows_of(self._batches.content(number).data)
                ranks = {span.rank for span in rows.spans if span.rank is not None}
                spans, found = len(rows.spans), details_of_rows(rows)
            if spans:
                details.append((ranks, found))
        return details

    @cached_property
    def _outlines(self) -> dict[str, RunBatchOutline]:
        return self._files.outlines()

    @cached_property
    def _recorders(self) -> dict[str, tuple[str | None, bool]]:
        return self._files.recorders()

    @contextlib.contextmanager
    def _open(self, names: frozenset[str] | None) -> Iterator[SpoolIndex]:
        """Open the batches with these names, None for all, and return an index of the odd ones."""
        odd = self._odd
        places = [
            (batch.key, number)
            for number, batch in enumerate(self._batches.batches)
            if names is None or batch.name in names
        ]
        with SpoolIndex() as index:
            for number, batch in self._batches.contents([n for key, n in places if key in odd]):
                index.files = number
                index.add(batch)
            index.ready()
            normal = [place for place in places if place[0] not in odd]
            self._files.open(normal, *expanded_rows(index))
            yield index


@contextlib.contextmanager
def opened_tables(
    batches: ColumnarBatches, reader: SpoolReader | None = None, connect: Connect | None = None
) -> Iterator[OpenedTables]:
    """Open columnar tables.

    `reader` has read the spool that the batches are from, if there is one. `connect` returns the
    engine with the relations of these files; None for DuckDB. Raises InputError and TargetError.
    """
    with temporary_folder() as folder, DuckDBEngine(batches, Path(folder)) as files:
        yield OpenedTables(files, batches, reader, connect)


def _check_digests(engine: SqlEngine) -> None:
    """Raise NeedsPythonError if there are digests, or steps of a DGRR trace."""
    mark = engine.mark
    digests = mark.name.startswith(PREFIX) & (mark.name.length() > len(PREFIX))
    if engine.count(mark.filter(digests | (mark.name == TRACE_STEP)).limit(1)):
        raise NeedsPythonError("the run has digests")


def _check_units(engine: SqlEngine, relations: StepRelations) -> None:
    """Raise NeedsPythonError if there are no steps, but other scopes that are units."""
    if not engine.count(relations.step.limit(1)):
        span = relations.span
        if engine.count(span.filter(span.name.isin(sorted(TRAINING | {REQUEST}))).limit(1)):
            raise NeedsPythonError("the units of the run are not named step")


def _check_numbers(engine: SqlEngine) -> None:
    """Raise NeedsPythonError if the records do not fit the integers of an engine."""
    span = engine.span
    times = (span.start_ns, span.end_ns, span.gpu_ns)
    is_far = ibis.or_(*(~each.between(-_MOST_NS, _MOST_NS).fill_null(TRUE) for each in times))
    start, end, device = (each.cast("float64") for each in times)
    ranks = span.group_by("rank").agg(
        far=as_number(is_far).max(), wall=(end - start).abs().sum(), device=device.abs().sum()
    )
    rows = list(engine.rows(ranks))
    if any(row[1] for row in rows):
        raise NeedsPythonError("the run has times after the year 2043")
    if any((total or 0) > _MOST_NS for row in rows for total in row[2:]):
        raise NeedsPythonError("the durations of a rank are more than 70 years in total")
    if {-1, None} <= {row[0] for row in rows}:
        raise NeedsPythonError("the run has spans of rank -1, and spans without a rank")


def _complete_spans(span: Table) -> Table:
    """Return the spans without the summaries of steps that are there completely."""
    complete = span.filter(span.origin.isnull() & span.id.notnull()).select("id")
    summaries = span.filter(span.origin.notnull())
    summaries = summaries.anti_join(complete, summaries.origin == complete.id)
    return span.filter(span.origin.isnull()).union(summaries)


def _complete_marks(mark: Table) -> Table:
    complete = mark.filter(~mark.is_summarised & mark.id.notnull()).select("id")
    summarised = mark.filter(mark.is_summarised)
    summarised = summarised.anti_join(complete, summarised.id == complete.id)
    return mark.filter(~mark.is_summarised).union(summarised)
