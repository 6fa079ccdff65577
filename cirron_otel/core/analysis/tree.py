"""The scope trees of a spool, rebuilt for showing: who ran inside whom, how long, with which marks.

Records refer to each other across files, and some never come: a scope that was still open when its
process died has left children only. They hang on a placeholder, a node that is not recorded.
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
class Limits:
    """How much of a spool is shown: what is over the limit is counted instead."""

    spans: int = 10_000
    """In all, breadth first: of a large tree the upper levels are shown."""
    children: int = 1_000
    """Of one node, by start."""
    marks: int = 100
    """Of one node, by time."""
    depth: int = 64
    """Levels; recording itself stops at 64."""


@dataclass(slots=True)
class MarkNode:
    """A mark, its value as text."""

    name: str | None
    value: str | None
    kind: str | None
    ts_ns: int | None


@dataclass(slots=True)
class TreeNode:
    """A scope with what hangs on it; where `recorded` is false, only its id is known."""

    id: str | None
    recorded: bool = True
    name: str | None = None
    index: str | None = None
    """As text, for it may be anything."""
    start_ns: int | None = None
    duration_ns: int | None = None
    """None where it is not known; negative where it ends before it starts."""
    rank: int | None = None
    pid: int | None = None
    thread_id: int | None = None
    session: str | None = None
    error: str | None = None
    """What its status says where it failed, or was closed as incomplete."""
    marks: list[MarkNode] = field(default_factory=list)
    marks_left_out: int = 0
    snapshots: int = 0
    children: list[TreeNode] = field(default_factory=list)
    children_left_out: int = 0
    """Direct children over the limits, each with all below it."""

    def to_json(self) -> dict[str, Any]:
        """The node and all below it as a JSON object."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["marks"] = [
            {name: getattr(mark, name) for name in MarkNode.__slots__} for mark in self.marks
        ]
        fields["children"] = [child.to_json() for child in self.children]
        return fields


@dataclass(slots=True)
class Forest:
    """All trees of a spool, in order of start."""

    trees: list[TreeNode]
    spans: int
    """In the spool, or in the session that was asked for."""
    shown: int
    trees_left_out: int
    """Trees over the limit; spans whose parents form a circle are in no tree at all."""
    marks_unattached: list[MarkNode]
    """Marks made outside every session (`root`), by time and up to the limit."""

    def to_json(self) -> dict[str, Any]:
        """The forest as a JSON object."""
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
    reader: SpoolReader, *, session: str | None = None, limits: Limits | None = None
) -> Forest:
    """Rebuild the trees of a spool, or those of one `session` (an id), within `limits`.

    Memory is bounded by the limits: the spool itself is indexed on disk.
    """
    with SpoolIndex().load(reader) as index:
        assign_sessions(index)
        return grown_trees(index, session=session, limits=limits or Limits())


def grown_trees(index: SpoolIndex, *, session: str | None, limits: Limits) -> Forest:
    """`build_trees` of an index to which `assign_sessions` was applied."""
    return _Builder(index, limits).build(session)


def build_tree(index: SpoolIndex, span_id: str, limits: Limits) -> TreeNode | None:
    """A recorded scope and what is below it, of an index to which `assign_sessions` was applied.

    None where no scope of that id is recorded.
    """
    builder = _Builder(index, limits)
    found = builder.grow(builder.of_id(span_id))
    return found[0] if found else None


_NODE = """
SELECT span.no, span.id, name, idx, span.start_ns, span.end_ns, rank, span.pid, thread_id,
    session.key, span.error
FROM span LEFT JOIN member ON member.no = span.no LEFT JOIN session ON session.no = member.session
"""
_BY_NUMBER = _NODE + " WHERE span.no = ?"
_BY_ID = _NODE + " WHERE span.id = ? LIMIT 1"
_CHILDREN = _NODE + " WHERE span.parent = ? ORDER BY span.start_ns, span.no LIMIT ?"
# What no recorded span lies above: each for itself, or together below the parent they name.
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
# Scopes of which nothing came but marks.
_MARK_ONLY = """
SELECT min(ts_ns) AS at, NULL, span, NULL FROM mark
WHERE span != ?1 AND (?2 IS NULL OR span = ?2)
    AND NOT EXISTS (SELECT 1 FROM span WHERE id = mark.span)
    AND NOT EXISTS (SELECT 1 FROM span WHERE parent = mark.span)
GROUP BY span ORDER BY at LIMIT ?3
"""
_MARKS = "SELECT name, value, kind, ts_ns FROM mark WHERE span = ? ORDER BY ts_ns, no LIMIT ?"


