"""The sessions of units, some of which depend on the time of each unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from ...analysis.breakdown import STEP
from ...engines.engine import SqlEngine, Table
from ...engines.steps import StepRelations
from ..load.stored_span import StoredSpan
from ..load.tree import Extent, ScopeTree, SessionMembers, UnitsKey
from ..relations import Block, Texts
from .inside import UnitScopes
from .noted import PlacedSpan
from .sums import by_process

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
        self._numbers = self._sessions = np.empty(0, np.int64)
        """The numbers of the units that are read one by one, in order, and their sessions."""
        super().__init__(tree, units, is_recorded)

    def _divide(self) -> None:
        span, step = self._relations.span, self._divided_units()
        sessions: dict[int, int] = {}
        for no, parent, pid, rank, start_ns, end_ns, idx in self._engine.rows(step.order_by("no")):
            if (parent, pid) in self._divided:
                sessions[no] = self.finder.of_top(parent, pid, start_ns)
                unit = StoredSpan(None, parent, STEP, idx, start_ns, end_ns, pid, rank)
                extent = self._extent((parent, pid), sessions[no])
                extent.add(no, unit)
                extent.add_step(no, unit)
        for each in self._noted.values():
            if each.unit in sessions and each.noted.span.name == STEP:
                extent = self._extent(each.noted.units, sessions[each.unit])
                extent.add_step(each.noted.no, each.noted.span)
        inside = self._inside.inside
        placed = inside.inner_join(step, inside.unit == step.no)
        placed = placed.select(number=inside.no, parent=step.parent, pid=step.pid, unit=step.no)
        groups = by_process(span, placed, "parent", "pid", "unit")
        for parent, pid, no, rank, process, count, first, last in self._engine.rows(groups):
            if no in sessions:
                extent = self._extent((parent, pid), sessions[no])
                extent.join(Extent(count, first, last, {rank}, {process}))
        self._numbers = np.fromiter(sessions, np.int64)
        self._sessions = np.fromiter(sessions.values(), np.int64)

    def _divided_units(self) -> Table:
        """Return the units of the processes of divided ones."""
        step = self._relations.step
        pids = {pid for _, pid in self._divided}
        is_due = step.pid.isin(sorted(pid for pid in pids if pid is not None))
        if None in pids:
            is_due |= step.pid.isnull()
        return self._engine.store(step.filter(is_due).select(*_UNIT))

    def _extent(self, key: UnitsKey, session: int) -> Extent:
        return self._divided[key].setdefault(session, Extent())

    def id_of(self, number: int, units: UnitsKey | None) -> str | None:
        """Return the id of the session of a scope, or of a unit or a noted span."""
        if units is None or units not in self._divided:
            return super().id_of(number, units)
        unit = self._noted[number].unit if number in self._noted else number
        return self._key_of(int(self._sessions[np.searchsorted(self._numbers, unit)]))

    def of_block(self, texts: Texts, units: Block) -> np.ndarray:
        """Return the number of the session of each unit; -1 for one without a session."""
        found = super().of_block(texts, units)
        if len(self._numbers):
            places = np.searchsorted(self._numbers, units["no"]).clip(max=len(self._numbers) - 1)
            is_due = self._numbers[places] == units["no"]
            found = np.where(is_due, self._sessions[places], found)
        return found
