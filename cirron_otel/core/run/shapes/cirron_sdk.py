"""The shape of recordings of cirron-sdk.

Its hooks record steps, and an epoch for each pass over a loader, evaluations included. Scopes of
its iterators (`ci.epochs`, `ci.batches`) and of its hooks may be inside the previous one of the
same kind, because that one is still open on the thread's stack. The rules are in docs/report.md.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np

from ..relations import ABSENT, MOST_LEVELS
from .loads import Loads
from .loops import add_evaluations, add_units, scopes_with_one_update
from .tree import FIRST_CONTAINER, Kind, Tree, outermost

_UNITS = Kind.STEP, Kind.BATCH
_REGIONS = Kind.EPOCH, Kind.EVALUATION
_WORK = Kind.PHASE, Kind.LOAD, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER


def shape(tree: Tree) -> None:
    """Change the scopes that cirron-sdk recorded to the canonical form."""
    _Sdk(tree).shape()


class _Sdk:
    """The scopes of a recording, and the decisions about them so far."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._kind: list[int] = tree.kind.tolist()
        is_container = tree.kind >= FIRST_CONTAINER
        self._holder: list[int] = tree.holders(is_container).tolist()
        self._region: list[int] = tree.holders(np.isin(tree.kind, _REGIONS)).tolist()
        self._recorded_parent: list[int] = tree.parent.tolist()
        self._candidates = tree.rows_of(*_UNITS)
        self._regions = tree.rows_of(*_REGIONS)
        self._evaluations = self._find_evaluations()
        self._wrapped: dict[int, list[int]] = {}
        """The units inside each scope that is dissolved because of them."""

    def shape(self) -> None:
        """Change the tree."""
        tree = self._tree
        self._dissolve_evaluation_steps()
        units = self._units()
        self._arrange_units(units)
        self._arrange_regions(units)
        with_units = {tree.pid[row] for row in units}
        units += self._requests(with_units)
        with_units |= {tree.pid[row] for row in units}
        others = [row for row in tree.rows_of(Kind.OPTIMIZER) if tree.pid[row] not in with_units]
        others = [row for row in others if self._region[row] not in self._evaluations]
        units += scopes_with_one_update(tree, others)
        with_units |= {tree.pid[row] for row in units}
        for row in units:
            tree.name[row] = Kind.STEP
        for row in self._evaluations:
            tree.name[row] = Kind.EVALUATION
        loads = Loads(tree, self._holder, self._evaluations, self._wrapped)
        loads.place(units)
        add_units(tree, [row for row in others if tree.pid[row] not in with_units])
        add_evaluations(tree, self._is_outside(units))

    def _find_evaluations(self) -> set[int]:
        """Return the evaluations, and the epochs without an update in a process that has some."""
        tree, kind = self._tree, self._tree.kind
        region, holder = np.array(self._region, np.int64), self._region
        found = set(tree.rows_of(Kind.EVALUATION))
        updates = _counts(region[np.isin(kind, (Kind.OPTIMIZER, Kind.BACKWARD))])
        content = _counts(region[np.isin(kind, (Kind.LOAD, *_UNITS))])
        forwards = _counts(region[kind == Kind.FORWARD])
        around = {holder[row] for row in self._regions}
        trains = {tree.pid[row] for row in tree.rows_of(Kind.OPTIMIZER)}
        for row in self._regions:
            is_empty = not content[row] and not (forwards[row] and row not in around)
            if not updates[row] and not is_empty and tree.pid[row] in trains:
                found.add(row)
        return found

    def _dissolve_evaluation_steps(self) -> None:
        tree = self._tree
        for row in self._candidates:
            region = self._region[row]
            if region in self._evaluations:
                tree.into[row] = int(tree.id[region])

    def _around(self, row: int) -> int:
        """Return the step or batch that is the innermost container around one; -1 for none."""
        holder = self._holder[row]
        return holder if holder >= 0 and self._kind[holder] in _UNITS else -1

    def _units(self) -> list[int]:
        """Return the innermost steps and batches that contain phases; dissolve the others."""
        tree = self._tree
        is_content = tree.kind < FIRST_CONTAINER
        filled = set(np.array(self._holder, np.int64)[is_content].tolist())
        empty = set()
        candidates = [row for row in self._candidates if row not in tree.into]
        for row in candidates:
            outer = self._around(row)
            if outer < 0 or outer in tree.into or self._kind[outer] == self._kind[row]:
                continue
            if not (tree.is_timed(outer) and tree.start[row] <= tree.end[outer]):
                continue  # the outer one had ended
            if row in filled:
                self._wrapped.setdefault(outer, []).append(row)
            else:
                empty.add((row, outer))
        for outer, inner in self._wrapped.items():
            tree.into[outer] = int(tree.id[inner[0]])
        for row, outer in empty:
            if row not in tree.into:
                tree.into[row] = int(tree.id[outer])
        return [row for row in candidates if row not in tree.into]

    def _arrange_units(self, units: list[int]) -> None:
        """Make units inside each other siblings."""
        around = {row: self._around(row) for row in self._candidates}
        top = outermost(self._candidates, around)
        for row in units:
            self._tree.parent[row] = self._recorded_parent[top[row]]

    def _arrange_regions(self, units: list[int]) -> None:
        """Make epochs and evaluations inside each other siblings, or one."""
        tree = self._tree
        per_epoch = Counter(self._region[row] for row in units)
        containers = [row for row, kind in enumerate(self._kind) if kind >= FIRST_CONTAINER]
        top = outermost(containers, {row: self._holder[row] for row in containers})
        is_unit = set(units)
        epochs = [row for row in self._regions if row not in self._evaluations]
        for row in epochs:
            outer = self._region[row]
            is_wrapper = (
                outer >= 0 and outer not in self._evaluations and not per_epoch[outer]
                and tree.start[row] < tree.end[outer]
            )  # fmt: skip
            if is_wrapper:
                tree.into[row] = int(tree.id[outer])
                continue
            self._end_regions_around(row)
            if self._holder[row] >= 0:
                tree.parent[row] = self._recorded_parent[top[row]]
        self._end_last_evaluations()
        for row in sorted(self._evaluations, key=lambda each: (tree.start[each], each)):
            self._arrange_evaluation(row, top[row], is_unit)

    def _above(self, row: int) -> list[int]:
        """Return the epochs and evaluations around a scope, the innermost first; at most 64."""
        found: list[int] = []
        while (row := self._region[row]) >= 0 and len(found) < MOST_LEVELS and row not in found:
            found.append(row)
        return found

    def _end_regions_around(self, epoch: int) -> None:
        """End the epochs and evaluations that were still open at the start of another epoch."""
        tree = self._tree
        begun = tree.start[epoch]
        for row in self._above(epoch):
            if ABSENT not in (begun, tree.end[row]) and tree.start[row] <= begun < tree.end[row]:
                tree.end[row] = begun

    def _end_last_evaluations(self) -> None:
        """End epochs that were still open when their process ended with the last scope inside."""
        tree = self._tree
        last: dict[int, int] = {}
        inside: dict[int, int] = {}
        for row in np.flatnonzero(np.isin(tree.kind, _WORK)).tolist():
            end, pid, region = tree.end[row], tree.pid[row], self._region[row]
            last[pid] = max(end, last.get(pid, ABSENT))
            inside[region] = max(end, inside.get(region, ABSENT))
        for row in self._evaluations:
            if self._kind[row] == Kind.EPOCH and tree.end[row] >= last.get(tree.pid[row], ABSENT):
                tree.end[row] = max(inside.get(row, tree.end[row]), tree.start[row])

    def _arrange_evaluation(self, row: int, top: int, units: set[int]) -> None:
        tree, holder, begun = self._tree, self._holder[row], self._tree.start[row]
        above = self._above(row)
        if above and above[0] in self._evaluations and begun < tree.end[above[0]]:
            tree.into[row] = int(tree.id[above[0]])
            return
        if holder < 0 or (holder in units and begun < tree.end[holder]):
            return
        epochs = (each for each in above if each not in self._evaluations)
        for epoch in islice(epochs, MOST_LEVELS):
            if tree.start[epoch] <= begun < tree.end[epoch]:
                tree.parent[row] = tree.id[epoch]
                return
        tree.parent[row] = self._recorded_parent[top]

    def _requests(self, with_units: set[int]) -> list[int]:
        """Return the requests of processes that have no other units."""
        kind = self._kind
        return [
            row
            for row in self._tree.rows_of(Kind.REQUEST)
            if self._tree.pid[row] not in with_units
            and (self._holder[row] < 0 or kind[self._holder[row]] != Kind.REQUEST)
        ]

    def _is_outside(self, units: list[int]) -> set[int]:
        """Return the forward passes that are neither in a unit nor in an evaluation."""
        inside = {*units, *self._evaluations, *self._tree.into}
        return {row for row in self._tree.rows_of(Kind.FORWARD) if self._holder[row] not in inside}


def _counts(rows: np.ndarray) -> Counter[int]:
    return Counter(rows.tolist())
