"""The marks of a run as series, with the values that `analysis/mark_series` gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, cast

import ibis

from ...semconv import OVERHEAD_NS
from ..analysis.index import SpoolIndex
from ..analysis.mark_series import MarkSeries, SeriesList
from ..records.rows import shown
from .engine import PLACES, SqlEngine, Table
from .expressions import FALSE, TRUE, as_number, ascending, has_name
from .reduced_index import MEMORY_NAMES, value_of
from .steps import StepRelations

_STORMLOG: Final = "stormlog."
_DIGEST: Final = "digest."
_COLUMNS: Final = ("rank", "listed", "is_eval", "epoch", "text", "number", "integer", "flag", "no")


def mark_series_of(
    engine: SqlEngine, relations: StepRelations, mark: Table, index: SpoolIndex
) -> tuple[list[MarkSeries], int]:
    """Return the first 1,000 series, and how many more there are.

    `index` has the samples of memory, which are no series.
    """
    samples = {
        file * PLACES + place for file, place in index.rows("SELECT file, position FROM sample")
    }
    listed = SeriesList()
    for columns in engine.columns(_ordered(engine, relations, mark)):
        ranks, names, are_eval, epochs, texts, numbers, integers, flags, places = columns
        keys = ranks[0], names[0], are_eval[0]
        if keys == (ranks[-1], names[-1], are_eval[-1]) and _are_numbers(names[0], numbers):
            series = listed.of(*keys)
            if series is not None:
                series.add_numbers(numbers, epochs)
            continue
        values = zip(texts, numbers, integers, flags, strict=True)
        for rank, name, is_eval, epoch, value, no in zip(
            ranks, names, are_eval, epochs, values, places, strict=True
        ):
            if name in MEMORY_NAMES and no in samples:
                continue
            series = listed.of(rank, name, is_eval)
            if series is not None:
                series.add(shown(value_of(*value)), epoch)
    return listed.series, listed.left_out


def _are_numbers(name: str, numbers: Sequence[float | None]) -> bool:
    return (
        name not in MEMORY_NAMES
        and None not in numbers
        and all(map(math.isfinite, cast("Sequence[float]", numbers)))
    )


def _ordered(engine: SqlEngine, relations: StepRelations, mark: Table) -> Table:
    """Return the listed marks in the order of `SeriesList`.

    Most marks are on steps, which need no search among all spans.
    """
    listed = mark.filter(_is_listed(mark.name))
    step, around = relations.step, relations.around
    names = {"name": ibis.literal("step"), "is_known": TRUE}
    known = step.select("id", "parent", "idx", "rank", **names).union(
        around.select("id", "parent", "idx", "rank", name=around.name, is_known=TRUE)
    )
    rows = engine.store(_placed(listed, known, around))
    rest = engine.store(rows.filter(rows.is_known.isnull() & rows.span.notnull()).select("no"))
    if engine.count(rest.limit(1)):
        span = relations.span
        scopes = span.select("id", "parent", "idx", "rank", "name", is_known=TRUE)
        others = _placed(listed.semi_join(rest, "no"), scopes, scopes)
        rows = rows.anti_join(rest, "no").union(others)
    order = [rows.listed, *map(ascending, (rows.rank, rows.is_eval, rows.ts_ns)), rows.no]
    return rows.order_by(order).select(*_COLUMNS)


def _placed(listed: Table, scopes: Table, around: Table) -> Table:
    """Return marks with the rank of their scopes, and the epoch and the evaluation around them."""
    first = scopes.view()
    second, third = (around.select("id", "parent", "idx", "name").view() for _ in range(2))
    joined = (
        listed.left_join(first, listed.span == first.id)
        .left_join(second, first.parent == second.id)
        .left_join(third, second.parent == third.id)
    )
    scopes_around = (first, second, third)
    is_eval = ibis.or_(*(has_name(each.name, "eval") for each in scopes_around))
    epoch = ibis.cases(*((has_name(each.name, "epoch"), each.idx) for each in scopes_around))
    return joined.select(
        rank=first.rank, listed=listed.name.nullif("").fill_null("?"), is_eval=as_number(is_eval),
        epoch=epoch, text=listed.text, number=listed.number, integer=listed.integer,
        flag=listed.flag, ts_ns=listed.ts_ns, no=listed.no, span=listed.span,
        is_known=first.is_known,
    )  # fmt: skip


def _is_listed(name: Any) -> Any:
    is_digest = name.startswith(_DIGEST) & (name.length() > len(_DIGEST))
    is_stormlog = name.startswith(_STORMLOG) & (name != "stormlog.error")
    return ~((name == OVERHEAD_NS) | is_digest | is_stormlog).fill_null(FALSE)
