"""Open the batches of a run in an engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ibis

from ...errors import CirronOtelError
from ..analysis.index import SpoolIndex
from ..records.digest_marks import PREFIX
from ..records.trace_marks import TRACE_STEP
from ..spool.paths import SpoolPaths
from ..temporary import temporary_folder
from .columnar_batches import ColumnarBatches
from .duckdb_engine import DuckDBEngine
from .engine import Table
from .expressions import TRUE
from .reduced_index import expanded_rows
from .steps import StepRelations, distinct, step_relations

_MOST_NS = 1 << 61
"""Times beyond it may overflow in an engine."""


class NeedsPythonError(CirronOtelError):
    """A run with records that only the analyses in Python read. The message names them."""


@dataclass(slots=True)
class OpenedRun:
    """The records of a run in an engine."""

    engine: DuckDBEngine
    batches: ColumnarBatches
    relations: StepRelations
    mark: Table
    """The marks, each once."""
    index: SpoolIndex
    """The odd batches."""
    paths: SpoolPaths | None = None
    """The spool with the states of its processes; None if there is none."""
    is_complete: bool = True
    """Whether the batches are all of the spool."""


@contextlib.contextmanager
def opened_run(batches: ColumnarBatches) -> Iterator[OpenedRun]:
    """Open the batches of a run. Raises NeedsPythonError, InputError and TargetError."""
    with (
        temporary_folder() as folder,
        DuckDBEngine(batches, Path(folder)) as engine,
        SpoolIndex() as index,
    ):
        odd = engine.odd_keys()
        numbers = [n for n, batch in enumerate(batches.batches) if batch.key in odd]
        for number, batch in batches.contents(numbers):
            index.files = number
            index.add(batch)
        index.ready()
        plain = [(b.key, n) for n, b in enumerate(batches.batches) if b.key not in odd]
        engine.open(plain, *expanded_rows(index))
        _check(engine)
        span, mark = engine.span, engine.mark
        if index.has_summaries:
            span, mark = _complete_spans(span), _complete_marks(mark)
        mark = distinct(engine, mark)
        relations = step_relations(engine, distinct(engine, span))
        yield OpenedRun(engine, batches, relations, mark, index)


def _check(engine: DuckDBEngine) -> None:
    mark, span = engine.mark, engine.span
    digests = mark.name.startswith(PREFIX) & (mark.name.length() > len(PREFIX))
    if engine.count(mark.filter(digests | (mark.name == TRACE_STEP)).limit(1)):
        raise NeedsPythonError("the run has digests")
    times = (span.start_ns, span.end_ns, span.gpu_ns)
    is_far = ibis.or_(*(~each.between(-_MOST_NS, _MOST_NS).fill_null(TRUE) for each in times))
    if engine.count(span.filter(is_far).limit(1)):
        raise NeedsPythonError("the run has times after the year 2043")
    odd_ranks = (span.rank == -1, span.rank.isnull())
    if all(engine.count(span.filter(each).limit(1)) for each in odd_ranks):
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
