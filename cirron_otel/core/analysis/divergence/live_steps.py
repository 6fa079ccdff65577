"""The steps of a run that is being recorded, in order, as soon as all of their marks have arrived.

The marks of a step wait until its span arrives. Memory holds the open steps and the epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ....semconv import SESSION
from ...records.digest_marks import digest_mark
from ...records.rows import IndexedMark, IndexedSpan, rows_of, shown
from ...spool.reader import BatchFile
from ..run_report import dropped_in
from .observed_steps import Numbering, Observation, StepKey, numbers_of
from .recorded_steps import Place, note_layout

_EPOCH: Final = "epoch"
_STEP: Final = "step"
_MAX_DEPTH: Final = 64
_MAX_OPEN: Final = 10_000
"""The maximum number of steps that wait; the oldest is dropped, as if it had no digests."""


class _OpenScope(msgspec.Struct, gc=False):
    """A scope that may contain steps."""

    id: str
    name: str | None = None
    index: object = None
    parent_id: str | None = None


class _Otel(msgspec.Struct, gc=False):
    session: str | None = None
    running: list[_OpenScope] = []


class _Batch(msgspec.Struct, gc=False):
    otel: _Otel | None = None


_decoder: Final = msgspec.json.Decoder(_Batch)


@dataclass(slots=True)
class LiveStep:
    """A step that has ended."""

    span: IndexedSpan
    session: str | None
    marks: list[tuple[int, int, int, Observation]]
    """The digests, each with its time, a number of its own, and the step's number."""
    above: str | None
    """The id of the innermost scope around the step that has not been looked up."""
    looks: int = 0
    """How often the step has been looked at since its span arrived."""
    epoch: str | None = None
    is_placed: bool = False
    """Whether the scopes around the step have been looked up; `epoch` is final then."""
    is_nested: bool = False
    """Whether another step contains the step."""


