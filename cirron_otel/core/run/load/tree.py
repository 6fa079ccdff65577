"""The scopes outside of units, and the sessions to which all spans belong."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ....semconv import SESSION
from ...analysis.breakdown import STEP
from ...analysis.sessions import HANG_ON_SESSIONS, FoundSession, SessionFinder, closed_session
from ...analysis.summary import SessionSummary
from ...records.rows import IndexedSpan, shown
from ..relations import ABSENT, MOST_LEVELS, Block, Texts
from .errors import NotReducibleError
from .phases import Numbered

_MOST_LISTED: Final = 1000


UnitsKey: TypeAlias = tuple[str | None, int | None]
"""The id of the parent of some units, and the process that recorded them."""


@dataclass(slots=True)
class Extent:
    """The number of some spans, their earliest start and latest end, and their processes."""

    spans: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    ranks: set[int | None] = field(default_factory=set)
    pids: set[int | None] = field(default_factory=set)
    top: tuple[int, int | None, int] | None = None
    """The number, the process and the start of the first one."""
    last: tuple[int, int, Any] | None = None
    """The start, the number and the index of the step that started last."""
    marks: int = 0
    snapshots: int = 0
    """The numbers of marks and snapshots; 0 if these are not counted."""

    def add(self, number: int, span: IndexedSpan, inside: Sequence[Numbered] = ()) -> None:
        """Add a span that may be the first one, and the spans inside it."""
        self.add_all([(number, span), *inside])
        if self.top is None or number < self.top[0]:
            self.top = number, span.pid, span.start_ns or 0

    def add_step(self, number: int, span: IndexedSpan) -> None:
        """Note a step that was added: it may be the last one."""
        start = -1 if span.start_ns is None else span.start_ns
        if self.last is None or (start, number) > self.last[:2]:
            self.last = start, number, span.index

    def add_all(self, spans: Sequence[Numbered]) -> None:
        """Add spans, most of which are of processes that are known, and within the extent."""
        first, last, ranks, pids = self.first_ns, self.last_ns, self.ranks, self.pids
        for _, span in spans:
            start, end = span.start_ns, span.end_ns
            if start is not None and (first is None or start < first):
                first = start
            if end is not None and (last is None or end > last):
                last = end
            if span.rank not in ranks or span.pid not in pids:
                ranks.add(span.rank)
                pids.add(span.pid)
        self.spans += len(spans)
        self.first_ns, self.last_ns = first, last

    def join(self, other: Extent) -> None:
        """Add the spans of another extent."""
        self.spans += other.spans
        self.marks += other.marks
        self.snapshots += other.snapshots
        for name, smaller in (("first_ns", min), ("last_ns", max)):
            times = [t for t in (getattr(self, name), getattr(other, name)) if t is not None]
            setattr(self, name, smaller(times, default=None))
        self.ranks |= other.ranks
        self.pids |= other.pids
        if other.last is not None and (self.last is None or other.last[:2] > self.last[:2]):
            self.last = other.last


class LastStep(NamedTuple):
    """The step of a session that started last."""

    step: str | None
    """Its index."""
    parent: str | None
    """The id of the scope around it, or around the unit that it is inside of."""


class ScopeTree:
    """The scopes that are neither units nor inside them."""

    def __init__(self, waiting: Mapping[str | None, list[Numbered]]) -> None:
        """`waiting` has the scopes by the ids of their parents."""
        self.scopes = sorted(
            (each for spans in waiting.values() for each in spans), key=lambda each: each[0]
        )
        self._by_id = {each[1].id: each for each in self.scopes if each[1].id is not None}

    def numbered(self, id_: str | None) -> Numbered | None:
        """Return the scope with an id and its number, or None."""
        return None if id_ is None else self._by_id.get(id_)

    def by_number(self, number: int) -> IndexedSpan | None:
        """Return the scope with a number, or None."""
        place = bisect.bisect_left(self.scopes, number, key=lambda each: each[0])
        if place == len(self.scopes) or self.scopes[place][0] != number:
            return None
        return self.scopes[place][1]

    def top_of(self, number: int, span: IndexedSpan) -> int | None:
        """Return the number of the topmost recorded scope around a scope; None in a cycle."""
        seen = {number}
        while (above := self.numbered(span.parent_id)) is not None:
            number, span = above
            if number in seen:
                return None
            seen.add(number)
        return number

    def epoch_of(
        self, id_: str | None, open_scopes: Mapping[str, tuple[str | None, ...]]
    ) -> str | None:
        """Return the index of the epoch that a scope is, or is in; None without one.

        `open_scopes` has the parent, the name and the index of scopes that have not ended.
        """
        for _ in range(MOST_LEVELS + 1):
            if id_ is None:
                return None
            found = self._by_id.get(id_)
            if found is None:
                parent, name, number = open_scopes.get(id_, (None, None, None))
            else:
                span = found[1]
                parent, name, number = span.parent_id, shown(span.name), shown(span.index)
            if name == "epoch":
                return number
            id_ = parent
        return None


class SessionMembers:
    """The session of each scope, and of the units by the ids of their parents."""

    def __init__(
        self,
        tree: ScopeTree,
        units: Mapping[UnitsKey, Extent],
        is_recorded: Callable[[str], bool],
    ) -> None:
        """`units` has the extents of the units, with what is inside them.

        Raises NotReducibleError if the session of a unit depends on its time.
        """
        self._tree, self._units = tree, units
        self._divided: dict[UnitsKey, dict[int, Extent]] = {}
        """The extents by session of units whose session depends on the time of each."""
        self.finder = finder = SessionFinder(
            (
                closed_session(span.id, span.pid, span.start_ns, span.end_ns, shown(span.error))
                for _, span in tree.scopes
                if span.parent_id is None and span.name == SESSION and span.id is not None
            ),
            (
                FoundSession(span.parent_id, "unfinished", span.pid, span.start_ns, None)
                for _, span in tree.scopes
                if span.name in HANG_ON_SESSIONS
                and span.parent_id is not None
                and not is_recorded(span.parent_id)
            ),
        )
        tops: list[tuple[int, IndexedSpan | None, UnitsKey, Extent | None]] = [
            (number, span, (span.parent_id, span.pid), None)
            for number, span in tree.scopes
            if span.parent_id is None or not is_recorded(span.parent_id)
        ]
        for key, of_units in units.items():
            parent, pid = key
            if of_units.top is not None and (parent is None or not is_recorded(parent)):
                if finder.is_unclear(parent, pid):
                    self._divided[key] = {}
                else:
                    tops.append((of_units.top[0], None, key, of_units))
        self._of_top: dict[int, int] = {}
        """The sessions of the topmost scopes, by their numbers."""
        self._of_units: dict[UnitsKey, int] = {}
        for number, span, key, extent in sorted(tops, key=lambda top: top[0]):
            parent, pid = key
            if span is not None:
                own = span.id if parent is None and span.name == SESSION else parent
                self._of_top[number] = finder.of_top(own, pid, span.start_ns or 0)
            elif extent is not None and extent.top is not None:
                self._of_units[key] = finder.of_top(parent, pid, extent.top[2])
        if self._divided:
            self._divide()

    def _divide(self) -> None:
        """Fill `_divided`, which has the keys of the units."""
        raise NotReducibleError("a unit's session depends on its time")

    def _extents(self) -> Iterator[tuple[UnitsKey, Extent, int | None]]:
        """Yield the extents of the units of each session."""
        for key, extent in self._units.items():
            if key not in self._divided:
                yield key, extent, self.of_units(key)
        for key, extents in self._divided.items():
            for session, extent in extents.items():
                yield key, extent, session

    def of_scope(self, number: int, span: IndexedSpan) -> int | None:
        """Return the session of a scope; None in a cycle."""
        top = self._tree.top_of(number, span)
        return None if top is None else self._of_top.get(top)

    def of_units(self, key: UnitsKey) -> int | None:
        """Return the session of the units with a parent and a process."""
        found = self._tree.numbered(key[0])
        return self._of_units.get(key) if found is None else self.of_scope(*found)

    def of_block(self, texts: Texts, units: Block) -> np.ndarray:
        """Return the number of the session of each unit; -1 for one without a session."""

        def number_of(parent: int, pid: int) -> int:
            session = self.of_units((texts.text(parent), None if pid == ABSENT else pid))
            return -1 if session is None else session

        parent, pid = units["parent"], units["pid"]
        is_new = np.r_[len(parent) > 0, (parent[1:] != parent[:-1]) | (pid[1:] != pid[:-1])]
        firsts = np.flatnonzero(is_new)
        pairs = list(zip(parent[firsts].tolist(), pid[firsts].tolist(), strict=True))
        known = {pair: number_of(*pair) for pair in set(pairs)}
        found = np.array([known[pair] for pair in pairs], np.int64)
        return np.repeat(found, np.diff([*firsts, len(parent)]))

    def id_of(self, number: int, units: UnitsKey | None) -> str | None:
        """Return the id of the session of a scope, or of units."""
        if units is not None:
            session = self.of_units(units)
        else:
            span = self._tree.by_number(number)
            session = None if span is None else self.of_scope(number, span)
        return self._key_of(session)

    def _key_of(self, session: int | None) -> str | None:
        return None if session is None else self.finder.sessions[session].key

    def last_step(self, session: str) -> LastStep | None:
        """Return the step of a session that started last."""
        found: list[tuple[int, int, str | None, str | None]] = [
            (*extent.last[:2], shown(extent.last[2]), key[0])
            for key, extent, number in self._extents()
            if extent.last is not None and self._key_of(number) == session
        ]
        found += [
            (span.start_ns if span.start_ns is not None else -1, number, shown(span.index),
             span.parent_id)
            for number, span in self._tree.scopes
            if span.name == STEP and self.id_of(number, None) == session
        ]  # fmt: skip
        if not found:
            return None
        _, _, index, parent = max(found, key=lambda step: step[:2])
        return LastStep(index, parent)

    def summaries(self) -> list[SessionSummary]:
        """Return all sessions in order of their start; those without an id come last.

        They have the numbers of marks and snapshots that the extents have.
        """
        extents = {number: Extent() for number in range(len(self.finder.sessions))}
        for number, span in self._tree.scopes:
            session = self.of_scope(number, span)
            if session is not None:
                extents[session].add(number, span)
        for _, extent, session in self._extents():
            if session is not None:
                extents[session].join(extent)
        summaries = [
            SessionSummary(
                each.key, each.state, None, extent.first_ns, extent.last_ns, extent.spans,
                extent.marks, extent.snapshots, listed(extent.ranks), listed(extent.pids),
            )
            for each, extent in zip(self.finder.sessions, extents.values(), strict=True)
        ]  # fmt: skip
        for number, each in enumerate(self.finder.sessions):
            found = self._tree.numbered(each.key)
            summaries[number].error = None if found is None else shown(found[1].error)
        return sorted(
            summaries, key=lambda each: (each.id is None, each.start_ns or 0, each.id or "")
        )


def listed(numbers: set[int | None]) -> list[int]:
    """Return the lowest 1,000 of some numbers that are known."""
    return sorted(number for number in numbers if number is not None)[:_MOST_LISTED]
