"""A session without files: the hot path and the collector as they are, and nothing behind them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cirron_otel.sdk.flush.flush_builder import FlushBuilder
from cirron_otel.sdk.flush.flush_result import FlushResult, SessionOrigin
from cirron_otel.sdk.flush.rows import MarkRow, SpanRow
from cirron_otel.sdk.session.errors import errors
from cirron_otel.sdk.session.joining import Joined
from cirron_otel.sdk.session.session import Entered, clear_scopes, open_session
from cirron_otel.sdk.tracing import buffers
from cirron_otel.sdk.tracing.foreign_spans import ForeignSpans
from cirron_otel.sdk.tracing.scope import NO_SESSION, Scope
from cirron_otel.sdk.tracing.state import state
from cirron_otel.sdk.tracing.traces import Segments
from cirron_otel.sdk.tracing.trainings import trainings

_FOREVER = 1 << 62


@dataclass(slots=True)
class OpenSession:
    """A session that is open."""

    scope: Scope
    segments: Segments
    foreign: ForeignSpans
    collector: FlushBuilder

    def collect(self, *, is_last: bool = False) -> FlushResult:
        """What the flush thread would find now."""
        with self.owned():
            return self.collector.collect(is_last=is_last)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the flush side, as the flush thread does while it works."""
        assert self.collector.ownership.take()
        try:
            yield
        finally:
            self.collector.ownership.give()

    def rows(self, *, is_last: bool = False) -> tuple[list[SpanRow], list[MarkRow]]:
        """The spans and marks of one flush, the SDK's own marks included."""
        found = self.collect(is_last=is_last)
        told = [batch.rows() for batch in found.batches]
        return [row for rows, _ in told for row in rows], [m for _, marks in told for m in marks]

    def leave(self) -> None:
        """Have no session any more, as after `shutdown`."""
        state.session, state.segments = NO_SESSION, None
        clear_scopes()


def _clean() -> None:
    buffers.reset_after_fork()
    errors.reset()
    clear_scopes()
    state.session, state.segments, state.resource = NO_SESSION, None, None
    state.recording, state.special = True, False
    trainings.restart(tuple)


@pytest.fixture
def session_with() -> Iterator[Callable[..., OpenSession]]:
    """Opens a session whose collector has the options that are given; clean afterwards."""
    _clean()

    def opened(**options: Any) -> OpenSession:
        joined = Joined()
        scope = open_session(joined, None)
        segments = Segments(scope.id or "", scope._trace, _FOREVER, _FOREVER, buffers.recorded)
        foreign = ForeignSpans()
        origin = SessionOrigin(os.getpid(), 0, scope, segments, {"service.name": "test"})
        Entered(scope, segments, joined)
        collector = FlushBuilder(origin, foreign, **options)
        trainings.restart(collector.waiting_steps)
        return OpenSession(scope, segments, foreign, collector)

    try:
        yield opened
    finally:
        _clean()


@pytest.fixture
def session(session_with: Callable[..., OpenSession]) -> OpenSession:
    """An open session whose scopes and marks can be collected; clean before and afterwards."""
    return session_with()
