"""`trace()`: return the last scopes of the session as a tree, a dict, JSON, or a data frame."""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ... import semconv as sc
from ...errors import UsageError
from ..flush.batch_text import BatchText
from ..flush.rows import MarkRow, SpanRow
from ..tracing.clock import wall_now
from .tree_text import is_users, scope_line, value_of, write_text

FORMATS = ("tree", "dict", "json", "df")
_BYTES_PER_SPAN = 4096
"""Maximum bytes of retained batches for each retained span."""
MARKS_PER_SPAN = 4
"""Maximum number of retained marks for each retained span."""
_COSTS = tuple(field for _, field in sc.COSTS)
MAX_LEVELS = 128
"""Maximum levels of a tree; deeper nodes (possible for foreign spans) become roots."""

Node = dict[str, Any]


class Recent:
    """The last spans and marks of the session, in memory.

    The flush thread adds batches, and any thread reads them. The batches are an immutable tuple,
    replaced as a unit, so there is no lock that could be held in a forked child.
    """

    def __init__(self, max_spans: int) -> None:
        """Retain `max_spans` spans and four times as many marks; 0 retains nothing."""
        self._most = max_spans
        self._batches: tuple[BatchText, ...] = ()

    def add(self, batch: BatchText) -> None:
        """Retain a batch as text, which `read` decodes."""
        if not self._most:
            return
        batches = [*self._batches, batch]
        spans = sum(each.span_count for each in batches)
        size = sum(len(each.data) for each in batches)
        while len(batches) > 1 and (
            spans - batches[0].span_count >= self._most or size > self._most * _BYTES_PER_SPAN
        ):
            oldest = batches.pop(0)
            spans -= oldest.span_count
            size -= len(oldest.data)
        self._batches = tuple(batches)

    def read(
        self,
        format: str = "tree",
        name: str | None = None,
        last: int | None = None,
        open_rows: Sequence[SpanRow] = (),
    ) -> Any:
        """Return the ended scopes in the requested format.

        `tree` prints an indented tree and returns None. `dict` returns `{"roots": [...],
        "span_count": n}`, `json` returns that object as JSON text, and `df` returns a pandas data
        frame with one row for each scope. `name` makes the scopes with that name the roots; `last`
        limits the result to the last roots.

        As in cirron-sdk, the session is included only once it has ended, and a child of an open
        scope is a root. `open_rows` adds records of open scopes, with `"open": True`, their
        duration so far, and `end_ns` None. Marks with the SDK's own time (`cirron.overhead_ns`) are
        omitted.

        Raises ValueError for an unknown format, TypeError if `last` is not an integer, and
        UsageError for `df` without pandas.
        """
        if format not in FORMATS:
            raise ValueError(
                f"trace(format={format!r}) is not valid; expected 'tree', 'dict', 'json' or 'df'"
            )
        count = None if last is None else operator.index(last)
        spans, marks = self._records()
        nodes = _nodes([*spans, *open_rows], marks)
        roots = _roots(nodes)
        if name is not None:
            roots = _named(roots, name)
        if count is not None:
            roots = roots[-count:] if count > 0 else []
        if format == "tree":
            write_text(sys.stdout, _tree(roots))
            return None
        if format == "df":
            return _frame(nodes, roots)
        result = {"roots": roots, "span_count": sum(1 for _ in _walk(roots))}
        return result if format == "dict" else json.dumps(result)

    def _records(self) -> tuple[list[SpanRow], list[MarkRow]]:
        spans: list[SpanRow] = []
        marks: list[MarkRow] = []
        for batch in self._batches:
            batch_spans, batch_marks = batch.rows()
            spans += batch_spans
            marks += [mark for mark in batch_marks if is_users(mark)]
        return spans[-self._most :], marks[-self._most * MARKS_PER_SPAN :]


