"""The time of loading, which cirron-sdk records as the attribute `data_load_ns`.

The attribute is the time of a fetch that has ended: at the end of a scope `data_load`, or at the
start of a step or a batch. The same fetch may be on both, so intervals are united.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ..relations import ABSENT
from .tree import FIRST_CONTAINER, AddedScope, Kind, Tree, by_lane

_Interval: TypeAlias = tuple[int, int]


class Loads:
    """Gives each interval of loading to the unit or the evaluation that it is for."""

    def __init__(
        self,
        tree: Tree,
        holder: Sequence[int],
        evaluations: set[int],
        wrapped: Mapping[int, list[int]],
    ) -> None:
        """`holder` has the innermost container around each scope.

        `wrapped` has the units in the scopes that are dissolved because of them.
        """
        self._tree, self._holder = tree, holder
        self._evaluations, self._wrapped = evaluations, wrapped
        self._row_of = {
            int(tree.id[row]): row
            for row in range(len(holder))
            if tree.kind[row] >= FIRST_CONTAINER
        }

    def place(self, units: Sequence[int]) -> None:
        """Place all intervals. Units start with the first interval that is for them."""
        tree, is_unit = self._tree, set(units)
        rows_of: dict[int, list[int]] = defaultdict(list)
        beside: dict[int, list[int]] = defaultdict(list)
        for row in tree.rows_of(Kind.LOAD):
            owner = self._owner(row, is_unit)
            if owner >= 0:
                rows_of[owner].append(row)
            elif tree.is_timed(row):
                beside[int(tree.parent[row])].append(row)
        self._feed(beside, units, rows_of)
        sources: dict[int, list[int]] = defaultdict(list)
        for row in tree.load_ns:
            if tree.kind[row] >= FIRST_CONTAINER and tree.start[row] != ABSENT:
                sources[self._resolved(row)].append(row)
        for lane in by_lane(tree, units):
            before = ABSENT
            for unit in lane:
                end = tree.end[unit]
                if tree.is_timed(unit):
                    self._place_in_unit(unit, rows_of.get(unit, ()), sources.get(unit, ()), before)
                before = max(before, end)
        for evaluation in self._evaluations:
            self._place_in_evaluation(evaluation, rows_of.get(evaluation, ()))

    def _resolved(self, row: int) -> int:
        """Return the unit or evaluation that a container is, or belongs to; -1 for others."""
        for _ in range(len(Kind)):
            id_ = self._tree.into.get(row)
            if id_ is None:
                break
            row = self._row_of.get(id_, -1)
        return row

    def _owner(self, row: int, units: set[int]) -> int:
        """Return the unit or evaluation that a load is inside of; -1 for none."""
        tree, holder = self._tree, self._holder[row]
        if holder in self._wrapped:
            inner = self._wrapped[holder]
            at = bisect.bisect_left(inner, tree.end[row], key=lambda unit: tree.start[unit])
            return inner[min(at, len(inner) - 1)]
        if holder >= 0:
            holder = self._resolved(holder)
        if holder in units:
            has_ended = tree.is_timed(holder) and tree.start[row] > tree.end[holder]
            return -1 if has_ended else holder
        return holder if holder in self._evaluations else -1

    def _feed(
        self,
        beside: Mapping[int, list[int]],
        units: Iterable[int],
        rows_of: Mapping[int, list[int]],
    ) -> None:
        """Give each load beside units to the next unit, unless a forward pass comes first."""
        tree = self._tree
        by_parent: dict[int, list[int]] = defaultdict(list)
        is_unit = set(units)
        others = (*units, *tree.rows_of(Kind.FORWARD, Kind.EVALUATION), *self._evaluations)
        for row in others:
            parent = int(tree.parent[row])
            if parent in beside and tree.start[row] != ABSENT:
                by_parent[parent].append(row)
        for parent, loads in beside.items():
            for lane in by_lane(tree, [*loads, *set(by_parent[parent])]):
                waiting: list[int] = []
                ended = ABSENT
                for row in lane:
                    if tree.kind[row] == Kind.LOAD:
                        tree.start[row], _ = self._interval(row, min(ended, tree.start[row]))
                        waiting.append(row)
                        continue
                    if row in is_unit:
                        rows_of[row].extend(waiting)
                    waiting, ended = [], tree.end[row]

    def _interval(self, row: int, first_ns: int) -> _Interval:
        tree = self._tree
        start, end = tree.start[row], tree.end[row]
        start = min(start, end - tree.load_ns.get(row, 0))
        return min(max(start, first_ns), end), end

    def _place_in_unit(
        self, unit: int, rows: Sequence[int], sources: Iterable[int], first_ns: int
    ) -> None:
        """Set the times of the loads of a unit; `first_ns` is the end of the unit before it."""
        tree = self._tree
        begun, id_ = tree.start[unit], int(tree.id[unit])
        first_ns = min(first_ns, begun)
        rows = [row for row in rows if tree.is_timed(row)]
        beside = [row for row in rows if tree.end[row] <= begun]
        intervals = [
            (max(tree.start[row] - tree.load_ns[row], min(first_ns, tree.start[row])),
             tree.start[row])
            for row in sources
        ]  # fmt: skip
        if not intervals and not beside and not any(row in tree.load_ns for row in rows):
            return
        united = _united([*intervals, *(self._interval(row, first_ns) for row in rows)])
        for row, (start, end) in zip(rows, united, strict=False):
            tree.start[row], tree.end[row] = start, end
            if self._holder[row] != unit:
                tree.parent[row] = id_
        for row in rows[len(united) :]:
            tree.into[row] = id_
        tree.added += [
            AddedScope(Kind.LOAD, start, end, id_, unit) for start, end in united[len(rows) :]
        ]
        tree.start[unit] = min(begun, united[0][0])

    def _place_in_evaluation(self, evaluation: int, rows: Iterable[int]) -> None:
        tree = self._tree
        for row in rows:
            if tree.is_timed(row):
                tree.start[row], _ = self._interval(row, tree.start[evaluation])


def _united(intervals: Iterable[_Interval]) -> list[_Interval]:
    """Return the intervals in order; those that overlap or touch are one."""
    found: list[_Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
