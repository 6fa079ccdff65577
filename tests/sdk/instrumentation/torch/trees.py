"""Trees of scopes: as text, as a spool holds them, and what tells two of them apart."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.sessions import spool_trees

SESSION = spool_trees.SESSION
UNATTRIBUTED = "unattributed_ns"
MICRO_STEP = "micro_step"

_LINE = re.compile(
    r"(?P<indent>(?:  )*)(?P<name>[^\s\[\]{}!]+)(?:\[(?P<first>\d+)(?:-(?P<last>\d+))?\])?"
    r"(?P<error>!?)(?P<attrs>(?:\{[^{}]+\})*)(?: x(?P<times>\d+))?"
)


@dataclass
class Node:
    """A scope: what was expected of it, or what was recorded."""

    name: str
    index: int | None = None
    is_error: bool = False
    attrs: dict[str, Any] = field(default_factory=dict)
    """Of an expected scope: those that must be there, None for any value."""
    children: list[Node] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    """The span in the spool; empty of an expected scope."""

    @property
    def label(self) -> str:
        """Name, index and status, as a tree's text has them."""
        index = "" if self.index is None else f"[{self.index}]"
        return f"{self.name}{index}{'!' if self.is_error else ''}"

    def walk(self) -> Iterator[Node]:
        """Itself and all below, in order of the text."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse(text: str) -> Node:
    """The tree of a text; see `Loop.tree` for its form. Raises ValueError."""
    rows = []
    for line in filter(str.strip, text.splitlines()):
        found = _LINE.fullmatch(line.rstrip())
        if found is None:
            raise ValueError(f"no line of a tree: {line!r}")
        rows.append(found)
    nodes = _nodes(rows, 0)
    if len(nodes) != 1:
        raise ValueError(f"a tree has one root, not {len(nodes)}")
    return nodes[0]


def _nodes(rows: list[re.Match[str]], level: int) -> list[Node]:
    """The siblings of a block, each with what stands below it."""
    nodes: list[Node] = []
    if not rows:
        return nodes
    starts = [i for i, row in enumerate(rows) if len(row["indent"]) == 2 * level]
    if starts[:1] != [0]:
        raise ValueError(f"indented too far: {rows[0].group()!r}")
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        row = rows[start]
        children = _nodes(rows[start + 1 : end], level + 1)
        first, last = row["first"], row["last"] or row["first"]
        indices = [None] if first is None else list(range(int(first), int(last) + 1))
        for index in indices * int(row["times"] or 1):
            node = Node(row["name"], index, bool(row["error"]), _attrs(row["attrs"]))
            node.children = copy.deepcopy(children)
            nodes.append(node)
    return nodes


def _attrs(text: str) -> dict[str, Any]:
    pairs = (pair.partition("=") for pair in re.split(r"[{},]+", text) if pair.strip())
    return {key.strip(): value.strip() if sign else None for key, sign, value in pairs}


def folded(nodes: list[Node], level: int = 0) -> list[str]:
    """The lines of a tree's text, alike siblings in one; attributes are left out."""
    runs: list[tuple[list[Node], list[str]]] = []
    for node in nodes:
        below = folded(node.children, level + 1)
        if runs and runs[-1][1] == below and _follows(runs[-1][0][-1], node):
            runs[-1][0].append(node)
        else:
            runs.append(([node], below))
    lines = []
    for run, below in runs:
        label = run[0].label
        if len(run) > 1:
            indexed = run[0].index is not None
            label = label.replace("]", f"-{run[-1].index}]") if indexed else f"{label} x{len(run)}"
        lines += ["  " * level + label, *below]
    return lines


def _follows(node: Node, other: Node) -> bool:
    index = None if node.index is None else node.index + 1
    return (node.name, node.is_error, index) == (other.name, other.is_error, other.index)


UPKEEP = (
    "zero_grad", "clip_grad", "scheduler_step", "checkpoint_save", "checkpoint_load", "collective",
)  # fmt: skip
"""Scopes of the work between a step's phases. An expected tree that names none of them leaves all
of them out: `test_upkeep.py` has trees that name them."""


