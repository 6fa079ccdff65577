"""The steps of a run that is being recorded, in order, as soon as all of their marks have arrived.

The marks of a step wait until its span arrives. Memory holds the open steps and the epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ....semconv import SESSION
from ...records.digest_marks import DigestMark, digest_mark
from ...records.rows import IndexedSpan, rows_of, shown
from ...spool.reader import BatchFile
from ..run_report import dropped_in
from .observed_steps import Numbering, StepKey

_EPOCH: Final = "epoch"
_STEP: Final = "step"
_MAX_DEPTH: Final = 64
_MAX_OPEN: Final = 10_000
"""The most steps that wait; the oldest is dropped, as if it had no digests."""


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
    """A step with its digests."""

    marks: list[tuple[int, int, DigestMark]] = field(default_factory=list)
    """Each with its time and a number of its own."""
    span: IndexedSpan | None = None
    session: str | None = None
    looks: int = 0
    """How often the step has been looked at since its span arrived."""
    above: str | None = None
    """The id of the innermost scope around the step that has not been looked up."""
    epoch: str | None = None
    is_placed: bool = False
    """Whether the scopes around the step have been looked up; `epoch` is final then."""
    is_nested: bool = False
    """Whether another step contains the step."""

    @property
    def rank(self) -> int | None:
        """The recorded rank."""
        return None if self.span is None else self.span.rank

    @property
    def number(self) -> str | None:
        """The number in the epoch; None if the step has none."""
        return None if self.span is None else shown(self.span.index)

    @property
    def has_failed(self) -> bool:
        """Whether the step ended with an error."""
        return self.span is not None and self.span.error is not None

    @property
    def start_ns(self) -> int:
        """The start, for the order of the steps."""
        return (self.span.start_ns or 0) if self.span is not None else 0

    @property
    def end_ns(self) -> int:
        """The end, to find out whether another step is later."""
        return (self.span.end_ns or 0) if self.span is not None else 0


class LiveSteps:
    """Collects batches; yields their steps with the numbers by which the reference has them."""

    def __init__(self) -> None:
        self._scopes: dict[str, _OpenScope] = {}
        """The open scopes, and all epochs."""
        self._sessions: set[str] = set()
        self._steps: dict[str, LiveStep] = {}
        self._unnumbered: dict[str, LiveStep] = {}
        """Steps without a number and without digests: they are counted only."""
        self._numbering: dict[str | None, Numbering] = {}
        self._latest: dict[str | None, int] = {}
        """The start of the latest step of each session that has ended."""
        self._count = 0
        self.dropped = 0
        """The number of marks that the ended sessions have dropped."""

    def add(self, batch: BatchFile) -> Iterator[DigestMark]:
        """Add a batch, and yield its digests."""
        rows = rows_of(batch.data)
        otel = _otel_of(batch.data)
        if otel.session is not None:
            self._sessions.add(otel.session)
        self._scopes.update((scope.id, scope) for scope in otel.running)
        for mark in rows.marks:
            digest = digest_mark(mark.name, mark.value, mark.attributes)
            if digest is not None and mark.span_id is not None:
                self._count += 1
                step = self._steps.setdefault(mark.span_id, LiveStep())
                step.marks.append((mark.ts_ns or 0, self._count, digest))
                yield digest
        for span in rows.spans:
            self._add_span(span, otel.session)
        self._place()
        for span in rows.spans:
            if span.id is not None and span.name != _EPOCH:
                self._scopes.pop(span.id, None)
        for waiting in (self._steps, self._unnumbered):
            while len(waiting) > _MAX_OPEN:
                del waiting[next(iter(waiting))]

    def _add_span(self, span: IndexedSpan, session: str | None) -> None:
        if span.name == _STEP:
            self._latest[session] = max(self._latest.get(session, 0), span.start_ns or 0)
        elif span.name == SESSION:
            self.dropped += dropped_in(span.attributes)
        if span.id is None:
            return
        self._scopes[span.id] = _OpenScope(span.id, span.name, span.index, span.parent_id)
        step = self._steps.get(span.id)
        if step is None and span.name == _STEP and shown(span.index) is None:
            step = self._unnumbered[span.id] = LiveStep()
        if step is not None:
            step.span, step.session, step.above = span, session, span.parent_id

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
        """Whether the epoch of a step that has ended is not known."""
        return any(step.span is not None and not step.is_placed for step in self._steps.values())

    def ended(self, *, is_last: bool) -> Iterator[tuple[StepKey, LiveStep]]:
        """Yield the steps whose span has arrived, in order; `take` removes one.

        The steps of a session after one that is not taken are left out, and so are those of an
        epoch that is not known yet, unless `is_last`.
        """
        blocked: set[str | None] = set()
        steps = [*self._steps.items(), *self._unnumbered.items()]
        ended = [(span_id, step) for span_id, step in steps if step.span is not None]
        for span_id, step in sorted(ended, key=lambda each: each[1].start_ns):
            is_ready = step.session not in blocked and (step.is_placed or is_last)
            if not step.marks:
                if is_ready:
                    self._count_unnumbered(span_id, step)
                continue
            step.looks += 1
            if is_ready:
                yield self._key(step), step
            if span_id in self._steps:
                blocked.add(step.session)

    def is_cut(self, step: LiveStep) -> bool:
        """Return whether a step ended with an error, and its session has no later one so far."""
        return step.has_failed and self._latest.get(step.session, 0) < step.end_ns

    def take(self, key: StepKey, step: LiveStep) -> None:
        """Remove a step that `ended` has yielded."""
        numbering = self._numbering.setdefault(step.session, Numbering())
        numbering.take(key.epoch, key.number)
        if step.span is not None and step.span.id is not None:
            del self._steps[step.span.id]

    def _count_unnumbered(self, span_id: str, step: LiveStep) -> None:
        """Count a step without digests, if it is after the first one of its session with them."""
        numbering = self._numbering.get(step.session)
        if numbering is not None and not step.is_nested:
            numbering.take(step.epoch, None)
        del self._unnumbered[span_id]

    def _key(self, step: LiveStep) -> StepKey:
        numbering = self._numbering.get(step.session, Numbering())
        turn = numbering.turn_of(step.epoch, step.number)
        return StepKey(step.rank or 0, step.epoch, step.number, turn)

    def _place(self) -> None:
        """Look up the epochs of the steps that wait."""
        for step in (*self._steps.values(), *self._unnumbered.values()):
            if step.span is not None and not step.is_placed:
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
