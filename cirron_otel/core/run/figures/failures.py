"""The sessions of a run that failed or were killed, and how far their training had progressed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ....semconv import JOB, OUT_OF_MEMORY, SESSION
from ...analysis.breakdown import STEP
from ...analysis.failures import ENDED, SessionFailure, innermost_frame
from ...analysis.run_traces import BatchLookup, records_at
from ...analysis.summary import SessionSummary
from ...records.rows import IndexedMark, number_of, shown
from ...spool.oom_kills import KILLS_CAUSE
from ..load.tree import LastStep, ScopeTree, UnitsKey
from ..recording import Recording
from ..relations import MOST_LEVELS
from .failed_units import FailedUnitsFold, PlacedUnit
from .last_marks import LastLossFold

_MOST: Final = 100
_EPOCH: Final = "epoch"
_BY_SIGNAL: Final = "the process was ended by SIG"
"""The words of a process that a signal ended, and that could record it."""
_LOST_PEER: Final = re.compile(
    r"gloo/transport|(?:Connection closed by peer|Read error|writev) \["
    r"|NCCL communicator was aborted"
    r"|nccl(?:Remote|System)Error|remote process exited|DistNetworkError"
    r"|Watchdog caught collective operation timeout"
)
"""The errors of a process that lost the connection to another one (torch.distributed)."""


class _FailedScope(NamedTuple):
    """A scope with an error."""

    no: int
    start_ns: int | None
    id: str | None
    name: str | None
    error: str
    units: UnitsKey | None
    """The units that it is one of, or is inside of; None for a scope outside of units."""
    step: str | None
    epoch: str | None
    parent: str | None
    """The id of the scope around it, or around its unit."""

    @property
    def order(self) -> tuple[bool, int, int]:
        """The place in the order of starts; a scope without a start comes first."""
        return self.start_ns is not None, self.start_ns or 0, self.no


class Failures:
    """The failures of a run, after all units and marks were added to its folds."""

    def __init__(self, recording: Recording, sessions: Iterable[SessionSummary]) -> None:
        self._recording = recording
        self._ended = [each for each in sessions if each.state in ENDED and each.id is not None]
        del self._ended[_MOST:]
        self._times = {each.id: self._time_of(each) for each in self._ended}
        spans = [(e.start_ns, e.end_ns) for e in self._ended]
        intervals = [(a, b) for a, b in spans if a is not None and b is not None]
        times = [*self._times.values(), *(each.end_ns for each in self._ended)]
        self.units = FailedUnitsFold(recording.texts, intervals)
        self.losses = LastLossFold(recording.texts, (each for each in times if each is not None))

    def _time_of(self, session: SessionSummary) -> int | None:
        found = self._recording.tree.numbered(session.id)
        end_ns = None if found is None else found[1].end_ns
        return end_ns if end_ns is not None else session.end_ns

    def result(self, reader: BatchLookup | None) -> list[SessionFailure]:
        """Return the failures in the order of their end; at most 100.

        Processes that a signal ended come after those with an exception, because the launcher of a
        job ends all ranks if one fails. Those that died without a record of a signal come ahead of
        their consequences: lost connections of other processes, and the job's exit code.
        """
        if not self._ended:
            return []
        scopes = list(self._failed_scopes())
        marks = list(self._recording.out_of_memory())
        places: list[tuple[str, str, int]] = []
        failures = []
        for session in self._ended:
            failure, number = self._failure(session, scopes, marks)
            failures.append(failure)
            found = self._recording.tree.numbered(session.id)
            numbers = (failure.span_id, number), (session.id, None if found is None else found[0])
            places += self._placed(numbers)
        if all(each.scope == JOB for each in failures):
            for failure, session in zip(failures, self._ended, strict=True):
                self._place_of_job(failure, session)
        records = {} if reader is None else records_at(reader, dict.fromkeys(places))
        for each in failures:
            # The session's exception has all frames; an inner scope's has only the inner ones.
            of_session, scope = records.get(each.session, {}), records.get(each.span_id or "", {})
            each.where = innermost_frame(of_session) or innermost_frame(scope)
        return in_order(failures)

    def _placed(
        self, numbers: Iterable[tuple[str | None, int | None]]
    ) -> Iterator[tuple[str, str, int]]:
        for id_, number in numbers:
            place = None if number is None else self._recording.place_of(number)
            if id_ is not None and place is not None:
                yield id_, *place

    def _failed_scopes(self) -> Iterator[_FailedScope]:
        recording = self._recording
        for number, span in recording.tree.scopes:
            if span.otel is not None and span.error is not None:
                yield _FailedScope(
                    number, span.start_ns, span.id, shown(span.name), shown(span.error) or "", None,
                    None, None, span.id,
                )  # fmt: skip
        for each in recording.noted:
            span = each.span
            if span.otel is not None and span.error is not None:
                yield _FailedScope(
                    each.no, span.start_ns, span.id, shown(span.name), shown(span.error) or "",
                    each.units, each.step, each.epoch, each.units[0],
                )  # fmt: skip
        for unit in self.units.failed:
            yield _FailedScope(
                unit.no, unit.start_ns, unit.id, STEP, unit.error or "", (unit.parent, unit.pid),
                unit.step, None, unit.parent,
            )  # fmt: skip

    def _failure(
        self,
        session: SessionSummary,
        scopes: Sequence[_FailedScope],
        marks: Sequence[tuple[int, IndexedMark]],
    ) -> tuple[SessionFailure, int | None]:
        """Return the failure of a session, and the number of its innermost scope."""
        found = self._recording.tree.numbered(session.id)
        span = None if found is None else found[1]
        error = None if span is None or span.otel is None else shown(span.error)
        rank = None if span is None else span.rank
        failure = SessionFailure(
            session.id or "",
            session.state,
            rank if rank is not None else (session.ranks[0] if session.ranks else None),
            session.pids[0] if session.pids else None,
            error or "the process died without closing its session",
            time_ns=self._times[session.id],
        )
        same = [
            each
            for each in scopes
            if each.error == failure.error
            and self._recording.session_of(each.no, each.units) == session.id
        ]
        inner = max(
            (each for each in same if each.name != SESSION), key=lambda s: s.order, default=None
        )
        if inner is not None:
            failure.scope, failure.span_id = inner.name, inner.id
            failure.step, failure.epoch = inner.step, inner.epoch
            _climb(failure, self._recording.tree, inner.parent)
        else:
            self._put_step(failure, self._recording.last_step(failure.session))
        _put_cause(failure, {each.id for each in same if each.id is not None}, marks)
        self._put_loss(failure, failure.rank, failure.time_ns)
        return failure, None if inner is None else inner.no

    def _put_step(self, failure: SessionFailure, step: LastStep | PlacedUnit | None) -> None:
        """Set the step and the epoch."""
        if step is not None:
            failure.step = step.step
            _climb(failure, self._recording.tree, step.parent)

    def _put_loss(self, failure: SessionFailure, rank: int | None, time_ns: int | None) -> None:
        loss = self.losses.last(rank, time_ns)
        failure.loss_name = None if loss is None else loss.name
        failure.last_loss = None if loss is None else number_of(loss.value)

    def _place_of_job(self, failure: SessionFailure, session: SessionSummary) -> None:
        """Set the last step and loss of a job that ended without an exception.

        The sessions of its processes may have closed normally.
        """
        start_ns, end_ns = session.start_ns, session.end_ns
        if start_ns is None or end_ns is None:
            return
        unit = self.units.last_in(start_ns, end_ns)
        steps = [] if unit is None else [(unit.start_ns, unit.no, unit)]
        steps += [each for each in self._other_steps() if start_ns <= each[0] <= end_ns]
        if steps:
            *_, last = max(steps, key=lambda step: step[:2])
            self._put_step(failure, last)
            self._put_loss(failure, last.rank, end_ns)

    def _other_steps(self) -> Iterator[tuple[int, int, PlacedUnit]]:
        """Yield the steps inside units, and those that have no end, by their start and number."""
        inside = ((each.no, each.span, each.units[0]) for each in self._recording.noted)
        outside = ((no, span, span.parent_id) for no, span in self._recording.tree.scopes)
        for no, span, parent in (*inside, *outside):
            if span.name == STEP and span.start_ns is not None:
                step = PlacedUnit(
                    no, span.start_ns, span.id, parent, span.pid, span.rank, shown(span.index), None
                )
                yield span.start_ns, no, step


def in_order(failures: Sequence[SessionFailure]) -> list[SessionFailure]:
    """Return failures with those first that are causes of the others."""

    def order(failure: SessionFailure) -> tuple[int, int]:
        place = 0
        if failure.state != "failed":
            # A process that SIGTERM ended recorded that: its launcher sends it to all ranks.
            place = 4 if _BY_SIGNAL in failure.error else 1
        elif failure.scope == JOB:
            place = 3
        elif _LOST_PEER.search(failure.error):
            place = 2
        return place, failure.time_ns or 0

    return sorted(failures, key=order)


def _climb(failure: SessionFailure, tree: ScopeTree, id_: str | None) -> None:
    """Set the failure's step and epoch from a scope outside of units and its ancestors."""
    for _ in range(MOST_LEVELS):
        found = tree.numbered(id_)
        if found is None:
            return
        span = found[1]
        if span.name == STEP and failure.step is None:
            failure.step = shown(span.index)
        elif span.name == _EPOCH and failure.epoch is None:
            failure.epoch = shown(span.index)
        id_ = span.parent_id


def _put_cause(
    failure: SessionFailure, ids: set[str], marks: Iterable[tuple[int, IndexedMark]]
) -> None:
    """Set the cause if it is a lack of memory; `ids` are the scopes that the error left."""
    found = [(mark.ts_ns is not None, mark.ts_ns or 0, no, mark) for no, mark in marks
             if mark.span_id in ids]  # fmt: skip
    if not found:
        if KILLS_CAUSE in failure.error:
            failure.cause = OUT_OF_MEMORY
        return
    failure.cause = OUT_OF_MEMORY
    mark = max(found, key=lambda each: each[:3])[3]
    value = shown(mark.value if mark.value is not None else mark.value_nonfinite) or ""
    failure.requested_bytes = int(value) if value.isdecimal() else None
