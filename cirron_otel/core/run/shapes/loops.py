"""Units and evaluations of loops that are recorded without a scope for each turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .tree import FIRST_CONTAINER, Kind, Tree, by_lane

_PARTS = Kind.PHASE, Kind.LOAD, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER


def scopes_with_one_update(tree: Tree, optimizers: Sequence[int]) -> list[int]:
    """Return the scopes directly around optimizer steps, if each contains exactly one.

    They are the units of a loop whose turns have a scope with a name of the user's.
    """
    around = [int(tree.above[row]) for row in optimizers]
    is_one_each = len(set(around)) == len(around)
    is_own = all(row >= 0 and tree.kind[row] in (Kind.OTHER, Kind.PHASE) for row in around)
    return around if is_one_each and is_own and len(around) > 1 else []


def add_units(tree: Tree, optimizers: Sequence[int]) -> None:
    """Add a unit for each optimizer step, from the first phase after the previous one."""
    numbers: Counter[int] = Counter()
    turns = [
        (each, parent)
        for parent, lane in _lanes(tree, {int(tree.parent[row]) for row in optimizers})
        for each in _turns(tree, lane)
    ]
    lengths = Counter(len(each) for each, _ in turns if not _evaluates(tree, each))
    usual = lengths.most_common(1)[0][0] if lengths else 0
    for rows, parent in sorted(turns, key=lambda each: tree.start[each[0][0]]):
        first = _end_of_evaluation(tree, rows, usual)
        if first:
            _add_evaluation(tree, rows[:first], parent)
        unit = rows[first:]
        pid = tree.pid[unit[0]]
        _wrap(tree, Kind.STEP, unit, parent, numbers[pid])
        numbers[pid] += 1


def add_evaluations(tree: Tree, outside: set[int]) -> None:
    """Add an evaluation around forward passes in the mode for evaluation that are `outside` others.

    These are forward passes beside units, and the loads between them.
    """
    is_added = tree.parent >= tree.ids
    wanted = {row for row in outside & tree.in_eval_mode if not is_added[row]}
    separators = {*np.flatnonzero(tree.kind >= FIRST_CONTAINER).tolist(), *tree.name}
    for parent, lane in _lanes(tree, {int(tree.parent[row]) for row in wanted}, separators):
        rows: list[int] = []
        for row in [*lane, -1]:
            if row >= 0 and tree.kind[row] < FIRST_CONTAINER and row not in separators:
                rows.append(row)
                continue
            _add_evaluation(tree, rows, parent)
            rows = []


def _lanes(
    tree: Tree, parents: set[int], others: Iterable[int] = ()
) -> Iterator[tuple[int, list[int]]]:
    """Yield the parents with the scopes of each thread directly inside them.

    These are phases and own scopes, and those of `others`.
    """
    if not parents:
        return
    is_wanted = np.isin(tree.parent, list(parents)) & (tree.kind < FIRST_CONTAINER)
    is_wanted &= tree.kind != Kind.SESSION
    rows = {*np.flatnonzero(is_wanted).tolist()}
    rows |= {row for row in others if int(tree.parent[row]) in parents}
    inside: dict[int, list[int]] = defaultdict(list)
    for row in sorted(rows):
        if tree.is_timed(row) and row not in tree.into:
            inside[int(tree.parent[row])].append(row)
    for parent, scopes in inside.items():
        for lane in by_lane(tree, scopes):
            yield parent, lane


def _turns(tree: Tree, lane: Iterable[int]) -> Iterator[list[int]]:
    """Yield the scopes up to each optimizer step, from the first phase on."""
    rows: list[int] = []
    for row in lane:
        if rows or tree.kind[row] in _PARTS:
            rows.append(row)
            if tree.kind[row] == Kind.OPTIMIZER:
                yield rows
                rows = []


def _evaluates(tree: Tree, rows: Iterable[int]) -> bool:
    return not tree.in_eval_mode.isdisjoint(rows)


def _end_of_evaluation(tree: Tree, rows: Sequence[int], usual: int) -> int:
    """Return the number of scopes of an evaluation ahead of a unit, in which `usual` are usual.

    The modules of an evaluation that have no mode of their own, such as a loss, are in the mode for
    training; a unit is therefore at most as long as most units.
    """
    evaluated = [place for place, row in enumerate(rows) if row in tree.in_eval_mode]
    if not evaluated:
        return 0
    return max(evaluated[-1] + 1, len(rows) - usual if usual else 0)


def _add_evaluation(tree: Tree, rows: Sequence[int], parent: int) -> None:
    """Add an evaluation around scopes if a forward pass among them evaluates."""
    places = [
        place for place, row in enumerate(rows) if tree.kind[row] in (Kind.LOAD, Kind.FORWARD)
    ]
    if places and _evaluates(tree, rows):
        _wrap(tree, Kind.EVALUATION, rows[places[0] : places[-1] + 1], parent, None)


def _wrap(tree: Tree, kind: Kind, rows: Sequence[int], parent: int, index: int | None) -> None:
    """Add a scope around others, whose loads begin with their fetches."""
    begun = tree.start[rows[0]]
    for row in rows:
        if row in tree.load_ns and tree.kind[row] == Kind.LOAD:
            tree.start[row] = min(tree.start[row], tree.end[row] - tree.load_ns[row])
            begun = min(begun, tree.start[row])
    id_ = tree.add(kind, begun, max(tree.end[row] for row in rows), parent, rows[0], index)
    for row in rows:
        tree.parent[row] = id_
