"""Open the batches of a run in an engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import ibis

from ..analysis.index import SpoolIndex
from ..analysis.run_batch import outline_of
from ..analysis.run_selection import ALL, ChosenRun, choose
from ..analysis.runs import OutlinedBatch, runs_of
from ..records.digest_marks import PREFIX
from ..records.trace_marks import TRACE_STEP
from ..spool.paths import SpoolPaths
from ..temporary import temporary_folder
from .columnar_batches import ColumnarBatches
from .duckdb_engine import DuckDBEngine
from .engine import SqlEngine, Table
from .expressions import TRUE, as_number
from .reduced_index import expanded_rows
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


@contextlib.contextmanager
def opened_run(
    batches: ColumnarBatches,
    wanted: str | None = ALL,
    paths: SpoolPaths | None = None,
    connect: Connect | None = None,
) -> Iterator[OpenedRun]:
    """Open the batches of a run, which `wanted` names as in `choose_run`.

    `paths` is the spool that the batches are from, if there is one. `connect` returns the engine
    with the relations of these files; None for DuckDB.

    Raises NeedsPythonError, UsageError if no run matches, InputError, TargetError and
    EndpointError.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        files = stack.enter_context(DuckDBEngine(batches, Path(folder)))
        index = stack.enter_context(SpoolIndex())
        odd = files.odd_keys()
        chosen, names = _chosen(files, batches, odd, wanted, paths)
        places = [
            (batch.key, number)
            for number, batch in enumerate(batches.batches)
            if names is None or batch.name in names
        ]
        for number, batch in batches.contents([n for key, n in places if key in odd]):
            index.files = number
            index.add(batch)
        index.ready()
        files.open([place for place in places if place[0] not in odd], *expanded_rows(index))
        engine = files if connect is None else stack.enter_context(connect(files))
        _check(engine)
        span, mark = engine.span, engine.mark
        if index.has_summaries:
            span, mark = _complete_spans(span), _complete_marks(mark)
        mark = distinct(engine, mark)
        relations = step_relations(engine, distinct(engine, span))
        yield OpenedRun(
            engine, files, batches, relations, mark, index, paths, chosen, is_complete=names is None
        )


def _chosen(
    files: DuckDBEngine,
    batches: ColumnarBatches,
    odd: set[str],
    wanted: str | None,
    paths: SpoolPaths | None,
) -> tuple[ChosenRun, frozenset[str] | None]:
    """Return the wanted run, and the names of its batches; None for all batches."""
    if wanted == ALL:
        return ChosenRun(None, 0), None
    outlines = files.outlines()

    def outlined() -> Iterator[OutlinedBatch]:
        for number, batch in enumerate(batches.batches):
            content = partial(batches.content, number)
            outline = outlines[batch.key]
            if batch.key in odd or outline.is_foreign:
                outline = outline_of(content().data)
            yield OutlinedBatch(batch.name, outline, content)

    chosen, is_limited = choose(runs_of(outlined(), paths), wanted)
    return chosen, chosen.run.batches if is_limited and chosen.run is not None else None


def _check(engine: SqlEngine) -> None:
    """Raise NeedsPythonError if the records do not fit the integers of an engine."""
    mark, span = engine.mark, engine.span
    digests = mark.name.startswith(PREFIX) & (mark.name.length() > len(PREFIX))
    if engine.count(mark.filter(digests | (mark.name == TRACE_STEP)).limit(1)):
        raise NeedsPythonError("the run has digests")
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
