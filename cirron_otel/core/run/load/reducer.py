"""Reduces the batches of a recording to its relations in one pass, without a database.

A scope is recorded when it ends, so its children precede it, or follow it soon: a step may end with
its last phase. The reducer keeps each span until its parent arrives. A step becomes a unit when the
next batch of its process arrives, and the spans inside it become parts. Few recordings
break this order: a record occurs twice, a child comes after its parent, or a step is inside another
one. The reducer then raises `NeedsIndexError`, and the recording is read with a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ....semconv import MICRO_STEP
from ...analysis.breakdown import STEP, is_checkpoint
from ...records.rows import IndexedMark, IndexedSpan, shown
from ...records.step_summaries import ExpandedSpan
from ..relations import ABSENT, SAMPLED, SUMMARY, SUMS, Texts
from .columns import Columns
from .errors import NeedsIndexError
from .lanes import LaneSums
from .marks import Marks
from .phases import Numbered, duration_of, own_times, parts_of
from .tree import Extent, ScopeTree

MOST_PENDING: Final = 500_000
"""The most spans that may wait for their parents."""
_INT64: Final = range(-(2**63) + 1, 2**63)


class Reducer:
    """Reduces spans that are added in the order of the recording; then call `finish`."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.units, self.parts = Columns("unit"), Columns("part")
        self.marks = Marks(texts)
        self.sums = LaneSums()
        self.spans = 0
        self._waiting: dict[str | None, list[Numbered]] = {}
        self.extents: dict[str | None, Extent] = {}
        """The extents of the units, with what is inside them, by the ids of their parents."""
        self.noted: list[Numbered] = []
        """The spans inside units that figures need: evaluations, checkpoints, and failed ones."""
        self._steps: dict[int | None, list[Numbered]] = {}
        """The steps of the last batch of each process."""
        self._names: dict[str | None, bool] = {}
        """Whether spans with a name are noted."""
        self._count = 0
        self._ids: list[np.ndarray] = []

    def add(self, spans: Sequence[IndexedSpan], marks: Iterable[IndexedMark] = ()) -> None:
        """Add the spans and the marks of a batch. Raises NeedsIndexError."""
        self.marks.add(marks)
        waiting, number = self._waiting, self.spans
        ids: list[str | None] = []
        steps: list[Numbered] = []
        for span in spans:
            number += 1
            ids.append(span.id)
            if span.name == STEP and span.start_ns is not None and span.end_ns is not None:
                steps.append((number, span))
                continue
            beside = waiting.get(span.parent_id)
            if beside is None:
                waiting[span.parent_id] = [(number, span)]
            else:
                beside.append((number, span))
            self._count += 1
        if steps:
            pid = steps[0][1].pid
            self._add_units(self._steps.pop(pid, ()))
            self._steps[pid] = steps
        self.sums.add(spans)
        self.spans = number
        self._ids.append(_hashes(ids))
        if self._count > MOST_PENDING:
            raise NeedsIndexError("too many spans wait for their parents")

    def finish(self) -> None:
        """Add the last units, and check the order of all spans. Raises NeedsIndexError."""
        for steps in self._steps.values():
            self._add_units(steps)
        self._steps.clear()
        ids = np.concatenate(self._ids) if self._ids else np.zeros(0, np.int64)
        ids = ids[ids != 0]
        ids.sort()
        if (ids[1:] == ids[:-1]).any():
            raise NeedsIndexError("a span occurs twice")
        self._check_left(ids)
        self._sorted_ids = ids
        self.tree = ScopeTree(self._waiting)
        self.marks.finish(self.tree, self.is_recorded)

    def is_recorded(self, id_: str) -> bool:
        """Return whether a span with this id was added, after `finish`."""
        ids, wanted = self._sorted_ids, hash(id_)
        place = int(np.searchsorted(ids, wanted))
        return place < len(ids) and bool(ids[place] == wanted)

    def _check_left(self, ids: np.ndarray) -> None:
        """Check that no span came after its parent, and that no unit is inside another one."""
        known = {
            span.id for spans in self._waiting.values() for _, span in spans if span.id is not None
        }
        parents = {each for each in (*self._waiting, *self.extents) if each is not None}
        gone = _hashes(parent for parent in parents if parent not in known)
        if len(ids) and (ids[np.searchsorted(ids, gone) % len(ids)] == gone).any():
            raise NeedsIndexError("a span came after its parent, or a unit is inside another one")

    def _add_units(self, steps: Iterable[Numbered]) -> None:
        for number, span in steps:
            inside = self._waiting.pop(span.id, None) if span.id is not None else None
            self._add_unit(number, span, inside or [])

    def _add_unit(self, number: int, span: IndexedSpan, inside: list[Numbered]) -> None:
        extent = self.extents.get(span.parent_id)
        if extent is None:
            extent = self.extents[span.parent_id] = Extent()
        extent.add(number, span)
        self.marks.place(number, span, inside)
        count = self._add_parts(number, span, inside, extent)
        if len(self.extents) > MOST_PENDING:
            raise NeedsIndexError("too many spans contain units")
        flags = 0
        device_peak: int | None = None
        reserved_peak: int | None = None
        if span.has_attributes:
            device_peak, reserved_peak = span.device_peaks
            flags = SAMPLED * span.is_peak_sampled + SUMS * span.phases_are_sums
        if isinstance(span, ExpandedSpan):
            flags |= SUMMARY
        token = self.texts.token
        self.units.add((
            number, *self.texts.halves(span.id), token(span.parent_id), _integer(span.rank),
            _integer(span.pid), token(shown(span.index)), span.start_ns, duration_of(span),
            _integer(span.gpu_ns), token(shown(span.error) if span.otel is not None else None),
            _integer(span.memory_peak_bytes), _integer(device_peak), _integer(reserved_peak),
            flags, count,
        ))  # fmt: skip

    def _add_parts(
        self, unit: int, span: IndexedSpan, inside: list[Numbered], extent: Extent
    ) -> int:
        token = self.texts.token
        waiting = self._waiting
        if not any(each.id in waiting for _, each in inside):
            self._count -= len(inside)
            extent.add_all(inside)
            self._note(inside)
            rows = [
                (unit, no, token(shown(each.name) or "?"), ns, _device(each.gpu_ns))
                for no, each in inside
                if each.name != MICRO_STEP and (ns := duration_of(each)) is not None
            ]
        else:
            below = self._take(inside)
            for spans in (inside, *below.values()):
                extent.add_all(spans)
                self._note(spans)
            self.marks.place_below(unit, span, {span.id: inside, **below})
            rows = []
            for part in parts_of(inside, lambda parent: below.get(parent, ())):
                if part.is_phase and part.ns is not None:
                    ns, gpu_ns = own_times(part)
                    name = token(shown(part.span.name) or "?")
                    rows.append((unit, part.no, name, ns, _device(gpu_ns)))
        for row in rows:
            self.parts.add(row)
        return len(rows)

    def _note(self, spans: Iterable[Numbered]) -> None:
        noted = self._names
        for each in spans:
            span = each[1]
            name = span.name
            is_noted = noted.get(name)
            if is_noted is None:
                is_noted = noted[name] = name == "eval" or is_checkpoint(name)
            if is_noted or (span.otel is not None and span.error is not None):
                self.noted.append(each)

    def _take(self, inside: list[Numbered]) -> dict[str | None, list[Numbered]]:
        """Return all spans below some spans by the ids of their parents; they wait no longer."""
        below: dict[str | None, list[Numbered]] = {}
        todo = list(inside)
        while todo:
            self._count -= 1
            _, span = todo.pop()
            found = None if span.id is None else self._waiting.pop(span.id, None)
            if found is not None:
                below[span.id] = found
                todo += found
        return below


def _device(gpu_ns: int | None) -> int:
    return ABSENT if gpu_ns is None else max(gpu_ns, 0)


def _integer(value: Any) -> int:
    return value if value is not None and value in _INT64 else ABSENT


def _hashes(ids: Iterable[str | None]) -> np.ndarray:
    """Return a hash of each id; 0 for a missing one."""
    return np.fromiter((hash(each) if each is not None else 0 for each in ids), np.int64)
