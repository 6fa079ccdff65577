"""The sessions of units, some of which depend on the time of each unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from ...analysis.breakdown import STEP
from ...engines.engine import SqlEngine, Table
from ...engines.steps import StepRelations
from ..load.indexed import StoredSpan
from ..load.tree import Extent, ScopeTree, SessionMembers, UnitsKey
from ..load.unit_sessions import sessions_of_units
from ..relations import ABSENT, Block, Texts
from .inside import UnitScopes
from .noted import PlacedSpan

_UNIT: Final = ("no", "parent", "pid", "rank", "start_ns", "end_ns", "idx")


class EngineMembers(SessionMembers):
    """The session of each scope, and of the units.

    Units around which no scope is recorded, of a process with several sessions, are read one by
    one. There are few.
    """

    def __init__(
        self,
        engine: SqlEngine,
        relations: StepRelations,
        scopes: UnitScopes,
        tree: ScopeTree,
        units: Mapping[UnitsKey, Extent],
        noted: Mapping[int, PlacedSpan],
        is_recorded: Callable[[str], bool],
    ) -> None:
        """`noted` has the noted spans by their numbers."""
        self._engine, self._relations, self._inside = engine, relations, scopes
        self._noted = noted
        super().__init__(tree, units, is_recorded)

    def _divide(self) -> None:
        span, step = self._relations.span, self._divided_units()
        starts: dict[int, int] = {}
        for no, parent, pid, rank, start_ns, end_ns, idx in self._engine.rows(step.order_by("no")):
            if (parent, pid) in self._divided:
                starts[no] = start_ns
                unit = StoredSpan(None, parent, STEP, idx, start_ns, end_ns, pid, rank)
                extent = self._extent((parent, pid), start_ns)
                extent.add(no, unit)
                extent.add_step(no, unit)
        for each in self._noted.values():
            if each.unit in starts and each.noted.span.name == STEP:
                extent = self._extent(each.noted.units, starts[each.unit])
                extent.add_step(each.noted.no, each.noted.span)
        inside = self._inside.inside
        placed = inside.inner_join(step, inside.unit == step.no)
        placed = placed.select(number=inside.no, parent=step.parent, pid=step.pid, unit=step.no)
        spans = span.inner_join(placed, span.no == placed.number).select(
            placed.parent, placed.pid, placed.unit, rank=span.rank, process=span.pid,
            start=span.start_ns, end=span.end_ns,
        )  # fmt: skip
        groups = spans.group_by("parent", "pid", "unit", "rank", "process").agg(
            count=spans.count(), first=spans.start.min(), last=spans.end.max()
        )
        for parent, pid, no, rank, process, count, first, last in self._engine.rows(groups):
            if no in starts:
                extent = self._extent((parent, pid), starts[no])
                extent.join(Extent(count, first, last, {rank}, {process}))

    def _divided_units(self) -> Table:
        """Return the units of the processes of divided ones."""
        step = self._relations.step
        pids = {pid for _, pid in self._divided}
        is_due = step.pid.isin(sorted(pid for pid in pids if pid is not None))
        if None in pids:
            is_due |= step.pid.isnull()
        return self._engine.store(step.filter(is_due).select(*_UNIT))

    def _extent(self, key: UnitsKey, start_ns: int) -> Extent:
        return self._divided[key].setdefault(self.finder.of_top(*key, start_ns), Extent())

    def id_of(self, number: int, units: UnitsKey | None) -> str | None:
        """Return the id of the session of a scope, or of a unit or a noted span."""
        if units is None or units not in self._divided:
            return super().id_of(number, units)
        step = self._relations.step
        unit = self._noted[number].unit if number in self._noted else number
        [(start_ns,)] = self._engine.rows(step.filter(step.no == unit).select("start_ns"))
        return self._key_of(self.finder.of_top(*units, start_ns))

    def of_block(self, texts: Texts, units: Block) -> np.ndarray:
        """Return the number of the session of each unit; -1 for one without a session."""
        found = sessions_of_units(self, texts, units)
        for key in self._divided:
            parent, pid = key
            is_due = units["parent"] == texts.token(parent)
            is_due &= units["pid"] == (ABSENT if pid is None else pid)
            for place in np.flatnonzero(is_due).tolist():
                found[place] = self.finder.of_top(*key, int(units["start_ns"][place]))
        return found
