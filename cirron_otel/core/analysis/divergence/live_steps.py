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
from .dropped_marks import dropped_in
from .observed_steps import StepKey, sortable

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

    @property
    def rank(self) -> int | None:
        """The recorded rank."""
        return None if self.span is None else self.span.rank

    @property
    def has_failed(self) -> bool:
        """Whether the step ended with an error."""
        return self.span is not None and self.span.error is not None

    @property
    def start_ns(self) -> int:
        """The start, for the order of the steps."""
        return (self.span.start_ns or 0) if self.span is not None else 0


@dataclass(slots=True)
class _Numbering:
    """The last numbers of a session's steps, and how often they have begun again, plus one."""

    last: tuple[tuple[int, str], tuple[int, str]] | None = None
    turn: int = 1

    def turn_of(self, epoch: str | None, number: str | None) -> int:
        """Return the turn of the next step."""
        is_again = self.last is not None and (sortable(epoch), sortable(number)) <= self.last
        return self.turn + is_again


class LiveSteps:
    """Collects batches; yields their steps with the numbers by which the reference has them."""

    def __init__(self) -> None:
        self._scopes: dict[str, _OpenScope] = {}
        self._sessions: set[str] = set()
        self._steps: dict[str, LiveStep] = {}
        self._numbering: dict[str | None, _Numbering] = {}
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
            if span.name == _STEP:
                latest = self._latest.get(otel.session, 0)
                self._latest[otel.session] = max(latest, span.start_ns or 0)
            if span.name == SESSION:
                self.dropped += dropped_in(span.attributes)
            if span.id in self._steps:
                self._steps[span.id].span, self._steps[span.id].session = span, otel.session
            elif span.id is not None and span.name == _EPOCH:
                self._scopes[span.id] = _OpenScope(span.id, _EPOCH, span.index, span.parent_id)
            elif span.id is not None:
                self._scopes.pop(span.id, None)
        while len(self._steps) > _MAX_OPEN:
            del self._steps[next(iter(self._steps))]

    def add_open(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add scopes that are still open, as a journal records them."""
        for each in records:
            if each.get("name") == _EPOCH and isinstance(each.get("id"), str):
                scope = _OpenScope(each["id"], _EPOCH, each.get("index"), each.get("parent_id"))
                self._scopes.setdefault(scope.id, scope)

    @property
    def lacks_epoch(self) -> bool:
        """Whether the epoch of a step that has ended is not known."""
        return any(
            step.span is not None and not self._epoch(step)[0] for step in self._steps.values()
        )

    def ended(self, *, is_last: bool) -> Iterator[tuple[StepKey, LiveStep]]:
        """Yield the steps whose span has arrived, in order; `take` removes one.

        The steps of a session after one that is not taken are left out, and so are those of an
        epoch that is not known yet, unless `is_last`.
        """
        blocked: set[str | None] = set()
        ended = [(key, step) for key, step in self._steps.items() if step.span is not None]
        for span_id, step in sorted(ended, key=lambda each: each[1].start_ns):
            step.looks += 1
            is_known, epoch = self._epoch(step)
            if step.session not in blocked and (is_known or is_last):
                yield self._key(step, epoch), step
            if span_id in self._steps:
                blocked.add(step.session)

    def is_cut(self, step: LiveStep) -> bool:
        """Return whether a step ended with an error, and its session has no later one so far."""
        return step.has_failed and self._latest.get(step.session, 0) <= step.start_ns

    def take(self, key: StepKey, step: LiveStep) -> None:
        """Remove a step that `ended` has yielded."""
        numbering = self._numbering.setdefault(step.session, _Numbering())
        numbering.last, numbering.turn = (sortable(key.epoch), sortable(key.number)), key.turn
        if step.span is not None and step.span.id is not None:
            del self._steps[step.span.id]

    def _key(self, step: LiveStep, epoch: str | None) -> StepKey:
        number = None if step.span is None else shown(step.span.index)
        if number is None:
            turn = step.marks[0][2].step + 1
        else:
            turn = self._numbering.get(step.session, _Numbering()).turn_of(epoch, number)
        return StepKey(step.rank or 0, epoch, number, turn)

    def _epoch(self, step: LiveStep) -> tuple[bool, str | None]:
        """Return whether a step's epoch is known, and its number; None if it has none."""
        parent = None if step.span is None else step.span.parent_id
        for _ in range(_MAX_DEPTH):
            if parent is None or parent in self._sessions:
                break
            scope = self._scopes.get(parent)
            if scope is None:
                return False, None
            if scope.name == _EPOCH:
                return True, shown(scope.index)
            parent = scope.parent_id
        return True, None


def _otel_of(data: bytes) -> _Otel:
    """Return what a batch of this project's SDK contains about its session."""
    try:
        return _decoder.decode(data).otel or _Otel()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _Otel()
