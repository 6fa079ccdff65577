"""The scopes of a recording as columns that a shape changes.

A scope is identified by its row, an id by its number; -1 is a missing scope or id. Columns are
lists where a rule reads single scopes, and arrays where it reads all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from ..accounts import PHASES, account_of
from ..relations import ABSENT


class Kind(IntEnum):
    """The meaning of a scope, by its name."""

    OTHER = 0
    PHASE = 1
    LOAD = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    SESSION = 6
    EPOCH = 7
    STEP = 8
    BATCH = 9
    REQUEST = 10
    EVALUATION = 11


_KINDS: Final[Mapping[str, Kind]] = {
    "data_load": Kind.LOAD, "forward": Kind.FORWARD, "backward": Kind.BACKWARD,
    "optimizer_step": Kind.OPTIMIZER, "cirron.session": Kind.SESSION, "epoch": Kind.EPOCH,
    "step": Kind.STEP, "batch": Kind.BATCH, "request": Kind.REQUEST,
}  # fmt: skip
FIRST_CONTAINER: Final = Kind.EPOCH
"""The kinds from this one on contain units, or are units or evaluations."""


def kind_of(name: str | None) -> Kind:
    """Return the kind of a scope with a name."""
    if name is None:
        return Kind.OTHER
    kind = _KINDS.get(name)
    if kind is not None:
        return kind
    if account_of(name) == "evaluation":
        return Kind.EVALUATION
    return Kind.PHASE if name in PHASES else Kind.OTHER


@dataclass(frozen=True, slots=True)
class AddedScope:
    """A scope that is not recorded."""

    kind: Kind
    """`STEP`, `EVALUATION` or `LOAD`."""
    start_ns: int
    end_ns: int
    parent: int
    """The number of its parent's id."""
    like: int
    """The row whose rank, process and thread it has."""
    id: int = -1
    """The number of its id."""
    index: int | None = None


@dataclass(slots=True)
class Tree:
    """The scopes, and the changes to them."""

    kind: np.ndarray
    """The kind of each scope."""
    id: np.ndarray
    parent: np.ndarray
    """The numbers of the ids of each scope and of its parent."""
    above: np.ndarray
    """The recorded scope around each scope."""
    start: list[int]
    end: list[int]
    """Unix ns, or `ABSENT`."""
    pid: list[int]
    lane: list[tuple[int, int]]
    """The process and the thread of each scope."""
    load_ns: Mapping[int, int]
    """The attribute `data_load_ns` of the scopes that have it."""
    in_eval_mode: frozenset[int]
    """The forward passes of models in the mode for evaluation."""
    ids: int
    """The number of ids; those of added scopes have the numbers from this one on."""
    into: dict[int, int] = field(default_factory=dict)
    """The scopes that are dissolved, each with the number of the id that its content belongs to."""
    name: dict[int, Kind] = field(default_factory=dict)
    """The new kinds of scopes: `STEP` for units, `EVALUATION`."""
    added: list[AddedScope] = field(default_factory=list)
    new_ids: int = 0
    """The number of added scopes that have an id."""

    def rows_of(self, *kinds: Kind) -> list[int]:
        """Return the rows of some kinds, by start and then by row."""
        found = np.flatnonzero(np.isin(self.kind, kinds)).tolist()
        return sorted(found, key=lambda row: (self.start[row], row))

    def is_timed(self, row: int) -> bool:
        """Return whether both times of a scope are recorded, in order."""
        return ABSENT not in (self.start[row], self.end[row]) and self.start[row] <= self.end[row]

    def add(
        self, kind: Kind, start_ns: int, end_ns: int, parent: int, like: int, index: int | None
    ) -> int:
        """Add a scope around others, and return the number of its id."""
        id_ = self.ids + self.new_ids
        self.new_ids += 1
        self.added.append(AddedScope(kind, start_ns, end_ns, parent, like, id_, index))
        return id_

    def holders(self, is_holder: np.ndarray) -> np.ndarray:
        """Return the innermost scope around each scope for which `is_holder` is true."""
        count = len(self.above)
        places = np.arange(count + 1)
        jump = np.append(np.where(self.above < 0, count, self.above), count)
        jump = np.where(np.append(is_holder, True), places, jump)
        for _ in range(count.bit_length() + 1):
            jump = jump[jump]
        found = jump[np.append(np.where(self.above < 0, count, self.above), count)][:count]
        is_found = np.append(is_holder, False)[found]
        return np.where(is_found & (found != places[:count]), found, -1)


def outermost(rows: Iterable[int], around: Mapping[int, int]) -> dict[int, int]:
    """Return the outermost scope around each row, itself included, by the scope around each.

    The rows of a cycle are their own outermost ones. The result does not depend on the order of
    `rows`.
    """
    found: dict[int, int] = {}
    for row in rows:
        path: dict[int, None] = {}
        above = row
        while above >= 0 and above not in found and above not in path:
            path[above] = None
            above = around.get(above, -1)
        if above in path:
            ring = list(path)[list(path).index(above) :]
            found.update(zip(ring, ring, strict=True))
        elif above < 0:
            above = next(reversed(path))
        top = found.get(above, above)
        for each in path:
            found.setdefault(each, top)
    return found


def by_lane(tree: Tree, rows: Iterable[int]) -> Iterator[list[int]]:
    """Yield the rows of each thread in order of their start."""
    lanes: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        lanes.setdefault(tree.lane[row], []).append(row)
    for lane in lanes.values():
        yield sorted(lane, key=lambda row: (tree.start[row], tree.end[row], row))
