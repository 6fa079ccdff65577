"""The marks of a run as series, with the values that `analysis/mark_series` gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import ibis

from ...semconv import OVERHEAD_NS
from ..analysis.index import SpoolIndex
from ..analysis.mark_series import MarkSeries, series_of
from ..records.rows import shown
from .engine import PLACES, SqlEngine, Table
from .expressions import FALSE, as_number, ascending, has_name
from .reduced_index import MEMORY_NAMES, value_of

_STORMLOG: Final = "stormlog."
_DIGEST: Final = "digest."


def mark_series_of(
    engine: SqlEngine, span: Table, mark: Table, index: SpoolIndex
) -> tuple[list[MarkSeries], int]:
    """Return the first 1,000 series, and how many more there are.

    `index` has the samples of memory, which are no series.
    """
    samples = {(file, place) for file, place in index.rows("SELECT file, position FROM sample")}
    return series_of(_values(engine, span, mark, samples))


def _values(
    engine: SqlEngine, span: Table, mark: Table, samples: set[tuple[int, int]]
) -> Iterator[tuple[Any, ...]]:
    """Yield rank, name, whether it is of an evaluation, epoch and value of each listed mark."""
    listed = mark.filter(_is_listed(mark.name))
    scopes = span.select("id", "parent", "name", "idx", "rank")
    first, second, third = (scopes.view() for _ in range(3))
    joined = (
        listed.left_join(first, listed.span == first.id)
        .left_join(second, first.parent == second.id)
        .left_join(third, second.parent == third.id)
    )
    around = (first, second, third)
    is_eval = has_name(first.name, "eval")
    for each in around[1:]:
        is_eval = is_eval | has_name(each.name, "eval")
    epoch = ibis.cases(*((has_name(each.name, "epoch"), each.idx) for each in around))
    rows = joined.select(
        rank=first.rank, listed=listed.name.nullif("").fill_null("?"),
        is_eval=as_number(is_eval), epoch=epoch, text=listed.text, number=listed.number,
        integer=listed.integer, flag=listed.flag, ts_ns=listed.ts_ns, no=listed.no,
    )  # fmt: skip
    order = [rows.listed, *map(ascending, (rows.rank, rows.is_eval, rows.ts_ns)), rows.no]
    for rank, name, evaluated, number, *value, _, no in engine.rows(rows.order_by(order)):
        if name in MEMORY_NAMES and divmod(no, PLACES) in samples:
            continue
        yield rank, name, evaluated, number, shown(value_of(*value))


def _is_listed(name: Any) -> Any:
    is_digest = name.startswith(_DIGEST) & (name.length() > len(_DIGEST))
    is_stormlog = name.startswith(_STORMLOG) & (name != "stormlog.error")
    return ~((name == OVERHEAD_NS) | is_digest | is_stormlog).fill_null(FALSE)
