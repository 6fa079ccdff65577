"""Selecting records: by session, rank, epoch range or name.

A record stays if it meets every criterion that is given: its session and its rank are the ones
named, and it is, or stands below, an epoch of the range, a scope of the name. Marks and snapshots
go with their scope. A batch keeps its id; one of which nothing is left is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .light import light_of
from .sessions import Ancestor, SessionIndex

_RANGE = re.compile(r"(-?\d+)(?:\.\.(-?\d+))?")
_USE = "use session=ID, rank=N, epoch=N, epoch=A..B or name=NAME"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are wanted; an empty set means all."""

    sessions: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    epochs: tuple[tuple[int, int], ...] = ()
    """Inclusive ranges of epoch numbers."""
    names: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, expressions: Iterable[str]) -> Selection:
        """Read `KEY=VALUE` expressions; one key given twice means either value.

        Raises UsageError where an expression is none.
        """
        found: dict[str, list[str]] = {"session": [], "rank": [], "epoch": [], "name": []}
        for expression in expressions:
            key, equals, value = expression.partition("=")
            if not equals or key not in found or not value:
                raise UsageError(f"cannot select by {expression!r}: {_USE}")
            found[key].append(value)
        return cls(
            frozenset(found["session"]),
            frozenset(_range("rank", value)[0] for value in found["rank"]),
            tuple(_range("epoch", value) for value in found["epoch"]),
            frozenset(found["name"]),
        )

    def __bool__(self) -> bool:
        return bool(self.sessions or self.ranks or self.epochs or self.names)

    def apply(self, batch: dict[str, Any], index: SessionIndex) -> dict[str, Any] | None:
        """The batch with what is wanted of it; None where that is nothing."""
        seen = light_of(batch)
        by_id = {span.id: span for span in seen.spans}
        standings = index.standings(seen, by_id)
        wanted: set[str] = set()
        spans = []
        for number, record in enumerate(batch.get("spans") or ()):
            span = seen.spans[number]
            above = [Ancestor(span.name, span.index)]
            walked = {span.id}
            parent = span.parent_id
            while parent is not None and parent in by_id and parent not in walked:
                walked.add(parent)
                above.append(Ancestor(by_id[parent].name, by_id[parent].index))
                parent = by_id[parent].parent_id
            if parent is not None and parent not in by_id:
                above += index.ancestors(parent)
            if self._wants(standings[number].session, record.get("rank"), above):
                wanted.add(span.id)
                spans.append(record)
        outside = {r.span_id for r in (*seen.marks, *seen.snapshots)} - by_id.keys() - {"", "root"}
        for some_id in outside:
            session = index.resolve(some_id).session
            if not self.ranks and self._wants(session, None, index.ancestors(some_id)):
                wanted.add(some_id)
        marks = [r for r in batch.get("marks") or () if r.get("span_id") in wanted]
        snapshots = [r for r in batch.get("snapshots") or () if r.get("span_id") in wanted]
        if not spans and not marks and not snapshots:
            return None
        return batch | {"spans": spans, "marks": marks, "snapshots": snapshots}

    def _wants(self, session: str, rank: object, above: list[Ancestor]) -> bool:
        if self.sessions and session not in self.sessions:
            return False
        if self.ranks and rank not in self.ranks:
            return False
        if self.names and not any(scope.name in self.names for scope in above):
            return False
        if not self.epochs:
            return True
        epochs = [s.number for s in above if s.name == "epoch" and s.number is not None]
        return any(low <= epoch <= high for epoch in epochs for low, high in self.epochs)


def _range(key: str, text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot select by {key}={text}: {_USE}")
    low = int(match[1])
    return low, int(match[2]) if match[2] is not None else low
