"""Reduces the batches of a recording to its relations in one pass.

A scope is recorded when it ends, so its children precede it, or follow it soon: a step may end with
its last phase. The reducer keeps each span until its parent arrives. A step becomes a unit when the
next batch of its process arrives, and the spans inside it become parts. Few recordings
break this order: a record occurs twice, a child comes after its parent, or a step is inside another
one. The reducer then raises `NotReducibleError`, and `arranged` reads the recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from ...analysis.breakdown import FORWARD, STEP
from ...analysis.run_batch import details_of_rows
from ...analysis.summary import SessionSummary
from ...records.memory_marks import MemoryMark
from ...records.rows import IndexedBatch, IndexedMark, IndexedSpan, detach, rows_of, shown
from ...records.run_summary import SummaryValue, values_of_marks, values_of_spans
from ...records.step_summaries import expand, may_have_summaries
from ...spool.reader import BatchFile
from ..relations import Block, Texts
from ..shapes.producers import REQUEST, TRAINING, Producer, producer_of
from .blocks import unit_blocks
from .canonical import CanonicalNames, is_canonical
from .errors import NotReducibleError
from .hashes import IdHashes, are_in, contains, hashes_of
from .lanes import LaneSums
from .marks import Marks
from .overheads import Overheads
from .phases import Numbered, duration_of
from .places import Place, Places
from .tree import Extent, LastStep, ScopeTree, SessionMembers, UnitsKey
from .unit_builder import NotedSpan, UnitBuilder

_Process: TypeAlias = tuple[int | None, int | None]
"""The process id and the rank: in containers, all processes may have the same id."""
_NEEDS_SHAPE: Final = "a producer whose scopes need a shape"
MOST_PENDING: Final = 500_000
"""The maximum number of spans that wait for their parents."""


class Reducer:
    """Reduces spans that are added in the order of the recording; then call `finish`."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self._places = Places()
        self._forward: int | None = None
        self.built = UnitBuilder(texts)
        self.marks = Marks(texts)
        self.sums = LaneSums()
        self._overheads = Overheads()
        self.spans = 0
        self._waiting: dict[str | None, list[Numbered]] = {}
        self._steps: dict[_Process, list[Numbered]] = {}
        """The steps of the last batch of each process."""
        self._before: dict[_Process, Sequence[IndexedSpan]] = {}
        """The spans of the last batch of each process."""
        self._count = 0
        self._canonical = CanonicalNames()
        self._has_sdk = False
        """Whether there are batches of cirron-sdk."""
        self._has_foreign = self._has_own = False
        """Whether there are batches of another service, and spans of this package."""
        self._ids = IdHashes()

    def add_batch(self, batch: BatchFile) -> None:
        """Add a batch. Raises NotReducibleError."""
        self.add_rows(batch.name, rows_of(batch.data), batch.data)

    def add_rows(self, name: str, rows: IndexedBatch, data: bytes) -> None:
        """Add the rows of the batch with some data. Raises NotReducibleError."""
        producer = producer_of(rows)
        if producer is Producer.CIRRON_SDK:
            if not self._canonical.has_batch(rows, data):
                raise NotReducibleError(_NEEDS_SHAPE)
            self._has_sdk = True
        elif producer is Producer.FOREIGN:
            self._has_foreign = True
        elif rows.spans:
            self._has_own = True
        if rows.spans:
            self.sums.add_details((span.rank for span in rows.spans), details_of_rows(rows))
        name, first = shown(name) or "", self.spans + 1
        if may_have_summaries(data):
            expanded = list(expand(rows))
            self._places.add(name, first, [position for position, _ in expanded])
            self.add([span for _, span in expanded], rows.marks)
        else:
            self._places.add(name, first)
            self.add(rows.spans, rows.marks)

    def add(self, spans: Sequence[IndexedSpan], marks: Iterable[IndexedMark] = ()) -> None:
        """Add the spans and the marks of a batch. Raises NotReducibleError."""
        overhead = self.marks.add(marks)
        if overhead:
            self._overheads.add(spans, overhead)
        waiting, number = self._waiting, self.spans
        ids: list[str | None] = []
        steps: list[Numbered] = []
        process = (spans[0].pid, spans[0].rank) if spans else (None, None)
        before = self._before.pop(process, ())
        self._before[process] = spans
        for span in spans:
            number += 1
            ids.append(span.id)
            if span.name == STEP and duration_of(span) is not None:
                steps.append((number, span))
                continue
            beside = waiting.get(span.parent_id)
            if beside is None:
                waiting[span.parent_id] = [(number, span)]
            else:
                beside.append((number, span))
            self._count += 1
        if steps:
            self._add_units(self._steps.pop(process, ()))
            self._steps[process] = steps
        for span in before:
            if span.parent_id in waiting:
                detach(span)
        if self._forward is None:
            self._forward = next(
                (at for at, span in enumerate(spans, self.spans + 1)
                 if span.name == FORWARD and span.id is not None), None,
            )  # fmt: skip
        self.sums.add(spans)
        self.spans = number
        self._ids.add(ids)
        if self._count > MOST_PENDING:
            raise NotReducibleError("too many spans wait for their parents")

    def finish(self) -> None:
        """Add the last units, and check the order of all spans. Raises NotReducibleError."""
        for steps in self._steps.values():
            self._add_units(steps)
        self._steps.clear()
        self._before.clear()
        if self._has_foreign and not self._has_own and not self.built.units.count:
            raise NotReducibleError(_NEEDS_SHAPE)
        for spans in self._waiting.values():
            for _, span in spans:
                detach(span)
        self.built.units.seal()
        self.built.parts.seal()
        self._overheads.finish(self.sums)
        ids = self._ids.ordered()
        is_recorded = partial(contains, ids)
        self._check_left(ids)
        self.tree = ScopeTree(self._waiting)
        units = self.built.units
        if self._has_sdk and not is_canonical(self.tree, units, self.built.parts, self.texts):
            raise NotReducibleError(_NEEDS_SHAPE)
        if not units.count and self._has_other_units():
            raise NotReducibleError(_NEEDS_SHAPE)
        self.marks.finish(self.tree, is_recorded)
        self._members = SessionMembers(self.tree, self.built.extents, is_recorded)

    def _has_other_units(self) -> bool:
        names = {span.name for _, span in self.tree.scopes}
        return REQUEST in names or not TRAINING.isdisjoint(names)

    def sessions(self) -> list[SessionSummary]:
        """Return all sessions in order of their start; those without an id come last."""
        return self._members.summaries()

    def unit_sessions(self, units: Block) -> np.ndarray:
        """Return the number of the session of each unit; -1 for one without a session."""
        return self._members.of_block(self.texts, units)

    @property
    def unit_name(self) -> str:
        """The recorded name of the units."""
        return STEP

    @property
    def noted(self) -> list[NotedSpan]:
        """The spans inside units that figures need."""
        return self.built.noted

    @property
    def extents(self) -> dict[UnitsKey, Extent]:
        """The extents of the units, with what is inside them, by parent and process."""
        return self.built.extents

    def session_of(self, number: int, units: UnitsKey | None) -> str | None:
        """Return the id of the session of a span; `units` are those that it belongs to."""
        return self._members.id_of(number, units)

    def last_step(self, session: str) -> LastStep | None:
        """Return the step of a session that started last."""
        return self._members.last_step(session)

    def unit_tokens(self) -> None:
        """Return None: the tokens of requests are read by `ArrangedRecording`."""

    def unit_files(self, units: Block) -> list[str]:
        """Return the name of the batch of each unit."""
        return self._places.files_of(units["no"])

    def unit_blocks(self, *, by_rank: bool = True) -> Iterator[tuple[Block, Block]]:
        """Yield the units by rank, start and number, or by start, and their parts in order."""
        return unit_blocks(self.built.units, self.built.parts, by_rank=by_rank)

    def out_of_memory(self) -> list[tuple[int, IndexedMark]]:
        """Return the out-of-memory marks, each with its number."""
        return self.marks.out_of_memory

    def summary_values(self) -> Iterator[SummaryValue]:
        """Yield the figures of a run of which only a summary was imported."""
        yield from values_of_spans(span for _, span in self.tree.scopes)
        yield from values_of_marks(self.marks.of_summary)

    def place_of(self, number: int) -> Place | None:
        """Return the place of the record of the span with a number."""
        return self._places.of(number)

    def first_forward(self) -> int | None:
        """Return the number of the first forward pass with an id."""
        return self._forward

    def files(self) -> list[str]:
        """Return the names of the batches."""
        return self._places.names

    def mark_blocks(self) -> Iterator[Block]:
        """Yield the relation `mark`, in any order, after `finish`."""
        return self.marks.blocks(self.tree)

    def samples(self) -> Iterable[tuple[int, IndexedMark, MemoryMark, IndexedSpan | None]]:
        """Return the marks about memory, each with the scope that it is on."""
        return self.marks.samples

    def _check_left(self, ids: np.ndarray) -> None:
        """Check that no span came after its parent, and that no unit is inside another one."""
        known = {
            span.id for spans in self._waiting.values() for _, span in spans if span.id is not None
        }
        above = (*self._waiting, *(parent for parent, _ in self.built.extents))
        parents = {each for each in above if each is not None}
        gone = hashes_of(parent for parent in parents if parent not in known)
        if are_in(ids, gone).any():
            raise NotReducibleError("a span came after its parent, or a unit is inside another one")

    def _add_units(self, steps: Iterable[Numbered]) -> None:
        for number, span in steps:
            inside = self._waiting.pop(span.id, None) if span.id is not None else None
            inside, below = inside or [], {}
            self.marks.place(number, span, inside)
            if any(each.id in self._waiting for _, each in inside):
                below = self._take(span.id, inside)
                self.marks.place_below(number, span, {span.id: inside, **below})
            else:
                self._count -= len(inside)
            self.built.add(number, span, inside, below)
            if len(self.built.extents) > MOST_PENDING:
                raise NotReducibleError("too many spans contain units")

    def _take(self, unit: str | None, inside: list[Numbered]) -> dict[str | None, list[Numbered]]:
        """Return all spans below those in a unit by the ids of their parents; they wait no longer.

        If an id occurs twice, spans may contain each other: raises NotReducibleError.
        """
        below: dict[str | None, list[Numbered]] = {}
        todo = list(inside)
        while todo:
            self._count -= 1
            _, span = todo.pop()
            found = None if span.id is None else self._waiting.pop(span.id, None)
            if found is not None:
                below[span.id] = found
                todo += found
            elif span.id is not None and (span.id == unit or span.id in below):
                raise NotReducibleError("a span occurs twice")
        return below