def _nodes(rows: list[SpanRow], marks: list[MarkRow]) -> list[Node]:
    """Return a node without children for each record, with its marks."""
    at = wall_now()
    nodes = [_node(row, at) for row in rows]
    by_id = {node["id"]: node for node in nodes}
    for mark in marks:
        node = by_id.get(mark.span_id)
        if node is not None:
            node["marks"].append(_mark(mark))
    return nodes


def _node(row: SpanRow, at: int) -> Node:
    end = row.end_ns or at
    node = {
        "id": row.id,
        "parent_id": row.parent_id,
        "name": row.name,
        "index": row.index,
        "start_ns": row.start_ns,
        "end_ns": row.end_ns or None,
        "wall_us": max(end - row.start_ns, 0) // 1000,
        **{field: getattr(row, field) for field in _COSTS},
        "attrs": row.attrs,
        "marks": [],
        "children": [],
    }
    if not row.end_ns:
        node["open"] = True
    return node


def _mark(mark: MarkRow) -> Node:
    """Return a mark's node. NaN and infinities are encoded as in the spool, to be valid JSON."""
    node = {"name": mark.name, "value": value_of(mark), "kind": mark.kind}
    if isinstance(mark.value_nonfinite, str):
        node |= {"value": None, "value_nonfinite": mark.value_nonfinite}
    return node


def _roots(nodes: list[Node]) -> list[Node]:
    """Attach every node to its parent; return the nodes without a parent, ordered by start time."""
    by_id = {node["id"]: node for node in nodes}
    roots: list[Node] = []
    for node in sorted(nodes, key=operator.itemgetter("start_ns")):
        parent = by_id.get(node["parent_id"])
        if parent is None or parent is node or (parent["name"] == sc.SESSION and "open" in parent):
            if not (node["name"] == sc.SESSION and "open" in node):
                roots.append(node)
        else:
            parent["children"].append(node)
    _cut(roots)
    return roots


def _cut(roots: list[Node]) -> None:
    """Make nodes roots if they are too deep for code that traverses trees recursively."""
    for node, level in list(_walk(roots)):
        if level % MAX_LEVELS == MAX_LEVELS - 1:
            roots += node["children"]
            node["children"] = []


def _walk(roots: Iterable[Node]) -> Iterable[tuple[Node, int]]:
    """Yield every node with its level, parents first."""
    waiting = [(node, 0) for node in reversed(list(roots))]
    while waiting:
        node, level = waiting.pop()
        yield node, level
        waiting += [(child, level + 1) for child in reversed(node["children"])]


def _named(roots: list[Node], name: str) -> list[Node]:
    """Return the nodes with a name, except those inside another node with the same name."""
    matches: list[Node] = []
    waiting = list(reversed(roots))
    while waiting:
        node = waiting.pop()
        if node["name"] == name:
            matches.append(node)
        else:
            waiting += reversed(node["children"])
    return matches


def _tree(roots: list[Node]) -> str:
    lines = []
    for node, level in _walk(roots):
        marks = [(m["name"], m.get("value_nonfinite", m["value"])) for m in node["marks"]]
        line = scope_line(node["name"], node["index"], node["wall_us"], marks)
        lines.append("  " * level + line + (" (open)" if "open" in node else ""))
    return "\n".join(lines or ["(no spans)"]) + "\n"


def _frame(nodes: list[Node], roots: list[Node]) -> Any:
    try:
        import pandas as pd  # noqa: PLC0415 - only for a data frame
    except ImportError:
        raise UsageError(
            "trace(format='df') needs pandas: run `pip install pandas`, or use format='dict'"
        ) from None
    return pd.DataFrame(_frame_rows(nodes, roots))


def _frame_rows(nodes: list[Node], roots: list[Node]) -> list[Node]:
    """Return the rows of the data frame, in the order in which the scopes ended."""
    levels = {id(node): level for node, level in _walk(roots)}
    fields = ("id", "parent_id", "name", "index", "wall_us", *_COSTS)
    return [
        {field: node[field] for field in fields}
        | {"mark_count": len(node["marks"]), "depth": levels[id(node)]}
        for node in nodes
        if id(node) in levels
    ]
