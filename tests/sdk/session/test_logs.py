"""Log records with the trace and span in which they were made."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from cirron_otel.sdk.session import logs
from cirron_otel.sdk.session.errors import errors
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.state import state
from tests.sdk.conftest import OpenSession

FORMAT = "%(message)s %(otelTraceID)s %(otelSpanID)s %(otelTraceSampled)s %(otelServiceName)s"


@pytest.fixture(autouse=True)
def factory() -> Iterator[Any]:
    """The log record factory that was there, put back afterwards."""
    before = logging.getLogRecordFactory()
    yield before
    logging.setLogRecordFactory(before)


@pytest.fixture
def lines() -> Iterator[Any]:
    """What a logger of the application has written, split."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(FORMAT))
    logger = logging.getLogger("application")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [line.split(" ") for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)


log = logging.getLogger("application").info


def test_a_line_inside_a_step_names_it(session: OpenSession, lines: Any) -> None:
    state.resource = Resource({"service.name": "trainer"})
    logs.correlate()
    with Scope("step") as step:
        log("loss")
    (span,), _ = session.rows()
    trace_id = session.scope._trace.trace_id.hex()
    assert lines() == [["loss", trace_id, span.id[:16], "True", "trainer"]]
    assert step.id == span.id


def test_outside_of_every_scope_it_is_the_session_and_then_nothing(
    session: OpenSession, lines: Any
) -> None:
    logs.correlate()
    log("session")
    thread = threading.Thread(target=log, args=["thread"])
    thread.start()
    thread.join()
    session.leave()
    log("after")
    session_id = session.scope.id or ""
    trace_id = session.scope._trace.trace_id.hex()
    assert lines() == [
        ["session", trace_id, session_id[:16], "True", ""],
        ["thread", trace_id, session_id[:16], "True", ""],
        ["after", "0", "0", "False", ""],
    ]


def test_a_foreign_span_is_named_too(session: OpenSession, lines: Any) -> None:
    logs.correlate()
    provider = TracerProvider(shutdown_on_exit=False)
    with Scope("step"), provider.get_tracer("x").start_as_current_span("GET") as span:
        log("inside")
    context = span.get_span_context()
    assert lines()[0][1:4] == [f"{context.trace_id:032x}", f"{context.span_id:016x}", "True"]


def test_log_record_in_an_unsampled_span_is_flagged_unsampled(
    session: OpenSession, lines: Any
) -> None:
    logs.correlate()
    session.leave()
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    with provider.get_tracer("x").start_as_current_span("GET"):
        log("inside")
    assert lines()[0][3] == "False"
    assert lines()[0][1] != "0"


def test_log_correlation_does_not_mark_the_scope_as_referenced(session: OpenSession) -> None:
    logs.correlate()
    with Scope("step") as step:
        log("loss")
    assert step._extras is None


def test_the_factory_that_was_there_makes_the_record(session: OpenSession, factory: Any) -> None:
    class Special(logging.LogRecord):
        pass

    logging.setLogRecordFactory(Special)
    logs.correlate()
    logs.correlate()
    record = logging.getLogger("application").makeRecord("n", 20, "f", 1, "m", (), None)
    assert isinstance(record, Special)
    assert record.otelSpanID == (session.scope.id or "")[:16]  # type: ignore[attr-defined]
    logs.restore()
    assert logging.getLogRecordFactory() is Special
    logs.restore()
    assert logging.getLogRecordFactory() is Special


def test_a_factory_set_on_top_of_ours_stays(session: OpenSession) -> None:
    logs.correlate()
    ours = logging.getLogRecordFactory()

    def on_top(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return ours(*args, **kwargs)

    logging.setLogRecordFactory(on_top)
    logs.restore()
    assert logging.getLogRecordFactory() is on_top


class Broken:
    """A resource that cannot be read."""

    @property
    def attributes(self) -> Any:
        raise RuntimeError("broken")


def test_an_error_of_ours_costs_no_line(session: OpenSession, lines: Any) -> None:
    state.resource = Broken()  # type: ignore[assignment]
    logs.correlate()
    log("one")
    log("two")
    assert [(line[0], line[-1]) for line in lines()] == [("one", ""), ("two", "")]
    # Each of the two, and the warning about the first.
    assert errors.counts == {"log correlation": 3}
