"""A tree drawn small: scopes that are alike become one line, with the median of their durations.

Alike are siblings of one name that hold the same; they become a line at the place of the first.
"""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..semconv import OVERHEAD_NS
from .spool_show import appendix, failure
from .text import count, duration, local_moment, numbers, printable

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from ..spool.tree import MarkNode, TreeNode

_INDEXES_SHOWN = 40
"""Characters."""


@dataclass(slots=True)
class Fold:
    """Scopes that are alike."""

    nodes: list[TreeNode]
    shape: Hashable
    each: int = 1
    """How many of them lie in each of what is folded around them."""
    children: list[Fold] = field(default_factory=list)

    @property
    def durations(self) -> list[int]:
        """Those that are known, ns."""
        return [node.duration_ns for node in self.nodes if node.duration_ns is not None]

    @property
    def median_ns(self) -> int | None:
        """Of the durations that are known."""
        known = self.durations
        return round(statistics.median(known)) if known else None

    @property
    def indexes(self) -> str | None:
        """`0-7, 12`; None where they have no numbers."""
        found = [node.index for node in self.nodes if node.index is not None]
        if not found:
            return None
        if all(index.isdecimal() and index.isascii() for index in found):
            text = numbers([int(index) for index in found])
        else:
            text = ", ".join(map(printable, dict.fromkeys(found)))
        return text if len(text) <= _INDEXES_SHOWN else text[: _INDEXES_SHOWN - 1] + "…"

    @property
    def marks(self) -> list[MarkNode]:
        """Of all of them, in their order, but the SDK's own."""
        return [mark for node in self.nodes for mark in node.marks if mark.name != OVERHEAD_NS]

    def to_json(self) -> dict[str, Any]:
        """The scopes, and what is folded below them, as a JSON object."""
        first = self.nodes[0]
        return {
            "name": first.name,
            "recorded": first.recorded,
            "error": first.error,
            "indexes": self.indexes,
            "times": len(self.nodes),
            "total_ns": sum(self.durations),
            "median_ns": self.median_ns,
            "marks": {mark.name: mark.value for mark in self.marks if mark.name is not None},
            "snapshots": sum(node.snapshots for node in self.nodes),
            "children": [child.to_json() for child in self.children],
            "children_left_out": _left_out(self.nodes),
        }


def fold(roots: Iterable[TreeNode]) -> list[Fold]:
    """Each tree by itself, folded."""
    return [_fold([root], 1, {}) for root in roots]


def _fold(nodes: list[TreeNode], parents: int, shapes: dict[int, Hashable]) -> Fold:
    """Nodes of one shape, which lie in so many `parents`."""
    columns = zip(*(_groups(node.children, shapes) for node in nodes), strict=True)
    return Fold(
        nodes,
        _shape(nodes[0], shapes),
        each=len(nodes) // parents,
        children=[
            _fold([each for group in column for each in group], len(nodes), shapes)
            for column in columns
        ],
    )


def _shape(node: TreeNode, shapes: dict[int, Hashable]) -> Hashable:
    """What scopes that are alike have in common; their numbers and times are not in it."""
    found = shapes.get(id(node))
    if found is None:
        below = [(_shape(group[0], shapes), len(group)) for group in _groups(node.children, shapes)]
        found = shapes[id(node)] = (
            node.recorded, node.name, node.index is None, node.error, node.rank,
            node.children_left_out > 0, tuple(below),
        )  # fmt: skip
    return found


def _groups(nodes: list[TreeNode], shapes: dict[int, Hashable]) -> list[list[TreeNode]]:
    """Siblings that become one line each, in the order of the first of them."""
    groups: dict[Hashable, list[TreeNode]] = {}
    for node in nodes:
        groups.setdefault(_shape(node, shapes), []).append(node)
    return list(groups.values())


def folded_trees(folds: Iterable[Fold]) -> Iterator[Tree]:
    """The folded trees for rich to draw."""
    from rich.tree import Tree

    for root in folds:
        tree = Tree(_label(root, None, is_root=True))
        todo = [(tree, root)]
        while todo:
            branch, parent = todo.pop()
            for child in parent.children:
                todo.append((branch.add(_label(child, parent.nodes[0].rank)), child))
            if parent.children and (more := _left_out(parent.nodes)):
                branch.add(f"… {more:,} more")
        yield tree


def _left_out(nodes: list[TreeNode]) -> int:
    return sum(node.children_left_out for node in nodes)


def _label(found: Fold, around: int | None, *, is_root: bool = False) -> Text:
    from rich.text import Text

    first, times = found.nodes[0], len(found.nodes)
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
    label.append(appendix(found.marks, sum(node.marks_left_out for node in found.nodes)), "green")
    if snapshots := sum(node.snapshots for node in found.nodes):
        label.append(f"  {count(snapshots, 'snapshot')}", "magenta")
    if not found.children and (more := _left_out(found.nodes)):
        label.append(f"  (+ {more:,} inside)", "dim")
    return label