def without_upkeep(root: Node) -> Node:
    """A copy without the scopes of `UPKEEP`."""
    children = [without_upkeep(child) for child in root.children if child.name not in UPKEEP]
    return dataclasses.replace(root, children=children)


def difference(expected: Node, actual: Node) -> str:
    """What tells them apart, to be read; empty where nothing does."""
    if not any(node.name in UPKEEP for node in expected.walk()):
        actual = without_upkeep(actual)
    wanted, found = folded([expected]), folded([actual])
    if wanted != found:
        rows = difflib.unified_diff(wanted, found, "expected", "recorded", n=60, lineterm="")
        return "\n".join(rows)
    pairs = zip(expected.walk(), actual.walk(), strict=True)
    return "\n".join(row for one, other in pairs for row in _other_attrs(one, other))


def _other_attrs(expected: Node, actual: Node) -> Iterator[str]:
    for key, value in expected.attrs.items():
        if key not in actual.attrs:
            yield f"{actual.label}: no attribute {key!r} in {actual.attrs}"
        elif value is not None and str(actual.attrs[key]).lower() != value.lower():
            yield f"{actual.label}: {key} is {actual.attrs[key]!r}, not {value!r}"


@dataclass
class Recorded:
    """What one process left in a spool."""

    root: Node
    marks: list[tuple[str, str]]
    """The program's marks: the name of each, and the name of its scope ("" without a scope).

    Marks named `loss` and `grad_norm` are left out, because the hooks make them.
    """
    orphans: list[str]
    """Names of scopes whose parent is not there."""


def read(directory: Path) -> dict[int, Recorded]:
    """What every rank left in `directory`, which holds `spool/`. Raises ValueError."""
    spool = spool_trees.read_spool(directory)
    ranks = sorted({node.record["rank"] or 0 for node in spool.roots})
    return {rank: _of_rank(spool, rank) for rank in ranks}


def _of_rank(spool: spool_trees.Spool, rank: int) -> Recorded:
    roots = [node for node in spool.roots if (node.record["rank"] or 0) == rank]
    sessions = [node for node in roots if node.name == SESSION]
    if len(sessions) != 1:
        raise ValueError(f"rank {rank} has {len(sessions)} sessions")
    spans = {s["id"]: s["name"] for s in spool.spans if (s["rank"] or 0) == rank}
    every = {s["id"] for s in spool.spans}
    marks = [
        (mark["name"], spans.get(mark["span_id"], ""))
        for mark in spool.marks
        if mark["name"] not in spool_trees.OWN_MARKS | spool_trees.HOOK_MARKS
        and (mark["span_id"] in spans or mark["span_id"] not in every)
    ]
    threads = _threads(sessions[0])
    return Recorded(
        _node(sessions[0], threads), marks, [str(n.name) for n in roots if n is not sessions[0]]
    )


def _threads(session: spool_trees.Node) -> dict[int, int]:
    """The threads of a session, its own first, the others in order of their first scope."""
    order: dict[int, int] = {session.record["thread_id"]: 0}
    found = [session]
    spans = []
    while found:
        node = found.pop()
        spans.append(node.record)
        found += node.children
    for span in sorted(spans, key=lambda span: int(span["start_ns"])):
        order.setdefault(span["thread_id"], len(order))
    return order


def _node(source: spool_trees.Node, threads: dict[int, int]) -> Node:
    record = source.record
    status = record.get("otel", {}).get("status", {}).get("code")
    children = sorted(
        source.children,
        key=lambda child: (
            threads[child.record["thread_id"]] != threads[record["thread_id"]],
            threads[child.record["thread_id"]],
            child.record["start_ns"],
            child.record["end_ns"],
        ),
    )
    return Node(
        record["name"], record["index"], status == 2, record["attrs"],
        [_node(child, threads) for child in children], record,
    )  # fmt: skip


