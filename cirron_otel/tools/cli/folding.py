"""Compact trees, in which equal scopes share one line with the median of their durations.

Siblings are equal if they have the same name and equal subtrees. Equal siblings are shown in the
line of the first of them.
"""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import itertools
import statistics
from array import array
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..present.formatting import (
    Marks,
    appendix,
    count,
    duration,
    failure,
    is_listed,
    local_moment,
    printable,
)

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from ...core.run.trees import MarkNode, TreeNode

_INDEXES_SHOWN = 40
"""The maximum length of the indexes in one line, in characters."""
_DIGITS = 18
_COMPACTED = 64
_INT64 = 2**63 - 1


class TooVariedError(Exception):
    """The folded trees have more lines than the limit."""


class ScopeSource(Protocol):
    """Access to the children and the marks of one scope at a time."""

    def children(self, node: TreeNode, level: int) -> Iterator[TreeNode]:
        """Yield the children of a scope at `level`, in order of start; roots are at level 1."""

    def marks(self, node: TreeNode) -> Iterable[MarkNode]:
        """Return the marks of a scope, in order of time."""


class _Memory:
    """A ScopeSource for scopes whose children and marks are in memory."""

    def children(self, node: TreeNode, level: int) -> Iterator[TreeNode]:
        del level
        return iter(node.children)

    def marks(self, node: TreeNode) -> Iterable[MarkNode]:
        return node.marks


class Indexes:
    """The distinct indexes of the scopes that share a line."""

    def __init__(self) -> None:
        """Start without indexes."""
        self._texts: dict[str, None] = {}
        """The first indexes, at least as many as fit in a line; the values are unused."""
        self._length = 0
        self._is_decimal = True
        self._ranges: list[tuple[int, int]] = []
        self._room = _COMPACTED

    def add(self, index: str) -> None:
        """Add an index, given as text."""
        self._add_text(index)
        if index.isdecimal() and index.isascii() and len(index) <= _DIGITS:
            self._extend([(int(index), int(index))])
        else:
            self._is_decimal = False

    def merge(self, other: Indexes) -> None:
        """Add the indexes of `other`, which come after the indexes so far."""
        for text in other._texts:
            self._add_text(text)
        self._is_decimal = self._is_decimal and other._is_decimal
        self._extend(other._ranges)

    def __str__(self) -> str:
        """Return text such as `0-7, 12` with at most 40 characters; "" if there are no indexes."""
        if self._is_decimal:
            shown = itertools.islice(_compact(self._ranges), _INDEXES_SHOWN)
            text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in shown)
        else:
            text = ", ".join(map(printable, self._texts))
        return text if len(text) <= _INDEXES_SHOWN else text[: _INDEXES_SHOWN - 1] + "…"

    def _add_text(self, text: str) -> None:
        if self._length <= _INDEXES_SHOWN and text not in self._texts:
            self._texts[text[: _INDEXES_SHOWN + 1]] = None
            self._length += len(text) + 2

    def _extend(self, ranges: list[tuple[int, int]]) -> None:
        if not self._is_decimal:
            self._ranges.clear()
            return
        self._ranges += ranges
        if len(self._ranges) > self._room:
            self._ranges = list(_compact(self._ranges))
            self._room = _COMPACTED + 2 * len(self._ranges)


