"""A scope is a full Span and ReadableSpan: before, while and after it is open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

import cirron_otel as ci
from cirron_otel import CirronSpanProcessor
from cirron_otel.sdk.tracing.buffers import registry
from cirron_otel.sdk.tracing.scope import MAX_DEPTH, NO_SESSION
from cirron_otel.sdk.tracing.span_processor import processor_of
from cirron_otel.sdk.tracing.state import state
from tests.kit.sessions.reading import recorded

ELSEWHERE = SpanContext(0xABC << 64, 0xDEF, True, TraceFlags(1), TraceState([("v", "1")]))


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider(
        resource=Resource.create({"service.name": "shop"}), shutdown_on_exit=False
    )


@pytest.fixture
def directory(tmp_path: Path, provider: TracerProvider) -> Iterator[Path]:
    ci.profile(frameworks=[], output_dir=tmp_path, flush_interval=60, provider=provider)
    yield tmp_path
    ci.shutdown()
    assert state.session is NO_SESSION
    assert ci.health()["swallowed_errors"] == {}


READABLE = sorted(name for name, value in vars(ReadableSpan).items() if isinstance(value, property))


def test_the_interfaces_are_those_that_the_installed_sdk_has() -> None:
    scope = ci.scope("x")
    assert isinstance(scope, trace.Span)
    assert isinstance(scope, ReadableSpan)
    assert {"name", "context", "parent", "events", "attributes", "status"} <= set(READABLE)


def read_all(scope: Any) -> dict[str, Any]:
    found = {name: getattr(scope, name) for name in READABLE}
    for name in ("id", "parent_id", "index", "attrs", "start_ns", "end_ns", "thread_id"):
        found[name] = getattr(scope, name)
    json.loads(scope.to_json())
    scope.is_recording()
    scope.get_span_context()
    return found


def test_scope_is_not_a_span_until_it_is_entered(directory: Path) -> None:
    scope = ci.scope("x", 3, a=1)
    found = read_all(scope)
    assert found["name"] == "x"
    assert found["index"] == 3
    assert found["attributes"]["a"] == 1
    assert not found["context"].is_valid
    assert found["parent"] is None
    assert found["id"] is None
    assert found["start_time"] is None
    assert not scope.is_recording()
    scope.end()
    assert found["end_time"] is None
    scope.set_attribute("b", 2)
    scope.update_name("y")
    with scope:
        pass
    assert scope.end_time is not None
    ci.flush()
    span = recorded(directory).one("y")
    assert span["attrs"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("kind", ["too deep", "just too deep", "off"])
def test_a_scope_that_is_not_recorded_answers_everything(directory: Path, kind: str) -> None:
    scopes = [ci.scope(f"{n}") for n in range(MAX_DEPTH + (kind == "too deep"))]
    state.recording = kind != "off"
    try:
        for each in scopes:
            each.__enter__()
        with ci.scope("unrecorded", 1, a=1) as scope:
            found = read_all(scope)
            assert not found["context"].is_valid
            assert found["name"] == "unrecorded"
            scope.set_attributes({"b": 2})
            scope.add_event("e")
            scope.add_link(ELSEWHERE)
            scope.record_exception(ValueError())
            scope.set_status(StatusCode.OK)
            scope.update_name("z")
            scope.end()
        read_all(scope)
        for each in reversed(scopes):
            each.__exit__(None, None, None)
    finally:
        state.recording = True
    ci.flush()
    names = {span["name"] for span in recorded(directory).spans.values()}
    assert names == (set() if kind == "off" else {f"{n}" for n in range(MAX_DEPTH)})


def test_while_it_is_open(directory: Path) -> None:
    with ci.scope("outer") as outer, ci.scope("inner", 7, **{"a": 1, "cirron.x": 2}) as scope:
        assert trace.get_current_span() is scope
        assert scope.is_recording()
        context = scope.get_span_context()
        assert context.is_valid
        assert context.trace_flags.sampled
        assert context is scope.context
        assert scope.id == f"{context.span_id:016x}{context.trace_id & (1 << 64) - 1:016x}"
        assert scope.parent == outer.get_span_context()
        assert scope.parent_id == outer.id
        assert scope.start_time
        assert scope.end_time is None
        assert scope.kind is SpanKind.INTERNAL
        assert scope.status.status_code is StatusCode.UNSET
        assert dict(scope.attributes) == {
            "a": 1, "cirron.attr.cirron.x": 2, "cirron.index": 7, "thread.id": scope.thread_id,
        }  # fmt: skip
        assert scope.resource.attributes["service.name"] == "shop"
        assert scope.instrumentation_scope.name == "cirron"
        assert scope.dropped_events == scope.dropped_attributes == scope.dropped_links == 0
        read_all(scope)
    assert trace.get_current_span() is state.session


def test_everything_set_reaches_the_spool(directory: Path) -> None:
    with ci.scope("x") as scope:
        scope.set_attribute("one", 1)
        scope.set_attributes({"two": [1, 2], "three": {"a": None}})
        scope.add_event("plain")
        scope.add_event("timed", {"k": "v"}, timestamp=1_700_000_000_000_000_001)
        scope.add_link(ELSEWHERE, {"why": "because"})
        scope.record_exception(ValueError("bad"), {"more": 1}, escaped=True)
        scope.set_status(StatusCode.ERROR, "no")
        scope.update_name("renamed")
        at = scope.start_ns + 5
        scope.end(at)
        # OpenTelemetry: what comes after the end is ignored.
        scope.set_attribute("late", 1)
        scope.add_event("late")
        scope.add_link(ELSEWHERE)
        scope.set_status(StatusCode.OK)
        scope.update_name("late")
        scope.end()
        assert not scope.is_recording()
        assert [event.name for event in scope.events] == ["plain", "timed", "exception"]
        assert len(scope.links) == 1
    ci.flush()
    span = recorded(directory).one("renamed")
    assert span["attrs"] == {"one": 1, "two": [1, 2], "three": {"a": None}}
    assert span["end_ns"] == at
    otel = span["otel"]
    assert otel["status"] == {"code": 2, "message": "no"}
    assert otel["links"] == [
        {
            "trace_id": f"{0xABC << 64:032x}", "span_id": f"{0xDEF:016x}", "trace_state": "v=1",
            "flags": 1, "attributes": {"why": "because"},
        }
    ]  # fmt: skip
    plain, timed, failed = otel["events"]
    assert plain["name"] == "plain"
    assert scope.start_ns <= plain["time_ns"]
    assert timed == {
        "name": "timed",
        "time_ns": 1_700_000_000_000_000_001,
        "attributes": {"k": "v"},
    }
    assert failed["attributes"]["exception.type"] == "ValueError"
    assert failed["attributes"]["exception.message"] == "bad"
    assert failed["attributes"]["exception.escaped"] == "True"
    assert failed["attributes"]["more"] == 1
    assert "ValueError: bad" in failed["attributes"]["exception.stacktrace"]
    read_all(scope)


OK, ERROR, UNSET = StatusCode.OK, StatusCode.ERROR, StatusCode.UNSET


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(OK,)], {"code": 1}),
        ([(OK, "ignored")], {"code": 1}),
        ([(ERROR, "why")], {"code": 2, "message": "why"}),
        ([(ERROR, "a"), (ERROR, "b")], {"code": 2, "message": "b"}),
        ([(ERROR, "a"), (UNSET,)], {"code": 2, "message": "a"}),
        ([(OK,), (ERROR, "a")], {"code": 1}),
        ([(ERROR, "a"), (OK,)], {"code": 1}),
        ([(Status(ERROR, "object"),)], {"code": 2, "message": "object"}),
        ([(UNSET,)], None),
    ],
)
def test_the_rules_of_status(directory: Path, calls: list[Any], expected: Any) -> None:
    with ci.scope("x") as scope, trace.use_span(scope, end_on_exit=False):
        for call in calls:
            trace.get_current_span().set_status(*call)
    ci.flush()
    assert recorded(directory).one("x").get("otel", {}).get("status") == expected


class UnencodableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (KeyError("k"), "KeyError: 'k'"),
        (ExceptionGroup("several", [ValueError(1)]), "ExceptionGroup: several (1 sub-exception)"),
        (UnencodableError(), "UnencodableError: <UnencodableError: str() failed>"),
    ],
)
def test_an_exception_closes_the_scope_and_goes_on(
    directory: Path, error: Exception, message: str
) -> None:
    with pytest.raises(type(error)) as caught, ci.scope("x"):
        raise error
    assert caught.value is error
    ci.flush()
    otel = recorded(directory).one("x")["otel"]
    assert otel["status"] == {"code": 2, "message": message}
    (event,) = otel["events"]
    assert event["name"] == "exception"
    assert event["attributes"]["exception.type"].endswith(type(error).__name__)


@pytest.mark.parametrize("leaving", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
def test_exit_exceptions_are_not_recorded_as_errors(
    directory: Path, leaving: BaseException
) -> None:
    with pytest.raises(type(leaving)), ci.scope("x"):
        raise leaving
    ci.flush()
    assert "otel" not in recorded(directory).one("x")


@pytest.mark.parametrize("kind", [SimpleSpanProcessor, BatchSpanProcessor])
def test_stock_processors_and_exporters_get_scopes(
    directory: Path, provider: TracerProvider, kind: Any
) -> None:
    memory = InMemorySpanExporter()
    provider.add_span_processor(kind(memory))
    ci.flush()  # from here on it is known that somebody wants to be told
    tracer = provider.get_tracer("lib")
    with (
        ci.scope("outer") as outer,
        tracer.start_as_current_span("foreign") as foreign,
        ci.scope("inner") as inner,
    ):
        inner.add_event("e", {"k": 1})
        inner.add_link(ELSEWHERE)
    for step in ci.batches(range(2)):
        ci.mark("loss", step)
    provider.force_flush()
    spans = {f"{s.name}{(s.attributes or {}).get('cirron.index', '')}": s
             for s in memory.get_finished_spans()}  # fmt: skip
    assert set(spans) == {"outer", "foreign", "inner", "step0", "step1"}
    assert spans["inner"].parent == foreign.get_span_context()
    assert spans["foreign"].parent == outer.get_span_context()
    assert spans["outer"].parent == state.session.get_span_context()
    assert [event.name for event in spans["inner"].events] == ["e"]
    assert [link.context for link in spans["inner"].links] == [ELSEWHERE]
    for span in spans.values():
        assert span.end_time >= span.start_time
        assert span.resource.attributes["service.name"] == "shop"
    ci.flush()
    found = recorded(directory)
    for name in ("outer", "foreign", "inner"):
        assert found.one(name)["id"][:16] == f"{spans[name].context.span_id:016x}"
        assert found.trace_id(found.one(name)) == f"{spans[name].context.trace_id:032x}"
    provider.shutdown()


def test_an_added_processor_receives_the_start_of_each_open_scope(
    directory: Path, provider: TracerProvider
) -> None:
    names = []

    class Starts(SpanProcessor):
        def on_start(self, span: trace.Span, parent_context: Any = None) -> None:  # noqa: ARG002
            names.append(getattr(span, "name", None))

    with ci.scope("outer"), ci.scope("inner"):
        provider.add_span_processor(Starts())
    assert names == ["cirron.session", "outer", "inner"]


@pytest.mark.parametrize("is_over", [True, False])
def test_later_processors_are_flushed_without_an_open_session(
    tmp_path: Path, is_over: bool
) -> None:
    provider, memory = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(CirronSpanProcessor(output_dir=tmp_path, enabled=is_over))
    provider.add_span_processor(BatchSpanProcessor(memory, schedule_delay_millis=3_600_000))
    if is_over:
        ci.shutdown()
    provider.get_tracer("lib").start_span("late").end()
    try:
        assert provider.force_flush()
        assert [span.name for span in memory.get_finished_spans()] == ["late"]
    finally:
        provider.shutdown()
        state.recording = True


def test_shutdown_of_a_provider_closes_the_session_of_its_processor(tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        CirronSpanProcessor(frameworks=[], output_dir=tmp_path, flush_interval=60)
    )
    try:
        provider.get_tracer("lib").start_span("of the program").end()
        provider.shutdown()
        assert state.session is NO_SESSION
        assert recorded(tmp_path).one("cirron.session")["end_ns"]
    finally:
        ci.shutdown()
        state.recording = True


def test_errors_in_the_processor_are_counted_by_their_callback(
    tmp_path: Path, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    ci.profile(frameworks=[], output_dir=tmp_path, flush_interval=60, provider=provider)
    try:
        processor = processor_of(provider)
        assert processor is not None
        monkeypatch.delattr(type(processor.foreign), "start")
        monkeypatch.delattr(type(processor.foreign), "end")
        provider.get_tracer("lib").start_span("x").end()
        assert ci.health()["swallowed_errors"] == {"on_start": 1, "on_end": 1}
    finally:
        monkeypatch.undo()
        ci.shutdown()


def test_two_processors_of_ours_record_a_span_once(
    directory: Path, provider: TracerProvider
) -> None:
    provider.add_span_processor(CirronSpanProcessor())
    with ci.scope("outer"), provider.get_tracer("lib").start_as_current_span("inner"):
        pass
    ci.flush()
    found = recorded(directory)
    written = [span["name"] for batch in found.batches for span in batch["spans"]]
    assert sorted(written) == ["inner", "outer"]
    assert found.one("inner")["parent_id"] == found.one("outer")["id"]


def test_a_processor_that_is_off_keeps_nothing(tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    processor = CirronSpanProcessor(output_dir=tmp_path, enabled=False)
    provider.add_span_processor(processor)
    try:
        open_one = provider.get_tracer("lib").start_span("open")
        provider.get_tracer("lib").start_span("ended").end()
        assert not processor.foreign.open
        assert not any(buffers.foreign for buffers in registry)
        open_one.end()
    finally:
        provider.shutdown()
        state.recording = True


def test_tracer_spans_and_scopes_form_one_tree(directory: Path, provider: TracerProvider) -> None:
    tracer = provider.get_tracer("lib", "1.2")
    with ci.scope("a"):
        free = tracer.start_span("b", links=[Link(ELSEWHERE)], kind=SpanKind.CLIENT)
        with (
            ci.scope("c"),
            trace.use_span(free, end_on_exit=True),
            ci.scope("d") as scope,
            tracer.start_as_current_span("e"),
            ci.scope("f"),
        ):
            assert scope.parent == free.get_span_context()
        with trace.use_span(trace.INVALID_SPAN), ci.scope("g"):
            pass
        with trace.use_span(trace.NonRecordingSpan(ELSEWHERE)), ci.scope("h") as far:
            assert far.parent == ELSEWHERE
            assert far.context.trace_id == ELSEWHERE.trace_id
    ci.flush()
    found = recorded(directory)
    assert found.edges() == {
        "a": "cirron.session", "b": "a", "c": "a", "d": "b", "e": "d", "f": "e", "g": "a", "h": "a",
    }  # fmt: skip
    assert found.one("b")["otel"]["kind"] == 3
    assert found.one("b")["otel"]["scope"] == {"name": "lib", "version": "1.2"}
    assert found.one("h")["otel"]["parent_span_id"] == f"{ELSEWHERE.span_id:016x}"
