"""Selecting records: by session, rank, epoch range or name.

A record stays if it meets every criterion that is given: its session and its rank are the ones
named, and it is, or stands below, an epoch of the range, a scope of the name. Marks and snapshots
go with their scope. A batch of which a part is left gets an id made of its content; one of which
nothing is left is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import exactjson
from ..errors import UsageError
from ..ids import digest, uuid4_shaped
from .light import LightRef, LightSpan, light_of
from .sessions import SessionIndex
from .standing import Ancestor

_RANGE = re.compile(r"(-?\d{1,18})(?:\.\.(-?\d{1,18}))?")
_USE = "use session=ID, rank=N, rank=A..B, epoch=N, epoch=A..B or name=NAME"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are wanted; an empty set means all."""

    sessions: frozenset[str] = frozenset()
    ranks: tuple[tuple[int, int], ...] = ()
    """Inclusive ranges of ranks."""
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
            tuple(_range("rank", value) for value in found["rank"]),
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
        records = batch.get("spans")
        wanted: set[str] = set()
        spans = []
        for number, span in enumerate(seen.spans):
            record = records[number]  # type: ignore[index]
            above = _above(span, by_id, index)
            if self._wants(standings[number].session, record.get("rank"), above):
                wanted.add(span.id)
                spans.append(record)
        # A scope that is elsewhere has the rank of the process that wrote the batch.
        ranks = [record.get("rank") for record in records] if seen.spans else []  # type: ignore[union-attr]
        rank = ranks[0] if ranks else 0
        default = standings[0].session if standings else ""
        for some_id in {r.span_id for r in (*seen.marks, *seen.snapshots)} - by_id.keys():
            rootless = some_id in ("", "root")
            if seen.session is not None:
                session = seen.session
            else:
                session = default if rootless else index.resolve(some_id).session
            above = [] if rootless else index.ancestors(some_id)
            if self._wants(session, rank, above):
                wanted.add(some_id)
        marks = _riding(batch.get("marks"), seen.marks, wanted)
        snapshots = _riding(batch.get("snapshots"), seen.snapshots, wanted)
        if not spans and not marks and not snapshots:
            return None
        chosen = batch | {"spans": spans, "marks": marks, "snapshots": snapshots}
        if seen.session is not None:
            self._choose_running(chosen, rank, seen.session, index)
        return batch if exactjson.equal(chosen, batch) else _renamed(chosen)

    def _choose_running(
        self, chosen: dict[str, Any], rank: object, session: str, index: SessionIndex
    ) -> None:
        """Keep of the scopes that are still open those that are wanted."""
        running = chosen["otel"].get("running")
        kept = []
        for entry in running if isinstance(running, list) else ():
            told = entry if isinstance(entry, dict) else {}
            name, number, parent = told.get("name"), told.get("index"), told.get("parent_id")
            above = [Ancestor(str(name), number if isinstance(number, int) else None)]
            above += index.ancestors(parent) if isinstance(parent, str) else []
            if self._wants(session, rank, above):
                kept.append(entry)
        if isinstance(running, list) and len(kept) < len(running):
            chosen["otel"] = chosen["otel"] | {"running": kept}

    def _wants(self, session: str, rank: object, above: list[Ancestor]) -> bool:
        if self.sessions and session not in self.sessions:
            return False
        if self.ranks and not (
            type(rank) is int and any(low <= rank <= high for low, high in self.ranks)
        ):
            return False
        if self.names and not any(scope.name in self.names for scope in above):
            return False
        if not self.epochs:
            return True
        epochs = [s.number for s in above if s.name == "epoch" and s.number is not None]
        return any(low <= epoch <= high for epoch in epochs for low, high in self.epochs)


def _above(span: LightSpan, by_id: dict[str, LightSpan], index: SessionIndex) -> list[Ancestor]:
    """A scope and everything around it, up to the session."""
    above = [Ancestor(span.name, span.index)]
    walked = {span.id}
    parent = span.parent_id
    while parent is not None and parent in by_id and parent not in walked:
        walked.add(parent)
        above.append(Ancestor(by_id[parent].name, by_id[parent].index))
        parent = by_id[parent].parent_id
    if parent is not None and parent not in by_id:
        above += index.ancestors(parent)
    return above


def _riding(records: Any, refs: list[LightRef], wanted: set[str]) -> list[Any]:
    return [
        record for record, ref in zip(records or (), refs, strict=False) if ref.span_id in wanted
    ]


def _renamed(chosen: dict[str, Any]) -> dict[str, Any]:
    """A part of a batch under an id of its own: two parts of one batch are not duplicates."""
    content = exactjson.dumps_sorted(chosen)
    return chosen | {"batch_id": uuid4_shaped(digest("select", content))}


def _range(key: str, text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot select by {key}={text}: {_USE}")
    low = int(match[1])
    return low, int(match[2]) if match[2] is not None else low
