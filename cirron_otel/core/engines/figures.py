"""The number, the sum, the maximum, the median and the 95th percentile of durations, by group.

All figures are exact. The engine selects integers at places in their order, and interpolates
nothing. It does not sort the durations: it counts those in each of many small ranges, and orders
only the durations of the ranges that contain a wanted place.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import ibis

from ..analysis.breakdown import PhaseFigures
from .engine import SqlEngine, Table
from .expressions import Value

Key: TypeAlias = tuple[Any, ...]
_PER_ROOT: Final = 16
"""The ranges for each unit of a duration's fourth root: 150 ms is in a range of 0.3 ms."""


class _Figures(NamedTuple):
    """The figures of a group."""

    times: int
    total_ns: int
    middle: tuple[int, int]
    """The two middle durations, which are one if the number is odd."""
    p95_ns: int
    max_ns: int


def figures_of(
    engine: SqlEngine, table: Table, keys: Sequence[str], name: str | None = None
) -> dict[Key, PhaseFigures]:
    """Return the figures of the column `ns` by the values of the columns `keys`.

    Their name is `name`, or the last key.
    """
    groups = _figures(engine, table, keys)
    return {key: PhaseFigures(name or key[-1], *each) for key, each in groups.items()}


def figures_by_rank(engine: SqlEngine, table: Table, name: str) -> dict[int | None, PhaseFigures]:
    """Return the figures of the column `ns` of each rank that has rows."""
    figures = figures_of(engine, table.select("rank", "ns"), ["rank"], name)
    return {rank: each for (rank,), each in figures.items()}


def medians_of(engine: SqlEngine, table: Table, keys: Sequence[str]) -> dict[Key, float]:
    """Return the median of the column `ns`, not rounded, by the values of the columns `keys`."""
    groups = _figures(engine, table, keys)
    return {
        key: each.middle[0] if each.times % 2 else statistics.median(each.middle)
        for key, each in groups.items()
    }


def _figures(engine: SqlEngine, table: Table, keys: Sequence[str]) -> dict[Key, _Figures]:
    ranged = table.select(*keys, "ns", range=_range(table.ns))
    counts = ranged.group_by(*keys, "range").agg(
        times=ranged.count(), total=ranged.ns.sum().cast("int64"), high=ranged.ns.max()
    )
    counts = engine.store(counts)
    sums: dict[Key, tuple[int, int, int]] = {}
    grouped = counts.group_by(*keys).agg(
        times=counts.times.sum().cast("int64"), total=counts.total.sum().cast("int64"),
        high=counts.high.max(),
    )  # fmt: skip
    for *key, times, total, high in engine.rows(grouped):
        sums[tuple(key)] = times, int(total), high
    values = _values(engine, ranged, counts, keys)
    return {
        key: _Figures(times, total, *_at_places(times, values[key]), high)
        for key, (times, total, high) in sums.items()
    }


def _range(ns: Value) -> Value:
    """Return the number of a duration's range; a longer duration's is not smaller."""
    root = ns.abs().cast("float64").sqrt().sqrt() * _PER_ROOT
    number = root.floor().cast("int64")
    return ibis.ifelse(ns < 0, -number, number)


def _places(times: Value) -> tuple[Value, Value, Value]:
    """Return the places of the two middle durations, and of the 95th percentile, from 0."""
    return (times - 1) // 2, times // 2, (times * 95 + 99) // 100 - 1


def _values(
    engine: SqlEngine, ranged: Table, counts: Table, keys: Sequence[str]
) -> defaultdict[Key, list[tuple[int, int, int]]]:
    """Return durations with the first and the last of their places, among them all at `_places`."""
    group = [counts[key] for key in keys]
    until = ibis.window(group_by=group, order_by=[counts.range], preceding=None, following=0)
    placed = counts.mutate(
        until=counts.times.sum().over(until).cast("int64"),
        all=counts.times.sum().over(ibis.window(group_by=group)).cast("int64"),
    )
    placed = placed.mutate(first=placed.until - placed.times)
    chosen = placed.filter(_has_place(placed.first, placed.until, placed.all))
    chosen = engine.store(chosen.select(*keys, "range", "first", "all"))
    ranges = sorted({number for (number,) in engine.rows(chosen.select("range").distinct())})
    ranged = ranged.filter(ranged.range.isin(ranges))
    same = [ranged[key].identical_to(chosen[key]) for key in keys]
    few = ranged.inner_join(chosen, [ranged.range == chosen.range, *same])
    few = few.select(
        *(ranged[key] for key in keys), ranged.range, ranged.ns, chosen.first, chosen["all"]
    )
    few = few.group_by(*keys, "range", "ns", "first", "all").agg(times=few.count())
    until = ibis.window(
        group_by=[few[key] for key in (*keys, "range")], order_by=[few.ns], preceding=None,
        following=0,
    )  # fmt: skip
    few = few.mutate(until=few.first + few.times.sum().over(until).cast("int64"))
    few = few.mutate(first=few.until - few.times)
    few = few.filter(_has_place(few.first, few.until, few["all"]))
    values: defaultdict[Key, list[tuple[int, int, int]]] = defaultdict(list)
    for *key, ns, first, until in engine.rows(few.select(*keys, "ns", "first", "until")):
        values[tuple(key)].append((ns, first, until))
    return values


def _has_place(first: Value, until: Value, times: Value) -> Value:
    return ibis.or_(*((first <= place) & (place < until) for place in _places(times)))


def _at_places(times: int, values: list[tuple[int, int, int]]) -> tuple[tuple[int, int], int]:
    """Return the two middle durations, and the 95th percentile."""
    low, high, p95 = (
        next(ns for ns, first, until in values if first <= place < until)
        for place in _places(times)
    )
    return (low, high), p95