class Walk:
    """All trees of a spool, scope by scope: what was passed is not kept.

    The scopes that it gives have no `children` and no `marks`.
    """

    def __init__(self, index: SpoolIndex, *, session: str | None, depth: int, trees: int) -> None:
        """`assign_sessions` was applied to the index; at most so many `trees` are given.

        Raises InputError if there is no such session.
        """
        self._session = session
        self._builder = _Builder(index, Limits(spans=trees, depth=depth))
        self._number = self._builder.session_number(session)
        self._shown_trees = 0
        self._has_snapshots = bool(index.one("SELECT EXISTS (SELECT 1 FROM snapshot)"))

    def roots(self) -> Iterator[TreeNode]:
        """The topmost scopes, in order of start."""
        for root, key in self._builder.roots(self._number, self._session):
            has_any = root.recorded or self._builder.count_children(key) > 0
            self._shown_trees += has_any
            yield self._with_snapshots(root, key)

    def children(self, node: TreeNode, level: int) -> Iterator[TreeNode]:
        """The children of a scope of that level, in order of start; roots are level 1."""
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
        """All marks of a scope, in order of time."""
        for row in self._builder.index.rows(_MARKS, key_of(node.id), -1):
            yield MarkNode(*row)

    def forest(self) -> Forest:
        """The counts of what was walked, without the trees."""
        return self._builder.forest([], self._shown_trees, self._session)

    def _with_snapshots(self, node: TreeNode, key: bytes | None) -> TreeNode:
        if self._has_snapshots:
            node.snapshots = self._builder.count_snapshots(key)
        return node


class _Builder:
    """Builds the nodes, breadth first, until the limit is reached."""

    def __init__(self, index: SpoolIndex, limits: Limits) -> None:
        self.index = index
        self.limits = limits
        self.shown = 0
        self._is_shown = bytearray((index.one("SELECT max(no) FROM span") or 0) + 1)
        """By number of the span: an id that two spans share must not show one twice."""

    def build(self, session: str | None) -> Forest:
        number = self.session_number(session)
        trees = self.grow(self.roots(number, session))
        shown = sum(bool(t.recorded or t.children or t.children_left_out) for t in trees)
        return self.forest(trees, shown, session)

    def forest(self, trees: list[TreeNode], shown_trees: int, session: str | None) -> Forest:
        """The trees, with the counts of what was built so far."""
        number = self.session_number(session)
        return Forest(
            trees=trees,
            trees_left_out=max(0, self.index.one(_COUNT_ROOTS, number) - shown_trees),
            spans=self._count(number),
            shown=self.shown,
            marks_unattached=[] if session else self._marks(key_of("root")),
        )

    def grow(self, roots: Iterator[tuple[TreeNode, bytes | None]]) -> list[TreeNode]:
        """The roots, with what is below them."""
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
        """The recorded scope of that id, if there is one."""
        return self.nodes(self.index.rows(_BY_ID, key_of(span_id)))

    def session_number(self, session: str | None) -> int | None:
        """Return the session's number in the index. Raises InputError if no session has this id."""
        if session is None:
            return None
        number: int | None = self.index.one("SELECT no FROM session WHERE key = ?", key_of(session))
        if number is None:
            raise InputError(
                f"no session {session!a} in this spool: `spool ls` lists those it holds"
            )
        return number

    def roots(
        self, number: int | None, session: str | None
    ) -> Iterator[tuple[TreeNode, bytes | None]]:
        """The topmost scopes in order of start, as many as the limits leave."""
        most = self.limits.spans
        asked = None if session is None else key_of(session)
        found = heapq.merge(
            self.index.rows(_ROOTS, number, most),
            self.index.rows(_MARK_ONLY, key_of("root"), asked, most),
            key=lambda row: row[0] or 0,
        )
        for _, span, parent, key in itertools.islice(found, most):
            if span is not None:
                yield from self.nodes(self.index.rows(_BY_NUMBER, span))
            else:
                session_id = None if key is None else id_of(key)
                yield TreeNode(id_of(parent), recorded=False, session=session_id), parent

    def nodes(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[TreeNode, bytes | None]]:
        """The scopes of these rows, without those that are shown already."""
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
            )
            yield node, key

    def _children(
        self, node: TreeNode, key: bytes | None, level: int
    ) -> list[tuple[TreeNode, bytes | None]]:
        """The children of a node, as many as the limits leave; the others are counted."""
        most = min(self.limits.children, self.limits.spans - self.shown)
        if level >= self.limits.depth or key is None:
            most = 0
        children = list(self.nodes(self.index.rows(_CHILDREN, key, most))) if most > 0 else []
        node.children = [child for child, _ in children]
        if len(children) >= most:
            node.children_left_out = self.count_children(key) - len(children)
        return children

    def count_children(self, key: bytes | None) -> int:
        """How many recorded scopes name the one of this key as their parent."""
        return int(self.index.one("SELECT count(*) FROM span WHERE parent = ?", key))

    def _fill(self, node: TreeNode, key: bytes | None) -> None:
        """Add what hangs on a node: its marks, and the number of its snapshots."""
        node.marks = self._marks(key)
        if len(node.marks) >= self.limits.marks:
            total = self.index.one("SELECT count(*) FROM mark WHERE span = ?", key)
            node.marks_left_out = total - len(node.marks)
        node.snapshots = self.count_snapshots(key)

    def count_snapshots(self, key: bytes | None) -> int:
        """How many snapshots hang on the scope of this key."""
        return int(self.index.one("SELECT count(*) FROM snapshot WHERE span = ?", key))

    def _marks(self, key: bytes | None) -> list[MarkNode]:
        rows = self.index.rows(_MARKS, key, self.limits.marks)
        return [MarkNode(*row) for row in rows]

    def _count(self, number: int | None) -> int:
        query = "SELECT count(*) FROM member WHERE session = ?1"
        if number is None:
            return int(self.index.one("SELECT count(*) FROM span"))
        return int(self.index.one(query, number))
