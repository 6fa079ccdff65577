"""The scope trees of a spool, rebuilt for display: nesting, durations and marks.

Records refer to each other across files, and some are never written: if a process dies while a
scope is open, the spool contains only the scope's children. A placeholder, a node that is not
recorded, then represents the scope.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...errors import InputError
from ..spool.reader import SpoolReader
from .index import SpoolIndex, id_of, key_of
from .sessions import assign_sessions


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """The limits of the displayed part of a spool; everything beyond them is only counted."""

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
        fields["marks"] = [
            {name: getattr(mark, name) for name in MarkNode.__slots__} for mark in self.marks
        ]
        fields["children"] = [child.to_json() for child in self.children]
        if not self.phases_are_sums:
            del fields["phases_are_sums"]
        return fields


@dataclass(slots=True)
class Forest:
    """All trees of a spool, in order of start."""

    trees: list[TreeNode]
    spans: int
    """The number of spans in the spool, or in the requested session."""
    shown: int
    trees_left_out: int
    """The number of trees beyond the limit; spans whose parents form a cycle are in no tree."""
    marks_unattached: list[MarkNode]
    """Marks created outside every session (`root`), in order of time, up to the limit."""

    def to_json(self) -> dict[str, Any]:
        """Return the forest as a JSON object."""
        unattached = [
            {name: getattr(mark, name) for name in MarkNode.__slots__}
            for mark in self.marks_unattached
        ]
        return {
            "spans": self.spans,
            "shown": self.shown,
            "trees_left_out": self.trees_left_out,
            "trees": [tree.to_json() for tree in self.trees],
            "marks_unattached": unattached,
        }


def build_trees(
    reader: SpoolReader, *, session: str | None = None, limits: TreeLimits | None = None
) -> Forest:
    """Rebuild the trees of a spool within `limits`.

    With `session` (an id), only the trees of that session are built. Memory is bounded by the
    limits, since the spool is indexed on disk.
    """
    with SpoolIndex().load(reader) as index:
        assign_sessions(index)
        return grown_trees(index, session=session, limits=limits or TreeLimits())


def grown_trees(index: SpoolIndex, *, session: str | None, limits: TreeLimits) -> Forest:
    """Build the trees of an index to which `assign_sessions` was applied."""
    return _Builder(index, limits).build(session)


def build_tree(index: SpoolIndex, span_id: str, limits: TreeLimits) -> TreeNode | None:
    """Return a recorded scope with its subtree, or None if no scope has that id.

    `assign_sessions` must have been applied to the index.
    """
    builder = _Builder(index, limits)
    trees = builder.grow(builder.of_id(span_id))
    return trees[0] if trees else None


_NODE = """
SELECT span.no, span.id, name, idx, span.start_ns, span.end_ns, rank, span.pid, thread_id,
    session.key, span.error, span.phases_are_sums
FROM span LEFT JOIN member ON member.no = span.no LEFT JOIN session ON session.no = member.session
"""
_BY_NUMBER = _NODE + " WHERE span.no = ?"
_BY_ID = _NODE + " WHERE span.id = ? LIMIT 1"
_CHILDREN = _NODE + " WHERE span.parent = ? ORDER BY span.start_ns, span.no LIMIT ?"
# Spans without a recorded parent: individually, or grouped by the unrecorded parent they name.
_ROOTS = """
SELECT min(span.start_ns) AS at, CASE WHEN parent IS NULL THEN span.no END, parent, key
FROM top JOIN span ON span.no = top.no JOIN session ON session.no = top.session
WHERE ?1 IS NULL OR top.session = ?1
GROUP BY coalesce(parent, span.no) ORDER BY at, span.no LIMIT ?2
"""
_COUNT_ROOTS = """
SELECT count(DISTINCT coalesce(parent, span.no)) FROM top JOIN span USING (no)
WHERE ?1 IS NULL OR session = ?1
"""
# Scopes for which only marks are recorded.
_MARK_ONLY = """
SELECT min(ts_ns) AS at, NULL, span, NULL FROM mark
WHERE span != ?1 AND (?2 IS NULL OR span = ?2)
    AND NOT EXISTS (SELECT 1 FROM span WHERE id = mark.span)
    AND NOT EXISTS (SELECT 1 FROM span WHERE parent = mark.span)
