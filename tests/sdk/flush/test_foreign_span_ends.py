"""A span of another library that ends while a flush takes records."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

import cirron_otel as ci
from cirron_otel.sdk.flush.drain import BufferDrain
from cirron_otel.sdk.flush.flush_result import FlushResult
from cirron_otel.sdk.tracing.span_processor import ForeignSpanProcessor
from tests.sdk.conftest import OpenSession


@pytest.fixture
def tracer(session: OpenSession) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(session.foreign))
    return provider.get_tracer("server")


def _written(results: list[FlushResult]) -> list[tuple[str, str | None]]:
    """Return the ids of the spans in batches, each with the id of its parent."""
    batches = [batch for result in results for batch in result.batches]
    return [(row.id, row.parent_id) for batch in batches for row in batch.rows()[0]]


def _check_recoverable(session: OpenSession, results: list[FlushResult]) -> None:
    """Assert that batches and the last journal contain the parent of every span."""
    written = _written(results)
    known = {span for span, _ in written} | {row.id for row in results[-1].open}
    assert {parent for _, parent in written} - known <= {session.scope.id, None}
    left = {row.id for row in results[-1].open if not row.end_ns}
    assert not left & {span for span, _ in written}


def _check_complete(session: OpenSession, results: list[FlushResult]) -> None:
    """Assert that each span is written once: the request, the scope in it, and the session."""
    written = [span for span, _ in _written(results)]
    assert len(written) == len(set(written)) == 3
    assert {parent for _, parent in _written(results)} - {None} <= set(written)
    assert session.foreign.dropped == 0


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("name", ["take_scopes", "take_others", "unfinished", "late"])
def test_the_parent_of_a_sealed_scope_is_in_the_batch_or_in_the_journal(
    session: OpenSession,
    tracer: Tracer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_after: bool,
) -> None:
    real = getattr(BufferDrain, name)

    def ending(drain: Any, *arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        if not is_after:
            request.end()
        result = real(drain, *arguments, **options)
        if is_after:
            request.end()
        return result

    with tracer.start_as_current_span("request", end_on_exit=False) as request, ci.scope("answer"):
        pass
    monkeypatch.setattr(BufferDrain, name, ending)
    results = [session.collect()]
    assert request.end_time is not None
    _check_recoverable(session, results)
    results.append(session.collect())
    _check_recoverable(session, results)
    results.append(session.collect(is_last=True))
    _check_complete(session, results)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("moment", ["after get", "before pop", "after pop"])
def test_a_flush_finds_a_span_at_every_moment_of_its_end(
    session: OpenSession, tracer: Tracer, moment: str, is_last: bool
) -> None:
    """Another thread is interrupted while it moves the span from the open ones to the ended."""
    results: list[FlushResult] = []

    def flush(now: str) -> None:
        if now == moment:
            results.append(session.collect(is_last=is_last))
            _check_recoverable(session, results)
            if not is_last:
                results.append(session.collect())
                _check_recoverable(session, results)

    class Open(dict[Any, Any]):
        def get(self, *arguments: Any) -> Any:
            found = super().get(*arguments)
            flush("after get")
            return found

        def pop(self, *arguments: Any) -> Any:
            flush("before pop")
            found = super().pop(*arguments)
            flush("after pop")
            return found

    session.foreign.open = Open()
    with tracer.start_as_current_span("request"), ci.scope("answer"):
        pass
    results.append(session.collect(is_last=not is_last))
    _check_complete(session, results)
