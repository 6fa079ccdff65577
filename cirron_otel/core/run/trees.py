"""The scope trees of a recording, rebuilt for display: nesting, durations and marks.

Records refer to each other across files, and some are never written: if a process dies while a
scope is open, the spool contains only the scope's children. A placeholder, a node that is not
recorded, then represents the scope.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import InputError
from ...ids import is_id
from ..spool.reader import BatchFile
from .figures.series import value_of
from .load.scopes import Scopes
from .relations import ABSENT, SUMS, known

UNLIMITED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """The limits of the displayed part of a recording; everything beyond them is only counted."""

    spans: int = 10_000
    """In total, breadth first: the upper levels of a large tree are shown."""
    children: int = 1_000
    """Per node, in order of start."""
    marks: int = 100
    """Per node, in order of time."""
    depth: int = 64
    """Levels; recording itself stops at 64."""


@dataclass(slots=True)
class MarkNode:
    """A mark with its value as text."""

    name: str | None
    value: str | None
    kind: str | None
    ts_ns: int | None


@dataclass(slots=True)
class TreeNode:
    """A scope with its marks and children; if `recorded` is false, only its id is known."""

    id: str | None
    recorded: bool = True
    name: str | None = None
    index: str | None = None
    """The index as text, since it may have any type."""
    start_ns: int | None = None
    duration_ns: int | None = None
    """None if unknown; negative if the scope ends before it starts."""
    rank: int | None = None
    pid: int | None = None
    thread_id: int | None = None
    session: str | None = None
    error: str | None = None
    """The status message if the scope failed or was closed as incomplete."""
    phases_are_sums: bool = False
    """Whether the positions of the children are unknown: only their durations were recorded."""
    marks: list[MarkNode] = field(default_factory=list)
    marks_left_out: int = 0
    snapshots: int = 0
    children: list[TreeNode] = field(default_factory=list)
    children_left_out: int = 0
    """The number of direct children beyond the limits, which are left out with their subtrees."""

    def to_json(self) -> dict[str, Any]:
        """Return the node and its subtree as a JSON object."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["marks"] = [_mark_json(mark) for mark in self.marks]
        fields["children"] = [child.to_json() for child in self.children]
        if not self.phases_are_sums:
            del fields["phases_are_sums"]
        return fields


@dataclass(slots=True)
class Forest:
    """All trees of a recording, in order of start."""

    trees: list[TreeNode]
    spans: int
    """The number of spans in the recording, or in the requested session."""
    shown: int
    trees_left_out: int
    """The number of trees beyond the limit; spans whose parents form a cycle are in no tree."""
    marks_unattached: list[MarkNode]
    """Marks created outside every session (`root`), in order of time, up to the limit."""

    def to_json(self) -> dict[str, Any]:
        """Return the forest as a JSON object."""
        return {
            "spans": self.spans,
            "shown": self.shown,
            "trees_left_out": self.trees_left_out,
            "trees": [tree.to_json() for tree in self.trees],
            "marks_unattached": [_mark_json(mark) for mark in self.marks_unattached],
        }


def _mark_json(mark: MarkNode) -> dict[str, Any]:
    return {name: getattr(mark, name) for name in MarkNode.__slots__}


def build_trees(
    batches: Iterable[BatchFile], *, session: str | None = None, limits: TreeLimits | None = None
) -> Forest:
    """Rebuild the trees of a spool within `limits`.

    With `session` (an id), only the trees of that session are built. Raises InputError if there is
    no such session.
    """
    trees = Trees(Scopes(batches, once=False), limits or TreeLimits(), session)
    return trees.forest(trees.grown(trees.roots(trees.limits.spans)))


