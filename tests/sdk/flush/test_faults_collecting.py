"""The flush breaks off, or races with the threads that record: nothing is lost or torn apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from cirron_otel.sdk.flush import assembly
from cirron_otel.sdk.flush.batch_otel import BatchOtel
from cirron_otel.sdk.flush.flush_builder import MOST_ATTEMPTS, FlushBuilder
from cirron_otel.sdk.tracing import buffers
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.span_processor import ForeignSpanProcessor
from tests.sdk.conftest import OpenSession


class Breaks:
    """A thinner that fails so often, and then lets everything through."""

    partial = ()

    def __init__(self, times: int, error: type[BaseException]) -> None:
        self.left, self.error = times, error

    def filter(self, ended: Any, marks: Any, _is_last: bool, _waiting: Any) -> Any:
        if self.left:
            self.left -= 1
            raise self.error
        return ended, marks


def record(number: int) -> None:
    with Scope("step", number):
        mark("number", number)


@pytest.mark.parametrize("error", [ValueError, SystemExit, MemoryError])
def test_rows_of_a_failed_flush_are_collected_by_the_next_attempt(
    session_with: Callable[..., OpenSession], error: type[BaseException]
) -> None:
    session = session_with(thinner=Breaks(1, error), overhead_every=0)
    record(0)
    with pytest.raises(error):
        session.collect()
    record(1)
    spans, marks = session.rows(is_last=True)
    assert [span.index for span in spans] == [0, 1, None]
    assert [row.value for row in marks] == [0, 1]
    assert [span.mark_ids for span in spans] == [[marks[0].id], [marks[1].id], []]


@pytest.mark.parametrize(
    ("owner", "part"),
    [
        (FlushBuilder, "_foreign_rows"),
        (BatchOtel, "of_flush"),
        (assembly, "ids_of"),
        (assembly, "scope_rows"),
        (assembly, "mark_rows"),
        (assembly, "batch_text"),
        (FlushBuilder, "_add_open"),
    ],
)
def test_rows_are_reassembled_after_the_flush_thread_dies_at_any_stage(
    session_with: Callable[..., OpenSession], monkeypatch: pytest.MonkeyPatch, owner: Any, part: str
) -> None:
    """The thread dies behind each part of the work: the next one begins it again."""
    session = session_with(overhead_every=0)
    real = getattr(owner, part)
    deaths: list[type[BaseException]] = []

    def dying(*arguments: Any) -> Any:
        done = real(*arguments)
        if deaths:
            raise deaths.pop()
        return done

    monkeypatch.setattr(owner, part, dying)
    with Scope("epoch", 7) as epoch:
        mark("before", 0)
        first = session.collect()
        deaths.append(SystemExit)
        record(0)
        with pytest.raises(SystemExit):
            session.collect()
        record(1)
        mark("behind", 1)
    with session.owned():
        left = session.collector.resume()
    found = [first, left, session.collect(is_last=True)]
    told = [batch.rows() for each in found if each is not None for batch in each.batches]
    spans = [span for rows, _ in told for span in rows]
    marks = [row for _, rows in told for row in rows]
    assert [span.index for span in spans] == [0, 1, 7, None]
    assert sorted((row.name, row.value) for row in marks) == [
        ("before", 0), ("behind", 1), ("number", 0), ("number", 1),
    ]  # fmt: skip
    by_span = {span.id: span.mark_ids for span in spans}
    for span_id, mark_ids in by_span.items():
        assert mark_ids == [row.id for row in marks if row.span_id == span_id]
    assert session.collector.spans == 4
    assert session.collector.marks == 4
    assert epoch.id in by_span


def test_rows_are_dropped_and_counted_after_too_many_failed_attempts(
    session_with: Callable[..., OpenSession],
) -> None:
    session = session_with(thinner=Breaks(MOST_ATTEMPTS, ValueError), overhead_every=0)
    with Scope("epoch", 7):
        for number in range(3):
            record(number)
        for _ in range(MOST_ATTEMPTS):
            with pytest.raises(ValueError, match=r"^$"):
                session.collect()
        assert (session.collector.spans_lost, session.collector.marks_lost) == (3, 3)
        record(3)
    spans, marks = session.rows(is_last=True)
    assert [span.index for span in spans] == [3, 7, None]
    assert [row.value for row in marks] == [3]


class Meanwhile(tuple):  # type: ignore[type-arg]
    """What the flush thread takes behind the scopes and before the marks; `act` runs then."""

    __slots__ = ()
    act: Callable[[], None]

    def __eq__(self, other: object) -> bool:
        if other is None:
            type(self).act()
        return super().__eq__(other)

    __hash__ = tuple.__hash__


@pytest.fixture
def meanwhile() -> Callable[[OpenSession, Callable[[], None]], None]:
    """Has something done while the flush thread takes."""

    def prepare(session: OpenSession, act: Callable[[], None]) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(ForeignSpanProcessor(session.foreign))
        provider.get_tracer("t").start_span("foreign").end()
        foreign = buffers.local.b.foreign
        Meanwhile.act = act
        foreign.append(Meanwhile(foreign.pop()))

    return prepare


def test_a_scope_that_ends_while_the_flush_thread_takes_has_all_of_its_marks(
    session: OpenSession, meanwhile: Callable[[OpenSession, Callable[[], None]], None]
) -> None:
    scope = Scope("ending").__enter__()

    def end() -> None:
        mark("last", 1)
        scope.__exit__(None, None, None)
        mark("behind", 2)

    meanwhile(session, end)
    first, _ = session.rows()
    assert "ending" not in {span.name for span in first}
    spans, _ = session.rows(is_last=True)
    (ending,) = [span for span in spans if span.name == "ending"]
    assert len(ending.mark_ids) == 2  # the SDK's own is the other one


def test_marks_on_scopes_begun_while_the_flush_thread_takes(
    session: OpenSession,
    meanwhile: Callable[[OpenSession, Callable[[], None]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their scope is told to the journal, keeps its mark ids, and is not dropped."""
    late: list[Scope] = []

    def begin() -> None:
        outer = Scope("late outer")
        late.extend([outer.__enter__(), Scope("late").__enter__()])
        mark("early", 1)
        for scope in reversed(late):
            scope.__exit__(None, None, None)

    meanwhile(session, begin)
    found = session.collect()
    (batch,) = found.batches
    (early,) = [row for row in batch.rows()[1] if row.name == "early"]
    told = {row.name: row.id for row in found.open}
    assert told["late"] == early.span_id
    assert told["late outer"] == late[0].id
    monkeypatch.setattr(buffers.limits, "scopes", 10)
    for number in range(1_000):
        record(number)
    assert buffers.dropped()[0] > 0
    spans, marks = session.rows()
    by_name = {span.name: span for span in spans}
    assert early.id in by_name["late"].mark_ids
    assert "early" not in {row.name for row in marks}


