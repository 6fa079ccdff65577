"""Select the records of a batch that match a selection.

A record is kept if it meets all given criteria: its session and its rank match, and it is, or is
below, an epoch in the given range and a scope with the given name. A mark or snapshot is kept if
its scope is kept. A batch that loses some of its records gets an id derived from its content; a
batch that loses all of them is omitted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import exactjson
from ...core.placement.batch_outline import (
    Ancestor,
    BatchOutline,
    RecordRef,
    SpanOutline,
    outline_of,
    read_outline,
)
from ...core.placement.session_index import SessionIndex
from ...core.spool.reader import SpoolReader
from ...errors import InputError
from ...ids import digest, uuid4_shaped
from .select import Selection

_KEPT_EVERY = 64
_MOST_KEPT = 100_000


class _Match(NamedTuple):
    """Whether a scope or one of its ancestors meets the criteria that apply to descendants."""

    name: bool = False
    epoch: bool = False


class Selector:
    """Applies a selection to the batches of a spool, and caches the matches of other scopes."""

    def __init__(self, selection: Selection, index: SessionIndex) -> None:
        """`index` is used to find scopes of other batches."""
        self._selection, self._index = selection, index
        self._outside: dict[str, _Match] = {}
        """Cached matches of scopes of other batches, so that no long chain of ancestors is walked
        twice."""

    def apply(self, batch: dict[str, Any]) -> dict[str, Any] | None:
        """Return the batch with the records that match; None if there are none."""
        index = self._index
        outline = outline_of(batch)
        by_id = {span.id: span for span in outline.spans}
        positions = index.positions(outline, by_id)
        matches: dict[str, _Match] = {}
        records = batch.get("spans")
        matching_ids: set[str] = set()
        spans = []
        for number, span in enumerate(outline.spans):
            record = records[number]  # type: ignore[index]
            match = self._match(span, by_id, matches)
            if self._wants(positions[number].session, record.get("rank"), match):
                matching_ids.add(span.id)
                spans.append(record)
        # A scope in another batch has the rank of the process that wrote this batch.
        ranks = [record.get("rank") for record in records] if outline.spans else []  # type: ignore[union-attr]
        rank = ranks[0] if ranks else 0
        default = positions[0].session if positions else ""
        for some_id in {r.span_id for r in (*outline.marks, *outline.snapshots)} - by_id.keys():
            rootless = some_id in ("", "root")
            if outline.session is not None:
                session = outline.session
            else:
                session = default if rootless else index.resolve(some_id).session
            match = _Match() if rootless else self._outer(some_id)
            if self._wants(session, rank, match):
                matching_ids.add(some_id)
        marks = _riding(batch.get("marks"), outline.marks, matching_ids)
        snapshots = _riding(batch.get("snapshots"), outline.snapshots, matching_ids)
        if not spans and not marks and not snapshots:
            return None
        chosen = batch | {"spans": spans, "marks": marks, "snapshots": snapshots}
        if outline.session is not None:
            self._choose_running(chosen, rank, outline.session)
        return batch if exactjson.equal(chosen, batch) else _renamed(chosen)

    def _choose_running(self, chosen: dict[str, Any], rank: object, session: str) -> None:
        """Keep only the running scopes that match."""
        running = chosen["otel"].get("running")
        retained = []
        for entry in running if isinstance(running, list) else ():
            fields = entry if isinstance(entry, dict) else {}
            name, number, parent = fields.get("name"), fields.get("index"), fields.get("parent_id")
            outer = self._outer(parent) if isinstance(parent, str) else _Match()
            scope = Ancestor(str(name), number if isinstance(number, int) else None)
            if self._wants(session, rank, self._below(outer, scope)):
                retained.append(entry)
        if isinstance(running, list) and len(retained) < len(running):
            chosen["otel"] = chosen["otel"] | {"running": retained}

    def _wants(self, session: str, rank: object, match: _Match) -> bool:
        selection = self._selection
        if selection.sessions and session not in selection.sessions:
            return False
        if selection.ranks and not (
            type(rank) is int and any(low <= rank <= high for low, high in selection.ranks)
        ):
            return False
        return (match.name or not selection.names) and (match.epoch or not selection.epochs)

    def _below(self, above: _Match, scope: Ancestor) -> _Match:
        """Derive the match of a scope from the match of its parent."""
        number = scope.number if scope.name == "epoch" else None
        is_epoch = number is not None and any(
            low <= number <= high for low, high in self._selection.epochs
        )
        return _Match(above.name or scope.name in self._selection.names, above.epoch or is_epoch)

    def _match(
        self, span: SpanOutline, by_id: dict[str, SpanOutline], matches: dict[str, _Match]
    ) -> _Match:
        """Return the match of a scope of the batch; `matches` caches the results."""
        chain: list[SpanOutline] = []
        seen: set[str] = set()
        current: SpanOutline | None = span
        while current is not None and current.id not in matches and current.id not in seen:
            seen.add(current.id)
            chain.append(current)
            current = by_id.get(current.parent_id) if current.parent_id is not None else None
        if current is not None and current.id in matches:
            match = matches[current.id]
        elif current is not None:  # a cycle: each scope in it is an ancestor of all others
            match = _Match()
            for scope in chain[chain.index(current) :]:
                match = self._below(match, Ancestor(scope.name, scope.index))
        else:
            parent = chain[-1].parent_id
            match = self._outer(parent) if parent is not None else _Match()
        for scope in reversed(chain):
            match = matches[scope.id] = self._below(match, Ancestor(scope.name, scope.index))
        return match

    def _outer(self, some_id: str) -> _Match:
        """Return the match of a scope of another batch."""
        path = []
        match = _Match()
        for scope_id, scopes in self._index.lineage(some_id):
            known = self._outside.get(scope_id)
            if known is not None:
                match = known
                break
            path.append((scope_id, scopes))
        for number, (scope_id, scopes) in enumerate(reversed(path), 1):
            for scope in reversed(scopes):
                match = self._below(match, scope)
            if number % _KEPT_EVERY == 0 or number == len(path):
                self._keep(scope_id, match)
        return match

    def _keep(self, scope_id: str, match: _Match) -> None:
        if len(self._outside) >= _MOST_KEPT:
            self._outside.clear()
        self._outside[scope_id] = match


def _riding(records: Any, refs: list[RecordRef], wanted: set[str]) -> list[Any]:
    return [
        record for record, ref in zip(records or (), refs, strict=False) if ref.span_id in wanted
    ]


def _renamed(chosen: dict[str, Any]) -> dict[str, Any]:
    """Give a part of a batch a new id, because two parts of one batch are not duplicates."""
    content = exactjson.dumps_sorted(chosen)
    return chosen | {"batch_id": uuid4_shaped(digest("select", content))}


def sessions_of(reader: SpoolReader, index: SessionIndex) -> set[str]:
    """Return the sessions of a spool's records, using its filled index."""
    sessions: set[str] = set()
    for name in reader.names():
        file = reader.read(name, check=False)
        if file is None:
            continue
        try:
            batch = read_outline(file.data)
        except InputError:
            continue  # the conversion reports it
        sessions |= _sessions_of(batch, index)
    return sessions


def _sessions_of(batch: BatchOutline, index: SessionIndex) -> set[str]:
    if batch.session is not None:
        return {batch.session}
    by_id = {span.id: span for span in batch.spans}
    sessions = {position.session for position in index.positions(batch, by_id)}
    refs = {ref.span_id for ref in (*batch.marks, *batch.snapshots)} - by_id.keys() - {"", "root"}
    return sessions | {index.resolve(some_id).session for some_id in refs}