def _compact(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges in order, with adjacent ranges joined."""
    current: tuple[int, int] | None = None
    for low, high in sorted(ranges):
        if current is not None and low <= current[1] + 1:
            current = (current[0], max(high, current[1]))
        else:
            if current is not None:
                yield current
            current = (low, high)
    if current is not None:
        yield current


class Fold:
    """A group of equal scopes, which share one line."""

    def __init__(self, first: TreeNode) -> None:
        """Start with the first scope of the group."""
        self.first = first
        self.shape = 0
        self.lines = 1
        """The number of lines of the subtree, including this one."""
        self.times = 1
        self.each = 1
        """The number of these scopes per scope of the parent's line."""
        self.children: list[Fold] = []
        self.children_left_out = 0
        self.snapshots = first.snapshots
        self.marks = Marks(first.marks_left_out)
        """The marks of all these scopes, in order, without the SDK's overhead mark."""
        self.total_ns = 0
        self._durations = array("q")
        self._indexes: Indexes | None = None
        if first.duration_ns is not None:
            self.total_ns = first.duration_ns
            self._durations.append(max(-_INT64, min(first.duration_ns, _INT64)))
        if first.index is not None:
            self._indexes = Indexes()
            self._indexes.add(first.index)

    def merge(self, other: Fold) -> None:
        """Add a later fold of the same shape."""
        self.times += other.times
        self.children_left_out += other.children_left_out
        self.snapshots += other.snapshots
        self.marks.merge(other.marks)
        self.total_ns += other.total_ns
        self._durations += other._durations
        if self._indexes is not None and other._indexes is not None:
            self._indexes.merge(other._indexes)
        for mine, others in zip(self.children, other.children, strict=True):
            mine.merge(others)

    @property
    def median_ns(self) -> int | None:
        """Return the median of the known durations."""
        return round(statistics.median(self._durations)) if self._durations else None

    @property
    def indexes(self) -> str | None:
        """Return text such as `0-7, 12`; None if the scopes have no index."""
        return None if self._indexes is None else str(self._indexes)

    def to_json(self) -> dict[str, Any]:
        """Return the scopes and their folded children as a JSON object."""
        return {
            "name": self.first.name,
            "recorded": self.first.recorded,
            "error": self.first.error,
            "indexes": self.indexes,
            "times": self.times,
            "total_ns": self.total_ns,
            "median_ns": self.median_ns,
            "marks": {name: value for name, value in self.marks.last.items() if name is not None},
            "snapshots": self.snapshots,
            "children": [child.to_json() for child in self.children],
            "children_left_out": self.children_left_out,
        }


def fold(
    roots: Iterable[TreeNode], source: ScopeSource | None = None, most: int | None = None
) -> list[Fold]:
    """Fold each tree separately.

    Without a `source`, the children and marks are read from the scopes themselves. Raises
    TooVariedError if more than `most` lines would be in memory at a time.
    """
    folding = _Folding(source or _Memory(), most)
    return [folding.tree(root) for root in roots]


class _Open(NamedTuple):
    """A scope whose children are being read."""

    fold: Fold
    children: Iterator[TreeNode]
    groups: dict[int, Fold]
    """The children that were read so far, by shape."""


class _Folding:
    def __init__(self, source: ScopeSource, most: int | None) -> None:
        self._source, self._most = source, most
        self._shapes: dict[Hashable, int] = {}
        self._lines = 0

    def tree(self, root: TreeNode) -> Fold:
        path = [self._open(root, 1)]
        while True:
            child = next(path[-1].children, None)
            if child is not None:
                path.append(self._open(child, len(path) + 1))
                continue
            done = self._close(path.pop())
            if not path:
                return done
            alike = path[-1].groups.setdefault(done.shape, done)
            if alike is not done:
                alike.merge(done)
                self._lines -= done.lines

    def _open(self, node: TreeNode, level: int) -> _Open:
        self._lines += 1
        if self._most is not None and self._lines > self._most:
            raise TooVariedError
        folded = Fold(node)
        for mark in self._source.marks(node):
            if is_listed(mark.name):
                folded.marks.add(mark)
        return _Open(folded, self._source.children(node, level), {})

    def _close(self, of: _Open) -> Fold:
        """Complete a scope with its children and its shape; equal scopes have the same shape."""
        folded, node = of.fold, of.fold.first
        folded.children = list(of.groups.values())
        folded.children_left_out = node.children_left_out
        for child in folded.children:
            child.each = child.times
            folded.lines += child.lines
        shape = (
            node.recorded, node.name, node.index is None, node.error, node.rank,
            node.children_left_out > 0,
            tuple((child.shape, child.times) for child in folded.children),
        )  # fmt: skip
        folded.shape = self._shapes.setdefault(shape, len(self._shapes))
        return folded


def folded_trees(folds: Iterable[Fold]) -> Iterator[Tree]:
    """Yield the folded trees for rich to draw."""
    from rich.tree import Tree

    for root in folds:
        tree = Tree(_label(root, None, is_root=True))
        todo = [(tree, root)]
        while todo:
            branch, parent = todo.pop()
            for child in parent.children:
                todo.append((branch.add(_label(child, parent.first.rank)), child))
            if parent.children and parent.children_left_out:
                branch.add(f"… {parent.children_left_out:,} more")
        yield tree


def _label(found: Fold, around: int | None, *, is_root: bool = False) -> Text:
    from rich.text import Text

    first, times = found.first, found.times
    label = Text(no_wrap=True, overflow="ellipsis")
    if first.recorded:
        label.append(printable(first.name if first.name is not None else "(no name)"), "bold")
    else:
        label.append(f"(not recorded) {printable(first.id or '')}", "yellow")
    if found.indexes is not None:
        label.append(f" {found.indexes}", "bold")
    elif found.each > 1:
        label.append(f" {found.each}×", "bold")
    if first.recorded:
        label.append(f"  {'median ' if times > 1 else ''}{duration(found.median_ns)}", "cyan")
    label.append(failure(first.error), "red")
    if is_root and first.start_ns is not None:
        label.append(f"  {local_moment(first.start_ns)}", "dim")
    if first.rank is not None and first.rank != around:
        label.append(f"  rank {first.rank}", "dim")
    label.append(appendix(found.marks), "green")
    if found.snapshots:
        label.append(f"  {count(found.snapshots, 'snapshot')}", "magenta")
    if not found.children and found.children_left_out:
        label.append(f"  (+ {found.children_left_out:,} inside)", "dim")
    return label
