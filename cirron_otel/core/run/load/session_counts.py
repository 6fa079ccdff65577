"""Counts the records of each session in one pass, in eight bytes a span.

Scopes inside another one of their batch are only counted, with the topmost one. What is inside a
scope of a later batch is counted when that arrives. Sessions and the scopes directly inside them
are kept. If a record comes after the scope that it is inside of, or occurs twice, the pass fails
with `NotReducibleError`; `Scopes` reads such a recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from ....semconv import SESSION
from ...analysis.sessions import HANG_ON_SESSIONS
from ...analysis.summary import SessionSummary
from ...records.rows import IndexedBatch, IndexedSpan, detach
from ...records.step_summaries import expand, may_have_summaries
from .errors import NotReducibleError
from .hashes import IdHashes, contains
from .lanes import check
from .phases import Numbered
from .reducer import MOST_PENDING
from .tree import Extent, ScopeTree, SessionMembers

_KEPT = (SESSION, *HANG_ON_SESSIONS)


class SessionCounts:
    """The counts of the batches that are added, in their order."""

    def __init__(self) -> None:
        self.total = Extent()
        """The counts of all records, whether they are in a session or not."""
        self._below: dict[str | None, dict[int | None, Extent]] = {}
        """The counts of the records inside each scope that is kept or has not arrived.

        The keys are the id of that scope, and the process.
        """
        self._attached: dict[str | None, Extent] = {}
        """The marks and snapshots of such scopes, by the id of the scope."""
        self._kept: list[Numbered] = []
        self._ids = IdHashes()

    def add(self, rows: IndexedBatch, data: bytes) -> None:
        """Add the rows of the batch with some data. Raises NotReducibleError."""
        spans = rows.spans
        if may_have_summaries(data):
            spans = [span for _, span in expand(rows)]
        numbered = list(enumerate(spans, self.total.spans))
        self._ids.add(span.id for span in spans)
        self._check(spans)
        self.total.add_all(numbered)
        at: dict[str | None, int] = {
            span.id: place for place, span in enumerate(spans) if span.id is not None
        }
        owners = self._owners(numbered, at)
        for id_ in self._below.keys() & at.keys():
            if (owner := owners[at[id_]]) is not None:
                for extent in self._below.pop(id_).values():
                    owner.join(extent)
        for id_ in self._attached.keys() & at.keys():
            if (owner := owners[at[id_]]) is not None:
                owner.join(self._attached.pop(id_))
        for name, ids in (
            ("marks", [mark.span_id for mark in rows.marks]),
            ("snapshots", [snapshot.span_id for snapshot in rows.snapshots]),
        ):
            setattr(self.total, name, getattr(self.total, name) + len(ids))
            for id_, count in Counter(ids).items():
                place = at.get(id_) if id_ is not None else None
                owner = None if place is None else owners[place]
                if owner is None:
                    owner = self._attached.setdefault(id_, Extent())
                setattr(owner, name, getattr(owner, name) + count)
        if len(self._below) + len(self._attached) + len(self._kept) > MOST_PENDING:
            raise NotReducibleError("too many scopes are incomplete")

    @staticmethod
    def _check(spans: Iterable[IndexedSpan]) -> None:
        """Check that the numbers that are compared have 64 bits."""
        for span in spans:
            check(span.start_ns)
            check(span.end_ns)
            check(span.pid)
            check(span.rank)

    def _owners(self, numbered: list[Numbered], at: dict[str | None, int]) -> list[Extent | None]:
        """Count the spans of a batch; return where each one is counted, None for one that is kept.

        `at` has the places of the spans by their ids.
        """
        above = np.fromiter((at.get(span.parent_id or "", -1) for _, span in numbered), np.int64)
        kept = set(self._keep(numbered, above))
        top = np.where(above < 0, np.arange(len(above)), above)
        for _ in range(len(above).bit_length()):
            top = top[top]
        if (above[top] >= 0).any():
            raise NotReducibleError("scopes contain each other")
        members: dict[int, list[int]] = {}
        for place, at_top in enumerate(top.tolist()):
            if place not in kept:
                members.setdefault(at_top, []).append(place)
        owners: list[Extent | None] = [None] * len(above)
        for place in sorted(members):
            number, span = numbered[place]
            parent = span.id if place in kept else span.parent_id
            extent = self._below.setdefault(parent, {}).setdefault(span.pid, Extent())
            if extent.top is None and place not in kept:
                extent.top = number, span.pid, span.start_ns or 0
            extent.add_all([numbered[each] for each in members[place]])
            for each in members[place]:
                owners[each] = extent
        return owners

    def _keep(self, numbered: list[Numbered], above: np.ndarray) -> Iterator[int]:
        """Keep the sessions and the scopes directly inside them, and yield their places.

        In `above`, which has the place of the scope around each one, they become topmost.
        """
        for place, (number, span) in enumerate(numbered):
            if span.name in _KEPT and span.id is not None:
                around = int(above[place])
                if around >= 0 and (numbered[around][1].name != SESSION or above[around] >= 0):
                    continue
                above[place] = -1
                detach(span)
                self._kept.append((number, span))
                yield place

    def finish(self) -> list[SessionSummary]:
        """Return all sessions in order of their start; those without an id come last.

        Raises NotReducibleError.
        """
        ids = self._ids.ordered()
        tree = ScopeTree({None: self._kept})
        above = {*self._below, *self._attached, *(span.parent_id for _, span in self._kept)}
        gone = (each for each in above if each is not None and tree.numbered(each) is None)
        if any(contains(ids, each) for each in gone):
            raise NotReducibleError("a record came after the scope that it is inside of")
        extents = {
            (parent, pid): extent
            for parent, by_pid in self._below.items()
            for pid, extent in by_pid.items()
        }
        for id_, extent in self._attached.items():
            if (found := tree.numbered(id_)) is not None:
                extents.setdefault((id_, found[1].pid), Extent()).join(extent)
        summaries = SessionMembers(tree, extents, partial(contains, ids)).summaries()
        for each in summaries:
            if each.id in self._attached and tree.numbered(each.id) is None:
                each.marks += self._attached[each.id].marks
                each.snapshots += self._attached[each.id].snapshots
        return summaries
