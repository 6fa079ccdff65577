"""The data in an owner's sealed batches about some of its scopes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from ...errors import InputError
from .owner import owner_of
from .paths import SpoolPaths
from .reader import SpoolReader


class _Span(msgspec.Struct):
    id: str
    parent_id: str | None
    end_ns: int


class _Mark(msgspec.Struct):
    id: str
    span_id: str
    ts_ns: int


class _Batch(msgspec.Struct):
    spans: list[_Span] = []
    marks: list[_Mark] = []


_decoder = msgspec.json.Decoder(_Batch)


@dataclass(slots=True)
class SealedScopes:
    """The data in sealed batches about the requested scopes."""

    ids: set[str] = field(default_factory=set)
    """The scopes that were sealed as spans."""
    child_ends: dict[str, int] = field(default_factory=dict)
    """The latest end of a scope's children, by its id."""
    marks: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """(ts_ns, id) of the marks on a scope, by its id."""

    def marks_of(self, some_id: str) -> list[str]:
        """Return the ids of the marks on a scope, in the order of their creation."""
        return [mark_id for _, mark_id in sorted(set(self.marks.get(some_id, ())))]


def sealed_of(paths: SpoolPaths, prefix: str, wanted: Collection[str]) -> SealedScopes:
    """Search an owner's batches for the scopes `wanted`.

    Files that are not batches as this package writes them are skipped: `spool verify` reports them.
    """
    sealed = SealedScopes()
    if not paths.spool.is_dir():
        return sealed
    try:
        reader = SpoolReader(paths.spool)
    except InputError:  # an empty directory that is not named spool
        return sealed
    for name in reader.names():
        if owner_of(name) != prefix:
            continue
        file = reader.read(name, check=False)
        if file is not None:
            try:
                batch = _decoder.decode(file.data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            _look(batch, wanted, sealed)
    return sealed


def _look(batch: _Batch, wanted: Collection[str], sealed: SealedScopes) -> None:
    for span in batch.spans:
        if span.id in wanted:
            sealed.ids.add(span.id)
        if span.parent_id is not None and span.parent_id in wanted:
            before = sealed.child_ends.get(span.parent_id, 0)
            sealed.child_ends[span.parent_id] = max(before, span.end_ns)
    for mark in batch.marks:
        if mark.span_id in wanted:
            sealed.marks.setdefault(mark.span_id, []).append((mark.ts_ns, mark.id))
