"""The spans inside units that figures need one by one."""

from __future__ import annotations

from typing import Final, NamedTuple

from ....semconv import SESSION
from ...analysis.breakdown import CHECKPOINT, STEP, is_checkpoint
from ...engines.engine import SPAN, SqlEngine, Table
from ...engines.expressions import FALSE, has_name
from ...engines.steps import MAX_LEVELS, StepRelations
from ..load.stored_span import StoredSpan
from ..load.tree import UnitsKey
from ..load.unit_builder import NotedSpan, indexes_around
from .inside import UnitScopes
from .spans import read_spans

_NAMES: Final = ("eval", SESSION, STEP)


class PlacedSpan(NamedTuple):
    """A noted span, and the number of its unit."""

    noted: NotedSpan
    unit: int


def noted_spans(
    engine: SqlEngine, relations: StepRelations, scopes: UnitScopes
) -> list[PlacedSpan]:
    """Return the steps, evaluations and checkpoints inside units, and the failed spans."""
    placed = engine.store(_placed(relations, scopes))
    if not engine.count(placed):
        return []
    span, step = relations.span, relations.step
    joined = span.inner_join(placed, span.no == placed.number)
    rows = joined.select(*(span[name] for name in SPAN), placed.unit)
    spans = sorted(read_spans(engine, rows), key=lambda each: each.no)
    keys: dict[int, UnitsKey] = {}
    around = {each.span.id: each.span for each in spans}
    if scopes.deep is not None:
        deep = placed.semi_join(scopes.deep, placed.number == scopes.deep.no)
        around |= _ancestors(engine, relations, engine.store(deep.select(no=deep.number)))
    of_units = step.semi_join(placed, step.no == placed.unit)
    for no, id_, parent, pid, idx in engine.rows(
        of_units.select("no", "id", "parent", "pid", "idx")
    ):
        keys[no] = parent, pid
        around[id_] = StoredSpan(id_, parent, STEP, idx)
    return [
        PlacedSpan(NotedSpan(no, each, keys[unit], *indexes_around(each, around)), unit)
        for no, each, (unit,) in spans
        if each.name in _NAMES or is_checkpoint(each.name) or each.error is not None
    ]


def _placed(relations: StepRelations, scopes: UnitScopes) -> Table:
    """Return the spans inside units that may be noted: number, unit."""
    span = relations.span
    is_unit = has_name(span.name, STEP) & span.start_ns.notnull() & span.end_ns.notnull()
    is_named = span.name.isin(_NAMES) | span.name.lower().contains(CHECKPOINT)
    wanted = span.filter((is_named.fill_null(FALSE) & ~is_unit) | span.error.notnull()).select("no")
    if relations.has_nested:
        nested = relations.any_step.anti_join(relations.step, "no")
        wanted = wanted.union(nested.select("no"), distinct=True)
    inside = scopes.inside
    found = inside.semi_join(wanted, inside.no == wanted.no)
    return found.select("unit", number=found.no)


def _ancestors(
    engine: SqlEngine, relations: StepRelations, numbers: Table
) -> dict[str | None, StoredSpan]:
    """Return the spans around some spans inside units, up to their units, by their ids."""
    span, inner = relations.span, relations.inner.union(relations.top, distinct=True)
    found: dict[str | None, StoredSpan] = {}
    for _ in range(MAX_LEVELS):
        below = span.semi_join(numbers, "no").filter(span.parent.notnull())
        above = inner.semi_join(below, inner.id == below.parent).anti_join(relations.step, "no")
        numbers = engine.store(above.select("no"))
        spans = span.semi_join(numbers, "no").select(*SPAN)
        rows = [each.span for each in read_spans(engine, spans)]
        if all(each.id in found for each in rows):
            break
        found |= {each.id: each for each in rows}
    return found