class LiveSteps:
    """Collects batches; yields their steps with the numbers by which the reference has them."""

    def __init__(self) -> None:
        self._scopes: dict[str, _OpenScope] = {}
        """The open scopes, and all epochs."""
        self._sessions: set[str] = set()
        self._marks: dict[str, list[tuple[int, int, int, Observation]]] = {}
        """The digests of open steps."""
        self._steps: dict[str, LiveStep] = {}
        """Those without digests have no number either; they are counted only."""
        self._numbering: dict[str | None, Numbering] = {}
        self._latest: dict[str | None, int] = {}
        """The start of the latest step of each session that has ended."""
        self._count = 0
        self.names: list[str] = []
        """The names of the batches."""
        self.layouts: dict[str, Place] = {}
        """The marks that have the names of tensors."""
        self.dropped = 0
        """The number of marks that the ended sessions have dropped."""

    def add(self, batch: BatchFile) -> None:
        """Add a batch."""
        rows = rows_of(batch.data)
        otel = _otel_of(batch.data)
        if otel.session is not None:
            self._sessions.add(otel.session)
        self._scopes.update((scope.id, scope) for scope in otel.running)
        for position, mark in enumerate(rows.marks):
            self._add_mark(mark, (len(self.names), position))
        self.names.append(batch.name)
        for span in rows.spans:
            self._add_span(span, otel.session)
        self._place()
        for span in rows.spans:
            if span.id is not None and span.name != _EPOCH:
                self._scopes.pop(span.id, None)
        for waiting in (self._marks, self._steps):
            while len(waiting) > _MAX_OPEN:
                del waiting[next(iter(waiting))]

    def _add_mark(self, mark: IndexedMark, place: Place) -> None:
        digest = digest_mark(mark.name, mark.value, mark.attributes)
        if digest is None or mark.span_id is None:
            return
        note_layout(self.layouts, digest, place)
        self._count += 1
        step = self._steps.get(mark.span_id)
        marks = self._marks.setdefault(mark.span_id, []) if step is None else step.marks
        numbers, is_failed = numbers_of(digest.dtype, digest.bits), digest.failed is not None
        seen = Observation(digest.quantity, digest.digest, *place, numbers, is_failed)
        marks.append((mark.ts_ns or 0, self._count, digest.step, seen))

    def _add_span(self, span: IndexedSpan, session: str | None) -> None:
        if span.name == _STEP:
            self._latest[session] = max(self._latest.get(session, 0), span.start_ns or 0)
        elif span.name == SESSION:
            self.dropped += dropped_in(span.attributes)
        if span.id is None:
            return
        self._scopes[span.id] = _OpenScope(span.id, span.name, span.index, span.parent_id)
        marks = self._marks.pop(span.id, [])
        if marks or (span.name == _STEP and shown(span.index) is None):
            self._steps[span.id] = LiveStep(span, session, marks, span.parent_id)

    def add_open(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add scopes that are still open, as a journal records them."""
        for each in records:
            if isinstance(each.get("id"), str):
                scope = _OpenScope(
                    each["id"], shown(each.get("name")), each.get("index"), each.get("parent_id")
                )
                self._scopes.setdefault(scope.id, scope)
        self._place()

    @property
    def lacks_epoch(self) -> bool:
        """Whether the epoch of a step with digests is not known."""
        return any(step.marks and not step.is_placed for step in self._steps.values())

    def ended(self, *, is_last: bool) -> Iterator[tuple[StepKey, LiveStep]]:
        """Yield the steps with digests in order; `take` removes one.

        The steps of a session after one that is not taken are left out, and so are those of an
        epoch that is not known yet, unless `is_last`.
        """
        blocked: set[str | None] = set()
        for span_id, step in sorted(self._steps.items(), key=lambda e: e[1].span.start_ns or 0):
            is_ready = step.session not in blocked and (step.is_placed or is_last)
            if not step.marks:
                if is_ready:
                    self._count_unnumbered(step)
                    del self._steps[span_id]
                continue
            step.looks += 1
            if is_ready:
                yield self._key(step), step
            if span_id in self._steps:
                blocked.add(step.session)

    def is_cut(self, step: LiveStep) -> bool:
        """Return whether a step ended with an error, and its session has no later one so far."""
        end_ns = step.span.end_ns or 0
        return step.span.error is not None and self._latest.get(step.session, 0) < end_ns

    def take(self, key: StepKey, step: LiveStep) -> None:
        """Remove a step that `ended` has yielded."""
        self._numbering.setdefault(step.session, Numbering()).take(key.epoch, key.number)
        del self._steps[step.span.id or ""]

    def _count_unnumbered(self, step: LiveStep) -> None:
        """Count a step without digests, if it is after the first one of its session with them."""
        numbering = self._numbering.get(step.session)
        if numbering is not None and not step.is_nested:
            numbering.take(step.epoch, None)

    def _key(self, step: LiveStep) -> StepKey:
        numbering = self._numbering.get(step.session, Numbering())
        number = shown(step.span.index)
        turn = numbering.turn_of(step.epoch, number)
        return StepKey(step.span.rank or 0, step.epoch, number, turn)

    def _place(self) -> None:
        """Look up the epochs of the steps that wait."""
        for step in self._steps.values():
            if not step.is_placed:
                self._place_step(step)

    def _place_step(self, step: LiveStep) -> None:
        for _ in range(_MAX_DEPTH):
            if step.above is None or step.above in self._sessions:
                step.is_placed = True
                return
            scope = self._scopes.get(step.above)
            if scope is None:
                return
            if scope.name == _EPOCH:
                step.is_placed, step.epoch = True, shown(scope.index)
                return
            step.is_nested |= scope.name == _STEP
            step.above = scope.parent_id
        step.is_placed = True


def _otel_of(data: bytes) -> _Otel:
    """Return what a batch of this project's SDK contains about its session."""
    try:
        return _decoder.decode(data).otel or _Otel()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _Otel()
