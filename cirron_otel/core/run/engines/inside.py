"""The spans inside units, at any depth, and those outside of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import ibis

from ...analysis.breakdown import STEP
from ...engines.engine import SqlEngine, Table
from ...engines.expressions import has_name, union_of
from ...engines.steps import MAX_LEVELS, StepRelations

_EVAL: Final = "eval"


class UnitScopes:
    """The unit of each span that is inside one. The spans directly inside are most of them."""

    def __init__(self, engine: SqlEngine, relations: StepRelations) -> None:
        self._engine, self._relations = engine, relations

    @cached_property
    def direct(self) -> Table:
        """The spans directly inside units: no, unit, and whether they are evaluations."""
        children = self._relations.children
        if self._relations.has_nested:
            step = self._relations.step
            children = children.semi_join(step, children.step == step.no)
        return children.select("no", unit=children.step, in_eval=has_name(children.name, _EVAL))

    @cached_property
    def deep(self) -> Table | None:
        """The spans inside units below their direct children; None without such spans.

        The columns are those of `direct`; an evaluation may also be around the span.
        """
        engine, level = self._engine, self._first_level()
        levels = []
        for _ in range(MAX_LEVELS):
            if not engine.count(level):
                break
            levels.append(engine.store(self._below(level)))
            found, holders = levels[-1], self._holders
            joined = holders.inner_join(found, holders.no == found.no)
            level = engine.store(joined.select(holders.id, holders.no, found.unit, found.in_eval))
        return engine.store(union_of(levels)) if levels else None

    @cached_property
    def inside(self) -> Table:
        """The spans inside units, with the columns of `direct`."""
        return self.direct if self.deep is None else self.direct.union(self.deep)

    @cached_property
    def outside(self) -> Table:
        """The spans that are neither units nor inside them, with all columns."""
        relations, engine = self._relations, self._engine
        others = relations.others
        if self.deep is not None:
            others = others.anti_join(self.deep, "no")
        if relations.has_nested:
            lost = self._nested.select("no").union(self._children_of_nested().select("no"))
            lost = engine.store(lost.distinct().anti_join(self.inside, "no"))
            if engine.count(lost):  # steps that contain each other
                span = relations.span
                others = others.union(span.semi_join(lost, span.no == lost.no))
        return others

    def _first_level(self) -> Table:
        """Return the spans directly inside units that may have others inside them, with ids."""
        top, direct = self._relations.top, self.direct
        if self._relations.has_nested:
            top = top.union(self._nested, distinct=True)
        joined = top.inner_join(direct, top.no == direct.no)
        return self._engine.store(joined.select(top.id, top.no, direct.unit, direct.in_eval))

    def _below(self, level: Table) -> Table:
        """Return the spans directly inside those of a level, with the columns of `direct`."""
        relations = self._relations
        spans: Any = relations.others.select("no", "parent", "name")
        if relations.has_nested:
            steps = relations.any_step.mutate(name=ibis.literal(STEP))
            spans = spans.union(steps.select("no", "parent", "name"))
        joined = spans.inner_join(level, spans.parent == level.id)
        found = joined.select(
            spans.no, level.unit, in_eval=level.in_eval | has_name(spans.name, _EVAL)
        )
        if not relations.has_nested:
            return found
        children = self._children_of_nested()
        joined = children.inner_join(level, children.step == level.no)
        in_eval = level.in_eval | has_name(children.name, _EVAL)
        return found.union(joined.select(children.no, level.unit, in_eval=in_eval), distinct=True)

    @cached_property
    def _nested(self) -> Table:
        """The steps inside other steps: id, no."""
        relations = self._relations
        nested = relations.any_step.anti_join(relations.step, "no")
        return self._engine.store(nested.select("id", "no"))

    def _children_of_nested(self) -> Table:
        children, nested = self._relations.children, self._nested
        joined = children.semi_join(nested, children.step == nested.no)
        return joined.select("no", "step", "name")

    @cached_property
    def _holders(self) -> Table:
        """The spans that may have others inside them: id, no."""
        relations = self._relations
        holders = relations.inner.union(relations.top, distinct=True)
        if relations.has_nested:
            holders = holders.union(self._nested, distinct=True)
        return self._engine.store(holders)
