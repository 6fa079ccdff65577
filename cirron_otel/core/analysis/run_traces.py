"""Individual steps of a run, each with its subtree and its attributes.

The steps are those that the user requests, and the slowest and a typical step of every rank.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import InputError
from ...semconv import COSTS
from ..records.verbatim import record_at, span_records
from ..spool.reader import BatchFile
from .index import SpoolIndex, id_of, key_of
from .tree import TreeLimits, TreeNode, build_tree

# Both queries take a rank. Requested steps are looked up by their ids instead.
_SLOWEST = """
SELECT id FROM step WHERE rank IS ? AND id IS NOT NULL ORDER BY ns DESC, no LIMIT 1
"""
_TYPICAL = """
SELECT id FROM step WHERE rank IS ?1 AND id IS NOT NULL ORDER BY ns, no
LIMIT 1 OFFSET (SELECT count(*) / 2 FROM step WHERE rank IS ?1 AND id IS NOT NULL)
"""
_ABOVE = "SELECT id, name, idx, parent FROM span WHERE id = ? LIMIT 1"
_PLACE = """
SELECT file.name, span.position FROM span JOIN file ON file.no = span.file WHERE span.id = ? LIMIT 1
"""
_MOST_LEVELS = 64
_HALF = re.compile(r"[0-9a-f]{16}")
_FIELDS = (*(field for _, field in COSTS), "thread_id")


class BatchLookup(Protocol):
    """Finds batches by the names of their files, like a SpoolReader."""

    def read(self, name: str, *, check: bool = True) -> BatchFile | None:
        """Return a batch; None if there is none that can be read."""


@dataclass(slots=True)
class StepTrace:
    """One step as a tree."""

    why: str
    """`slowest` or `typical` of its rank, or `asked` if it was requested."""
    step: TreeNode
    above: list[tuple[str, str | None]]
    """The names and indexes of the scopes around the step, the outermost recorded scope first."""


def step_traces(
    index: SpoolIndex, ranks: Iterable[int | None], asked: Iterable[str], limits: TreeLimits
) -> list[StepTrace]:
    """Return the steps with the `asked` ids, then the slowest and a typical step of each rank.

    `report_run` must have been called with the index. Raises InputError if no scope has one of the
    requested ids.
    """
    traces: dict[str, StepTrace] = {}
    for requested_id in asked:
        span_id = _complete_id(index, requested_id)
        node = build_tree(index, span_id, limits)
        if node is None:
            raise InputError(
                f"no scope {requested_id!a} in this run: `report` lists the ids of the slowest"
                " steps, `spool show` lists all ids"
            )
        traces.setdefault(span_id, StepTrace("asked", node, _above(index, span_id)))
    for rank in ranks:
        for why, query in (("slowest", _SLOWEST), ("typical", _TYPICAL)):
            key = index.one(query, rank)
            step_id = id_of(key) if key is not None else None
            if step_id is not None and step_id not in traces:
                node = build_tree(index, step_id, limits)
                if node is not None:
                    traces[step_id] = StepTrace(why, node, _above(index, step_id))
    return list(traces.values())


def scopes_of(tree: TreeNode) -> Iterator[tuple[int, TreeNode]]:
    """Yield a scope and its subtree with their levels from 0, parents first."""
    todo = [(0, tree)]
    while todo:
        level, node = todo.pop()
        yield level, node
        todo += [(level + 1, child) for child in reversed(node.children)]


def records_of(
    index: SpoolIndex, reader: BatchLookup, ids: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the recorded spans with these ids, verbatim, except those whose file was removed."""
    places = ((span_id, *place) for span_id in ids for place in index.rows(_PLACE, key_of(span_id)))
    return records_at(reader, places)


def records_at(
    reader: BatchLookup, places: Iterable[tuple[str, str, int]]
) -> dict[str, dict[str, Any]]:
    """Return the recorded spans with some ids, each from a batch and its position in it.

    Those whose file was removed are left out.
    """
    places_by_name: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for span_id, name, position in places:
        places_by_name[name].append((span_id, position))
    spans: dict[str, dict[str, Any]] = {}
    for name, in_batch in places_by_name.items():
        batch = reader.read(name, check=False)
        if batch is not None:
            records = span_records(batch.data)
            for span_id, position in in_batch:
                record = record_at(records, position)
                if record is not None and record.get("id") == span_id:
                    spans[span_id] = record
    return spans


def fields_of(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the costs of a record, then its attributes."""
    for name in _FIELDS:
        if record.get(name) is not None:
            yield name, record[name]
    attributes = record.get("attrs")
    if isinstance(attributes, dict):
        yield from attributes.items()


def _complete_id(index: SpoolIndex, text: str) -> str:
    """Return the complete id if `text` is the first half of one (an OTLP span id), else `text`."""
    text = text.strip().lower()
    if _HALF.fullmatch(text):
        first, last = (bytes.fromhex(text + digit * 16) for digit in "0f")
        key = index.one("SELECT id FROM span WHERE id BETWEEN ? AND ? LIMIT 1", first, last)
        return id_of(key) if key is not None else text
    return text


def _above(index: SpoolIndex, span_id: str) -> list[tuple[str, str | None]]:
    ancestors: list[tuple[str, str | None]] = []
    row = next(index.rows(_ABOVE, key_of(span_id)), None)
    for _ in range(_MOST_LEVELS):
        parent = row[3] if row is not None else None
        row = next(index.rows(_ABOVE, parent), None) if parent is not None else None
        if row is None:
            break
        ancestors.append((row[1] or "?", row[2]))
    return ancestors[::-1]