def test_a_span_of_others_that_ends_around_a_scope_while_the_flush_thread_takes(
    session: OpenSession, meanwhile: Callable[[OpenSession, Callable[[], None]], None]
) -> None:
    """The journal has the scope, because its mark is taken, and the span that is its parent."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(session.foreign))
    tracer = provider.get_tracer("server")

    def serve() -> None:
        with tracer.start_as_current_span("request"), Scope("answer"):
            mark("length", 3)

    meanwhile(session, serve)
    told = {row.name: row for row in session.collect().open}
    assert told["answer"].parent_id == told["request"].id
    assert told["request"].end_ns >= told["answer"].end_ns > 0
    found = session.collect()  # both go into this batch
    assert {row.name for row in found.closed} == {"request", "answer"}
    (request,) = [row for row in found.batches[0].rows()[0] if row.name == "request"]
    assert request.id == told["request"].id
    assert request.thread_id == told["request"].thread_id


def test_journal_records_a_closed_parent_of_an_open_scope(session: OpenSession) -> None:
    """If the batch with its record is not sealed, the journal has the record."""
    outer = Scope("outer").__enter__()
    inner = Scope("inner").__enter__()
    outer.end()
    found = session.collect()
    (told,) = [row for row in found.open if row.name == "inner"]
    (ended,) = [row for row in found.closed if row.name == "outer"]
    assert told.parent_id == ended.id
    assert ended.end_ns
    inner.end()


def test_a_span_of_others_that_the_full_buffer_drops_is_not_in_the_journal(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted as lost, so recovery must not write it."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(session.foreign))
    with provider.get_tracer("server").start_as_current_span("request"):
        inner = Scope("inner").__enter__()
        monkeypatch.setattr(buffers.limits, "scopes", 0)
    monkeypatch.undo()
    assert session.collector.foreign_dropped == 1
    found = session.collect()
    assert "inner" in {row.name for row in found.open}
    assert "request" not in {row.name for row in (*found.open, *found.closed)}
    inner.end()


def test_a_span_of_others_that_is_given_up_is_not_in_the_journal(
    session_with: Callable[..., OpenSession],
) -> None:
    session = session_with(thinner=Breaks(MOST_ATTEMPTS, ValueError), overhead_every=0)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(session.foreign))
    with provider.get_tracer("server").start_as_current_span("request"):
        inner = Scope("inner").__enter__()
    for _ in range(MOST_ATTEMPTS):
        with pytest.raises(ValueError, match=r"^$"):
            session.collect()
    assert session.collector.spans_lost == 1
    found = session.collect()
    assert "inner" in {row.name for row in found.open}
    assert "request" not in {row.name for row in (*found.open, *found.closed)}
    inner.end()


def test_journal_records_a_closed_foreign_parent_until_it_is_sealed(session: OpenSession) -> None:
    """The journal has it until the batch with its record is sealed, and no longer."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(session.foreign))
    with provider.get_tracer("server").start_as_current_span("request"):
        inner = Scope("inner").__enter__()
    found = session.collect()
    assert [row.name for row in found.closed] == ["request"]
    assert "inner" in {row.name for row in found.open}
    found = session.collect()
    assert "inner" in {row.name for row in found.open}
    assert "request" not in {row.name for row in (*found.open, *found.closed)}
    inner.end()