class Trees:
    """Builds the nodes of trees within limits, each scope at most once.

    `children` and `marks` of the yielded nodes are empty: the methods of those names yield them, so
    that a traversal of all trees takes constant memory.
    """

    def __init__(self, scopes: Scopes, limits: TreeLimits, session: str | None = None) -> None:
        """Raises InputError if no session has the id `session`."""
        self.limits = limits
        self._scopes, self._session = scopes, session
        self._number: int | None = None
        if session is not None:
            keys = [each.key for each in scopes.sessions]
            if session not in keys:
                raise InputError(
                    f"no session {session!a} in this spool: `spool ls` lists its sessions"
                )
            self._number = keys.index(session)
        self._is_shown = bytearray(len(scopes.id))
        """Whether a scope has been shown, by its row: two scopes may have the same id."""
        self._shown = self._trees = 0

    def roots(self, limit: int) -> Iterator[TreeNode]:
        """Yield the topmost scopes in order of start, at most `limit`."""
        scopes = self._scopes
        roots = heapq.merge(self._tops(), self._mark_only(), key=lambda root: root[0])
        for _, row, number in itertools.islice(roots, limit):
            if row is not None and number < 0:
                yield from self.nodes([row])
                self._trees += 1
                continue
            session = None if row is None else self._session_of(row)
            self._trees += len(scopes.inside(number)) > 0
            yield self._with_snapshots(
                TreeNode(scopes.id_of(number), recorded=False, session=session), number
            )

    def _first_of_trees(self) -> np.ndarray:
        """Return the first scope of each tree: of all scopes with the same unrecorded parent."""
        scopes = self._scopes
        tops = scopes.tops
        if self._number is not None:
            tops = tops[scopes.session[tops] == self._number]
        starts, parents = scopes.column("start_ns")[tops], scopes.parent[tops]
        is_timed = starts != ABSENT
        trees = np.where(parents < 0, -1 - tops, parents)
        order = np.lexsort((starts, ~is_timed, trees))
        is_first = np.ones(len(order), bool)
        is_first[1:] = trees[order][1:] != trees[order][:-1]
        first: np.ndarray = tops[order[is_first]]
        return first

    def _tops(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield the start of each tree, its first scope, and the id of the unrecorded parent."""
        scopes, rows = self._scopes, self._first_of_trees()
        starts = scopes.column("start_ns")[rows]
        for row in rows[np.lexsort((rows, starts))].tolist():
            start = known(int(scopes.column("start_ns")[row]))
            yield start or 0, row, int(scopes.parent[row])

    def _mark_only(self) -> Iterator[tuple[int, None, int]]:
        """Yield the scopes for which only marks are recorded, and the time of the first one."""
        scopes = self._scopes
        numbers = np.unique(scopes.mark_scope[scopes.mark_rows])
        wanted = numbers[(numbers >= 0) & (numbers != scopes.number_of("root"))]
        if self._session is not None:
            wanted = wanted[wanted == scopes.number_of(self._session)]
        rows = scopes.rows
        is_other = ~np.isin(wanted, scopes.id[rows]) & ~np.isin(wanted, scopes.parent[rows])
        times = scopes.mark_column("ts_ns")
        found = []
        for number in wanted[is_other].tolist():
            on_it = times[scopes.marks_on(number)]
            on_it = on_it[on_it != ABSENT]
            at = int(on_it[0]) if len(on_it) else None
            found.append((at is not None, at or 0, _order(scopes.id_of(number)), number))
        yield from ((at, None, number) for _, at, _, number in sorted(found))

    def with_id(self, id_: str) -> Iterator[TreeNode]:
        """Yield the recorded scope with an id, if there is one."""
        return self.nodes(self._scopes.with_id(self._scopes.number_of(id_))[:1])

    def children(self, node: TreeNode, level: int) -> Iterator[TreeNode]:
        """Yield the children of a scope at `level` in order of start; roots are at level 1.

        Then the others beyond the limits are counted.
        """
        limit = max(min(self.limits.children, self.limits.spans - self._shown), 0)
        if level >= self.limits.depth:
            limit = 0
        rows = self._scopes.inside(self._scopes.number_of(node.id))
        count = 0
        for child in self.nodes(rows[:limit]):
            count += 1
            yield child
        if count >= limit or len(rows) > limit:  # some may have been shown before
            node.children_left_out = len(rows) - count

    def marks(self, node: TreeNode) -> Iterator[MarkNode]:
        """Yield the marks of a scope in order of time; then those beyond the limit are counted."""
        rows = self._scopes.marks_on(self._scopes.number_of(node.id))
        yield from self._mark_nodes(rows)
        node.marks_left_out = max(len(rows) - self.limits.marks, 0)

    def grown(self, roots: Iterable[TreeNode]) -> list[TreeNode]:
        """Return the roots with their subtrees."""
        trees = list(roots)
        queue = deque((root, 1) for root in trees)
        while queue:
            node, level = queue.popleft()
            node.marks = list(self.marks(node))
            node.children = list(self.children(node, level))
            queue.extend((child, level + 1) for child in node.children)
        return trees

    def forest(self, trees: list[TreeNode]) -> Forest:
        """Return trees with the counts of the nodes so far."""
        scopes = self._scopes
        rows = scopes.rows
        unattached = scopes.marks_on(scopes.number_of("root") if self._session is None else -1)
        return Forest(
            trees,
            len(rows)
            if self._number is None
            else int((scopes.session[rows] == self._number).sum()),
            self._shown,
            max(len(self._first_of_trees()) - self._trees, 0),
            list(self._mark_nodes(unattached)),
        )

    def nodes(self, rows: Iterable[int]) -> Iterator[TreeNode]:
        """Yield the scopes in some rows, except those that are already shown."""
        scopes, text = self._scopes, self._scopes.texts.text
        for row in rows:
            if self._is_shown[row]:
                continue
            self._is_shown[row] = True
            self._shown += 1
            name, index, start, end, rank, pid, thread, error, flags, *_ = scopes.values(row)
            yield self._with_snapshots(TreeNode(
                id=scopes.id_of(int(scopes.id[row])),
                name=text(name),
                index=text(index),
                start_ns=known(start),
                duration_ns=None if ABSENT in (start, end) else end - start,
                rank=known(rank),
                pid=known(pid),
                thread_id=known(thread),
                session=self._session_of(row),
                error=text(error),
                phases_are_sums=bool(flags & SUMS),
            ), int(scopes.id[row]))  # fmt: skip

    def _session_of(self, row: int) -> str | None:
        number = int(self._scopes.session[row])
        return None if number < 0 else self._scopes.sessions[number].key

    def _with_snapshots(self, node: TreeNode, number: int) -> TreeNode:
        node.snapshots = self._scopes.snapshots_on(number)
        return node

    def _mark_nodes(self, rows: np.ndarray) -> Iterator[MarkNode]:
        texts = self._scopes.texts
        for row in rows[: self.limits.marks]:
            name, kind, value, mark_kind, ts_ns = self._scopes.mark(row)
            yield MarkNode(
                texts.text(name), value_of(texts, kind, value), texts.text(mark_kind), known(ts_ns)
            )


def _order(id_: str | None) -> tuple[bool, bytes]:
    """Return the place of an id in the order of ids; other texts come first."""
    text = id_ or ""
    return is_id(text), text.encode("utf-8", "surrogatepass")


def scopes_of(tree: TreeNode) -> Iterator[tuple[int, TreeNode]]:
    """Yield a scope and its subtree with their levels from 0, parents first."""
    todo = [(0, tree)]
    while todo:
        level, node = todo.pop()
        yield level, node
        todo += [(level + 1, child) for child in reversed(node.children)]
