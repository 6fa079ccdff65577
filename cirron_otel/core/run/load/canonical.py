"""The check whether a recording of cirron-sdk is in the canonical form, so that one pass reads it.

It is so if the program had steps around all phases, without any iterators of cirron-sdk, loaders
with hooks, evaluations and requests. The check may fail for such a recording, which is then read
into columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from ...records.rows import IndexedBatch
from ..relations import MOST_LEVELS, Texts
from ..shapes.tree import FIRST_CONTAINER, Kind, kind_of
from .columns import SCHEMAS, Columns
from .tree import ScopeTree

_TEXTS: Final = b'"data_load_ns"', b'"eval"'
_UPDATES: Final = "optimizer_step", "backward"
_SHAPED: Final = frozenset({Kind.BATCH, Kind.REQUEST, Kind.EVALUATION})
_PLAIN: Final = frozenset({Kind.OTHER, Kind.SESSION, Kind.EPOCH, Kind.STEP})


class CanonicalNames:
    """The names of scopes that are the same in the canonical form."""

    def __init__(self) -> None:
        self._names: dict[str | None, bool] = {}

    def has_batch(self, rows: IndexedBatch, data: bytes) -> bool:
        """Return whether no scope of a batch needs a shape because of its name or attributes."""
        if any(text in data for text in _TEXTS):
            return False
        return all(self._has(name) for name in {span.name for span in rows.spans})

    def _has(self, name: str | None) -> bool:
        found = self._names.get(name)
        if found is None:
            found = self._names[name] = kind_of(name) not in _SHAPED
        return found


def is_canonical(tree: ScopeTree, units: Columns, parts: Columns, texts: Texts) -> bool:
    """Return whether no scope needs a shape because of the scopes around it or inside it."""
    for _, span in tree.scopes:
        kind = kind_of(span.name)
        if kind not in _PLAIN or (kind is Kind.EPOCH and _is_inside_epoch(tree, span.parent_id)):
            return False
    names = {texts.text(each) for each in _distinct(parts, "name")}
    if any(kind_of(name) >= FIRST_CONTAINER for name in names):
        return False
    return _all_train(units, parts, [texts.token(name) for name in _UPDATES])


def _is_inside_epoch(tree: ScopeTree, parent: str | None) -> bool:
    for _ in range(MOST_LEVELS):
        found = tree.numbered(parent)
        if found is None:
            return False
        if kind_of(found[1].name) is Kind.EPOCH:
            return True
        parent = found[1].parent_id
    return True


def _distinct(columns: Columns, name: str) -> Iterable[int]:
    found: set[int] = set()
    for block in columns.blocks():
        found.update(np.unique(block[name]).tolist())
    return found


def _all_train(units: Columns, parts: Columns, updates: list[int]) -> bool:
    """Return whether the units of each parent have an update, or no unit has one."""
    table, below = units.table(), parts.table()
    at, inside = (list(SCHEMAS[name]).index for name in ("unit", "part"))
    is_update = np.isin(below[:, inside("name")], updates)
    trains = np.isin(table[:, at("no")], below[is_update, inside("unit")])
    return bool(
        not trains.any() or np.isin(table[:, at("parent")], table[trains][:, at("parent")]).all()
    )