def time_faults(root: Node, *, needs_unattributed: bool = True) -> list[str]:
    """Where the times of a tree contradict each other.

    A scope lies within its parent, those of one parent and thread follow one another, and the
    direct children of a step and its `unattributed_ns` come to its duration, to the nanosecond.
    Micro steps whose batches are fetched first overlap: time in the fetches of the others, or in an
    earlier micro step, is not unattributed.
    """
    faults = [fault for node in root.walk() for fault in _order_faults(node)]
    faults += _sum_faults(root, [root], needs_unattributed)
    for node in root.walk():
        for child in node.children:
            faults += _sum_faults(child, node.children, needs_unattributed)
    return faults


def _order_faults(node: Node) -> Iterator[str]:
    start, end = node.record["start_ns"], node.record["end_ns"]
    earlier: list[Node] = []
    for child in node.children:
        if child.record["start_ns"] < start:
            yield f"{child.label} starts {start - child.record['start_ns']} ns before {node.label}"
        if child.record["end_ns"] > end:
            yield f"{child.label} ends {child.record['end_ns'] - end} ns after {node.label}"
        earlier = [each for each in earlier if each.record["end_ns"] > child.record["start_ns"]]
        for last in earlier:
            overlap = last.record["end_ns"] - child.record["start_ns"]
            is_same_thread = last.record["thread_id"] == child.record["thread_id"]
            if is_same_thread and not _may_overlap(last, child):
                yield f"{child.label} starts {overlap} ns before the end of {last.label}"
        earlier.append(child)


def _may_overlap(earlier: Node, later: Node) -> bool:
    """Whether one of two siblings is a micro step that waits, after its fetch, for the other."""
    if later.name == MICRO_STEP:
        return earlier.name == MICRO_STEP and _only_fetches(later, earlier.record["end_ns"])
    return earlier.name == MICRO_STEP and _only_fetches(earlier, later.record["end_ns"])


def _only_fetches(micro: Node, until: int) -> bool:
    """Whether nothing but the fetch that begins a micro step is in it before a point in time."""
    first, *others = micro.children or [micro]
    return (
        first.name == "data_load"
        and first.record["start_ns"] == micro.record["start_ns"]
        and all(each.record["start_ns"] >= until for each in others)
    )


def _sum_faults(node: Node, siblings: list[Node], needs_unattributed: bool) -> Iterator[str]:
    if node.name not in ("step", MICRO_STEP):
        return
    if UNATTRIBUTED not in node.attrs:
        if needs_unattributed:
            yield f"{node.label} has no {UNATTRIBUTED}"
        return
    inside = list(node.children)
    if node.name == MICRO_STEP:
        at = next(place for place, each in enumerate(siblings) if each is node)
        inside += siblings[:at]
        for each in siblings[at + 1 :]:
            inside += each.children if each.name == MICRO_STEP else [each]
    start, end = node.record["start_ns"], node.record["end_ns"]
    missing = end - start - _covered(inside, start, end) - node.attrs[UNATTRIBUTED]
    if missing:
        yield f"{node.label}: {missing} ns are neither its children's nor {UNATTRIBUTED}"


def _covered(nodes: list[Node], start: int, end: int) -> int:
    """The time from `start` to `end` in which one of the nodes ran."""
    covered, at = 0, start
    for begun, over in sorted((each.record["start_ns"], each.record["end_ns"]) for each in nodes):
        begun, over = max(begun, at), min(over, end)  # noqa: PLW2901
        if over > begun:
            covered += over - begun
            at = over
    return covered


def mark_faults(made: list[str], recorded: list[tuple[str, str]]) -> list[str]:
    """Marks that were lost or stand elsewhere: one called `on NAME` stands on a scope NAME."""
    faults = []
    names = Counter(name for name, _ in recorded)
    if names != Counter(made):
        faults.append(f"marks made {dict(Counter(made))}, recorded {dict(names)}")
    for name, scope in recorded:
        wanted = name.removeprefix("on ") if name.startswith("on ") else scope
        if not scope or scope != wanted:
            faults.append(f"the mark {name!r} stands on {scope or 'no scope'}")
    return faults
