"""The sums over all spans of a run, and the extents of its units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import ibis

from ....semconv import OVERHEAD_NS, SESSION
from ...analysis.run_batch import either
from ...engines.engine import PLACES, SqlEngine, Table
from ...engines.expressions import (
    as_number,
    duration,
    has_name,
    named,
    non_negative,
    union_of,
)
from ...engines.steps import StepRelations
from ..load.lanes import LaneSums, NameSums, RankSums
from ..load.marks import MOST_OVERHEAD_NS
from ..load.tree import Extent, UnitsKey
from .inside import UnitScopes

_RECOMPUTE: Final = "recompute"


def lane_sums(engine: SqlEngine, relations: StepRelations, mark: Table) -> LaneSums:
    """Return the sums over all spans of each rank, and over those of each name.

    `mark` has each mark once; the time of tracing is that of the marks.
    """
    span = relations.span
    is_timed = span.gpu_ns.notnull()
    groups = span.group_by(
        rank=span.rank, listed=named(span.name), is_sampled=span.is_peak_sampled
    ).agg(
        spans=span.count(),
        first=span.start_ns.min(),
        last=span.end_ns.max(),
        recompute=_total(ibis.ifelse(has_name(span.name, _RECOMPUTE), duration(span), 0)),
        timed=_total(as_number(is_timed)),
        gpu=_total(non_negative(span.gpu_ns)),
        wall=_total(ibis.ifelse(is_timed, duration(span), 0)),
        device=span.device_peak.max(),
        memory=span.memory_peak.max(),
    )
    sums = LaneSums()
    for rank, name, is_sampled, count, first, last, recompute, *costs in engine.rows(groups):
        of_rank = sums.ranks.setdefault(rank, RankSums())
        of_rank.spans += count
        of_rank.first_ns = either(min, of_rank.first_ns, first)
        of_rank.last_ns = either(max, of_rank.last_ns, last)
        of_rank.recompute_ns += recompute or 0
        timed, gpu_ns, wall_ns, device, memory = costs
        if not timed and device is None and memory is None:
            continue
        of_name = sums.names.setdefault((rank, name), NameSums())
        of_name.timed += timed
        of_name.gpu_ns += gpu_ns or 0
        of_name.wall_ns += wall_ns or 0
        if is_sampled:
            of_name.sampled_device_peak = either(max, of_name.sampled_device_peak, device)
            of_name.sampled_memory_peak = either(max, of_name.sampled_memory_peak, memory)
        else:
            of_name.device_peak = either(max, of_name.device_peak, device)
            of_name.memory_peak = either(max, of_name.memory_peak, memory)
    _add_overhead(sums, engine, relations, mark)
    return sums


def _add_overhead(sums: LaneSums, engine: SqlEngine, relations: StepRelations, mark: Table) -> None:
    """Add the time of tracing to the rank of the first span of the marks' batch.

    A mark counts unless its scope is inside another scope with such a mark that is not a session
    (`load.overheads`). The first span counts even if its id is repeated.
    """
    span = engine.span
    is_due = has_name(mark.name, OVERHEAD_NS) & mark.integer.between(1, MOST_OVERHEAD_NS)
    marks = engine.store(mark.filter(is_due).select("no", "span", "integer"))
    inside = _inside_marked(engine, relations, marks.filter(marks.span.notnull()).select("span"))
    marks = marks.anti_join(inside, marks.span == inside.id)
    times = dict(
        engine.rows(marks.group_by(batch=marks.no // PLACES).agg(ns=_total(marks.integer)))
    )
    firsts = span.group_by("rank", batch=span.no // PLACES).agg(first=span.no.min())
    of_batches: dict[int, tuple[int, int | None]] = {}
    for rank, batch, first in engine.rows(firsts):
        if batch in times:
            of_batches[batch] = min(of_batches.get(batch, (first, rank)), (first, rank))
    for batch, (_, rank) in of_batches.items():
        sums.ranks.setdefault(rank, RankSums()).overhead_ns += times[batch]


def _inside_marked(engine: SqlEngine, relations: StepRelations, marked: Table) -> Table:
    """Return the ids of scopes whose parent is a scope with a mark, but not a session.

    All such scopes that have marks themselves are among them; others may be missing. Most are
    steps, and few are outside of steps. All spans are read only if some are directly inside steps.
    """
    scopes = [table.select("id", "parent") for table in (relations.any_step, relations.others)]
    rest = marked
    for scope in scopes:
        rest = rest.anti_join(scope, rest.span == scope.id)
    rest, span = engine.store(rest), relations.span
    if engine.count(rest):
        scopes.append(span.semi_join(rest, span.id == rest.span).select("id", "parent"))
    scope = union_of(scopes)
    sessions = span.filter(has_name(span.name, SESSION)).select("id")
    around = scope.select("parent").distinct()
    around = marked.semi_join(around, marked.span == around.parent)
    around = around.anti_join(sessions, around.span == sessions.id)
    return scope.semi_join(around, scope.parent == around.span).select("id")


def unit_extents(
    engine: SqlEngine, relations: StepRelations, scopes: UnitScopes
) -> dict[UnitsKey, Extent]:
    """Return the extents of the units, with what is inside them, by parent and process."""
    step, span = relations.step, relations.span
    extents: dict[UnitsKey, Extent] = {}
    groups = step.group_by("parent", "pid", "rank").agg(
        spans=step.count(), start=step.start_ns.min(), end=step.end_ns.max(),
        first=step.no.min(), latest=step.no.argmax(step.position),
    )  # fmt: skip
    groups = engine.store(groups)
    for parent, pid, rank, *figures in engine.rows(groups):
        _join(extents, (parent, pid), rank, pid, figures[:3])
    chosen = groups.select(no=groups["first"]).union(groups.select(no=groups.latest), distinct=True)
    ends = step.semi_join(engine.store(chosen), "no")
    for no, parent, pid, start_ns, idx in engine.rows(
        ends.select("no", "parent", "pid", "start_ns", "idx")
    ):
        extent = extents[parent, pid]
        if extent.top is None or no < extent.top[0]:
            extent.top = no, pid, start_ns
        if extent.last is None or (start_ns, no) > extent.last[:2]:
            extent.last = start_ns, no, idx
    key = step.select("no", "parent", "pid")
    for parent, pid, rank, process, *figures in _inside(engine, span, scopes, relations, key):
        _join(extents, (parent, pid), rank, process, figures)
    direct = scopes.direct
    joined = direct.inner_join(key, direct.unit == key.no)
    counts = joined.group_by("parent", "pid").agg(spans=joined.count())
    for parent, pid, spans in engine.rows(counts):
        extents[parent, pid].spans += spans
    return extents


def _inside(
    engine: SqlEngine, span: Table, scopes: UnitScopes, relations: StepRelations, key: Table
) -> Iterator[tuple[Any, ...]]:
    """Yield the figures of the spans inside units that may extend them.

    Those directly inside are counted separately, and most are in their unit's extent.
    """
    children = relations.children
    wide = engine.store(children.filter(children.is_wider).select("no"))
    for spans, is_counted in ((scopes.direct.semi_join(wide, "no"), False), (scopes.deep, True)):
        if spans is None or not (is_counted or engine.count(wide)):
            continue
        joined = spans.inner_join(key, spans.unit == key.no)
        placed = joined.select(number=spans.no, parent=key.parent, pid=key.pid)
        for *keys, count, start, end in engine.rows(by_process(span, placed, "parent", "pid")):
            yield *keys, count if is_counted else 0, start, end


def by_process(span: Table, placed: Table, *keys: str) -> Table:
    """Return the numbers and times of spans by columns of `placed`, and by rank and process.

    `placed` has the number of each span in the column `number`.
    """
    found = span.inner_join(placed, span.no == placed.number).select(
        *(placed[key] for key in keys), rank=span.rank, process=span.pid, start=span.start_ns,
        end=span.end_ns,
    )  # fmt: skip
    return found.group_by(*keys, "rank", "process").agg(
        spans=found.count(), start=found.start.min(), end=found.end.max()
    )


def _join(
    extents: dict[UnitsKey, Extent], key: UnitsKey, rank: int | None, pid: int | None, figures: Any
) -> None:
    spans, first_ns, last_ns = figures
    extents.setdefault(key, Extent()).join(Extent(spans, first_ns, last_ns, {rank}, {pid}))


def _total(value: Any) -> Any:
    return value.sum().cast("int64")