GROUP BY span ORDER BY at LIMIT ?3
"""
_MARKS = "SELECT name, value, kind, ts_ns FROM mark WHERE span = ? ORDER BY ts_ns, no LIMIT ?"


class Walk:
    """A traversal of all trees of a spool, scope by scope, in constant memory.

    `children` and `marks` of the yielded scopes are empty; call the methods of those names instead.
    """

    def __init__(self, index: SpoolIndex, *, session: str | None, depth: int, trees: int) -> None:
        """Prepare the traversal of an index to which `assign_sessions` was applied.

        At most `trees` trees are visited. Raises InputError if no session has the id `session`.
        """
        self._session = session
        self._builder = _Builder(index, TreeLimits(spans=trees, depth=depth))
        self._number = self._builder.session_number(session)
        self._shown_trees = 0
        self._has_snapshots = bool(index.one("SELECT EXISTS (SELECT 1 FROM snapshot)"))

    def roots(self) -> Iterator[TreeNode]:
        """Yield the topmost scopes in order of start."""
        for root, key in self._builder.roots(self._number, self._session):
            has_any = root.recorded or self._builder.count_children(key) > 0
            self._shown_trees += has_any
            yield self._with_snapshots(root, key)

    def children(self, node: TreeNode, level: int) -> Iterator[TreeNode]:
        """Yield the children of a scope at `level` in order of start; roots are at level 1."""
        key = key_of(node.id)
        if key is None:
            return
        if level >= self._builder.limits.depth:
            node.children_left_out = self._builder.count_children(key)
            return
        rows = self._builder.index.rows(_CHILDREN, key, -1)
        for child, child_key in self._builder.nodes(rows):
            yield self._with_snapshots(child, child_key)

    def marks(self, node: TreeNode) -> Iterator[MarkNode]:
        """Yield all marks of a scope in order of time."""
        for row in self._builder.index.rows(_MARKS, key_of(node.id), -1):
            yield MarkNode(*row)

    def forest(self) -> Forest:
        """Return the counts of the visited scopes, without the trees."""
        return self._builder.forest([], self._shown_trees, self._session)

    def _with_snapshots(self, node: TreeNode, key: bytes | None) -> TreeNode:
        if self._has_snapshots:
            node.snapshots = self._builder.count_snapshots(key)
        return node


class _Builder:
    """Builds the nodes, breadth first, until the limit is reached."""

    def __init__(self, index: SpoolIndex, limits: TreeLimits) -> None:
        self.index = index
        self.limits = limits
        self.shown = 0
        self._is_shown = bytearray((index.one("SELECT max(no) FROM span") or 0) + 1)
        """Whether a span has been shown, by span number: two spans may share an id."""

    def build(self, session: str | None) -> Forest:
        number = self.session_number(session)
        trees = self.grow(self.roots(number, session))
        shown = sum(bool(t.recorded or t.children or t.children_left_out) for t in trees)
        return self.forest(trees, shown, session)

    def forest(self, trees: list[TreeNode], shown_trees: int, session: str | None) -> Forest:
        """Return the trees with the counts of the nodes built so far."""
        number = self.session_number(session)
        return Forest(
            trees=trees,
            trees_left_out=max(0, self.index.one(_COUNT_ROOTS, number) - shown_trees),
            spans=self._count(number),
            shown=self.shown,
            marks_unattached=[] if session else self._marks(key_of("root")),
        )

    def grow(self, roots: Iterator[tuple[TreeNode, bytes | None]]) -> list[TreeNode]:
        """Return the roots with their subtrees."""
        queue: deque[tuple[TreeNode, bytes | None, int]] = deque()
        trees = []
        for root, key in roots:
            trees.append(root)
            queue.append((root, key, 1))
        while queue:
            node, key, level = queue.popleft()
            self._fill(node, key)
            queue.extend((*child, level + 1) for child in self._children(node, key, level))
        return trees

    def of_id(self, span_id: str) -> Iterator[tuple[TreeNode, bytes | None]]:
        """Yield the recorded scope with the id `span_id`, if there is one."""
        return self.nodes(self.index.rows(_BY_ID, key_of(span_id)))

    def session_number(self, session: str | None) -> int | None:
        """Return the session's number in the index. Raises InputError if no session has this id."""
        if session is None:
            return None
        number: int | None = self.index.one("SELECT no FROM session WHERE key = ?", key_of(session))
        if number is None:
            raise InputError(f"no session {session!a} in this spool: `spool ls` lists its sessions")
        return number

    def roots(
        self, number: int | None, session: str | None
    ) -> Iterator[tuple[TreeNode, bytes | None]]:
        """Yield the topmost scopes in order of start, up to the limits."""
        limit = self.limits.spans
        session_key = None if session is None else key_of(session)
        rows = heapq.merge(
            self.index.rows(_ROOTS, number, limit),
            self.index.rows(_MARK_ONLY, key_of("root"), session_key, limit),
            key=lambda row: row[0] or 0,
        )
        for _, span, parent, key in itertools.islice(rows, limit):
            if span is not None:
                yield from self.nodes(self.index.rows(_BY_NUMBER, span))
            else:
                session_id = None if key is None else id_of(key)
                yield TreeNode(id_of(parent), recorded=False, session=session_id), parent

    def nodes(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[TreeNode, bytes | None]]:
        """Yield the scopes in `rows`, except those that are already shown."""
        for (
            number,
            key,
            name,
            index,
            start_ns,
            end_ns,
            rank,
            pid,
            thread_id,
            session,
            error,
            phases_are_sums,
        ) in rows:
            if self._is_shown[number]:
                continue
            self._is_shown[number] = True
            self.shown += 1
            node = TreeNode(
                id=None if key is None else id_of(key),
                name=name,
                index=index,
                start_ns=start_ns,
                duration_ns=None if None in (start_ns, end_ns) else end_ns - start_ns,
                rank=rank,
                pid=pid,
                thread_id=thread_id,
                session=None if session is None else id_of(session),
                error=error,
                phases_are_sums=bool(phases_are_sums),
            )
            yield node, key

    def _children(
        self, node: TreeNode, key: bytes | None, level: int
    ) -> list[tuple[TreeNode, bytes | None]]:
        """Return the children of a node up to the limits; count the rest."""
        limit = min(self.limits.children, self.limits.spans - self.shown)
        if level >= self.limits.depth or key is None:
            limit = 0
        children = list(self.nodes(self.index.rows(_CHILDREN, key, limit))) if limit > 0 else []
        node.children = [child for child, _ in children]
        if len(children) >= limit:
            node.children_left_out = self.count_children(key) - len(children)
        return children

    def count_children(self, key: bytes | None) -> int:
        """Return the number of recorded scopes with this key as their parent."""
        return int(self.index.one("SELECT count(*) FROM span WHERE parent = ?", key))

    def _fill(self, node: TreeNode, key: bytes | None) -> None:
        """Add a node's marks and the number of its snapshots."""
        node.marks = self._marks(key)
        if len(node.marks) >= self.limits.marks:
            total = self.index.one("SELECT count(*) FROM mark WHERE span = ?", key)
            node.marks_left_out = total - len(node.marks)
        node.snapshots = self.count_snapshots(key)

    def count_snapshots(self, key: bytes | None) -> int:
        """Return the number of snapshots of the scope with this key."""
        return int(self.index.one("SELECT count(*) FROM snapshot WHERE span = ?", key))

    def _marks(self, key: bytes | None) -> list[MarkNode]:
        rows = self.index.rows(_MARKS, key, self.limits.marks)
        return [MarkNode(*row) for row in rows]

    def _count(self, number: int | None) -> int:
        query = "SELECT count(*) FROM member WHERE session = ?1"
        if number is None:
            return int(self.index.one("SELECT count(*) FROM span"))
        return int(self.index.one(query, number))
