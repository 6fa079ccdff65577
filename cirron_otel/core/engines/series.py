"""The marks of a run as series, with the values that `analysis/mark_series` gives them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, cast

import ibis

from ...semconv import OVERHEAD_NS
from ..analysis.breakdown import STEP
from ..analysis.index import SpoolIndex
from ..analysis.mark_series import MarkSeries, SeriesList
from ..records.rows import shown
from .engine import PLACES, SqlEngine, Table
from .expanded_rows import MEMORY_NAMES, value_of
from .expressions import FALSE, as_number, ascending, descending, has_name
from .steps import StepRelations

_STORMLOG: Final = "stormlog."
_DIGEST: Final = "digest."
_COLUMNS: Final = ("rank", "listed", "is_eval", "epoch", "text", "number", "integer", "flag", "no")


def mark_series_of(
    engine: SqlEngine,
    relations: StepRelations,
    mark: Table,
    index: SpoolIndex,
    *,
    only_last: bool = False,
) -> tuple[list[MarkSeries], int]:
    """Return the first 1,000 series, and how many more there are.

    `index` has the samples of memory, which are no series. With `only_last`, only the last value of
    each series is read, and its other figures are without meaning.
    """
    samples = {
        file * PLACES + place for file, place in index.rows("SELECT file, position FROM sample")
    }
    listed = SeriesList()
    rows = _rows(engine, relations, mark)
    if only_last:
        rows = _last(rows)
    order = [rows.listed, *map(ascending, (rows.rank, rows.is_eval, rows.ts_ns)), rows.no]
    for columns in engine.columns(rows.order_by(order).select(*_COLUMNS)):
        for run in _runs(columns):
            _add(listed, run, samples)
    return listed.series, listed.left_out


def _runs(columns: tuple[Sequence[Any], ...]) -> Iterator[tuple[Sequence[Any], ...]]:
    """Split rows into those of one series each."""
    ranks, names, are_eval, *_ = columns
    first = 0
    for _, same in groupby(zip(ranks, names, are_eval, strict=True)):
        end = first + sum(1 for _ in same)
        yield columns if end - first == len(ranks) else tuple(each[first:end] for each in columns)
        first = end


def _add(listed: SeriesList, run: tuple[Sequence[Any], ...], samples: set[int]) -> None:
    """Add the marks of one series, in order of their time."""
    (rank, *_), (name, *_), (is_eval, *_), epochs, texts, numbers, integers, flags, places = run
    if _are_numbers(name, numbers):
        series = listed.of(rank, name, is_eval)
        if series is not None:
            series.add_numbers(numbers, epochs)
        return
    values = zip(texts, numbers, integers, flags, strict=True)
    for epoch, value, no in zip(epochs, values, places, strict=True):
        if name in MEMORY_NAMES and no in samples:
            continue
        series = listed.of(rank, name, is_eval)
        if series is not None:
            series.add(shown(value_of(*value)), epoch)


def _are_numbers(name: str, numbers: Sequence[float | None]) -> bool:
    return (
        name not in MEMORY_NAMES
        and None not in numbers
        and all(map(math.isfinite, cast("Sequence[float]", numbers)))
    )


def _last(rows: Table) -> Table:
    """Return the last mark of each series, and all that may be samples of memory."""
    later = ibis.window(
        group_by=[rows.rank, rows.listed, rows.is_eval],
        order_by=[descending(rows.ts_ns), ibis.desc(rows.no)],
    )
    rows = rows.mutate(later=ibis.row_number().over(later))
    return rows.filter((rows.later == 0) | rows.listed.isin(MEMORY_NAMES))


def _rows(engine: SqlEngine, relations: StepRelations, mark: Table) -> Table:
    """Return the listed marks.

    Most marks are on steps, which need no search among all spans.
    """
    listed = mark.filter(_is_listed(mark.name))
    step, around = relations.step, relations.around
    columns = ("id", "parent", "idx", "rank", "name")
    known = step.mutate(name=ibis.literal(STEP)).select(*columns)
    known = known.union(relations.others.select(*columns))
    rows = engine.store(_placed(listed, _scopes(known, around)))
    rest = engine.store(rows.filter(rows.is_unknown).select("no"))
    if engine.count(rest):
        span = relations.span.select(*columns)
        others = _placed(listed.semi_join(rest, "no"), _scopes(span, span))
        rows = rows.anti_join(rest, "no").union(others)
    return rows


def _scopes(scope: Table, around: Table) -> Table:
    """Return scopes with the epoch that they are in, and whether they are in an evaluation.

    `around` has the scopes around them.
    """
    second, third = (around.view() for _ in range(2))
    joined = scope.left_join(second, scope.parent == second.id)
    joined = joined.left_join(third, second.parent == third.id)
    three = (scope, second, third)
    is_eval = ibis.or_(*(has_name(each.name, "eval") for each in three))
    return joined.select(
        scope=scope.id, rank=scope.rank, is_eval=as_number(is_eval),
        epoch=ibis.cases(*((has_name(each.name, "epoch"), each.idx) for each in three)),
    )  # fmt: skip


def _placed(listed: Table, scopes: Table) -> Table:
    """Return marks with the rank, the epoch and the evaluation of their scopes."""
    joined = listed.left_join(scopes, listed.span == scopes.scope)
    return joined.select(
        rank=scopes.rank, listed=listed.name.nullif("").fill_null("?"),
        is_eval=scopes.is_eval.fill_null(0), epoch=scopes.epoch, text=listed.text,
        number=listed.number, integer=listed.integer, flag=listed.flag, ts_ns=listed.ts_ns,
        no=listed.no, is_unknown=listed.span.notnull() & scopes.scope.isnull(),
    )  # fmt: skip


def _is_listed(name: Any) -> Any:
    is_digest = name.startswith(_DIGEST) & (name.length() > len(_DIGEST))
    is_stormlog = name.startswith(_STORMLOG) & (name != "stormlog.error")
    return ~((name == OVERHEAD_NS) | is_digest | is_stormlog).fill_null(FALSE)
