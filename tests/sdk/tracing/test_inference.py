"""inference(): a request scope for each call, and the marks of cirron-sdk 0.3.0 on it."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span

from cirron_otel.sdk.flush.rows import MarkRow, SpanRow
from cirron_otel.sdk.session.errors import errors
from cirron_otel.sdk.tracing.inference import inference
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.span_processor import ForeignSpanProcessor
from cirron_otel.sdk.tracing.state import state
from tests.sdk.conftest import OpenSession

STREAMED = ["time_to_first_token_ms", "request_duration_ms", "output_tokens", "tokens_per_second"]


class Found:
    """The requests of a session, and what is on them."""

    def __init__(self, session: OpenSession) -> None:
        spans, marks = session.rows()
        self.spans = spans
        self.requests = [span for span in spans if span.name == "request"]
        self._marks = [m for m in marks if m.name != "cirron.overhead_ns"]

    def only(self) -> SpanRow:
        (request,) = self.requests
        return request

    def marks(self, span: SpanRow) -> list[MarkRow]:
        return [m for m in self._marks if m.span_id == span.id]

    def names(self, span: SpanRow | None = None) -> list[str]:
        return [m.name for m in self.marks(span or self.only())]

    def value(self, name: str) -> Any:
        (found,) = [m.value for m in self.marks(self.only()) if m.name == name]
        return found


def test_each_call_is_a_request_under_the_open_scope(session: OpenSession) -> None:
    @inference
    def predict(x: int, *, y: int = 2) -> int:
        """Say."""
        with Scope("forward"):
            mark("loss", x)
        return x + y

    assert predict(1) == 3
    with Scope("batch") as batch:
        assert predict(2, y=5) == 7
    found = Found(session)
    assert [span.parent_id for span in found.requests] == [session.scope.id, batch.id]
    ids = [span.attrs["request_id"] for span in found.requests]
    assert len(set(ids)) == 2
    assert all(len(one) == 32 and int(one, 16) for one in ids)
    forward = [span.parent_id for span in found.spans if span.name == "forward"]
    assert forward == [span.id for span in found.requests]
    assert found.names(found.requests[0]) == []
    assert (predict.__name__, predict.__doc__) == ("predict", "Say.")


def test_an_exception_is_recorded_and_goes_on(session: OpenSession) -> None:
    error = ValueError("no")

    @inference
    def predict() -> None:
        raise error

    with pytest.raises(ValueError, match="no") as raised:
        predict()
    assert raised.value is error
    otel = Found(session).only().otel
    assert otel["status"] == {"code": 2, "message": "ValueError: no"}
    assert otel["events"][0]["name"] == "exception"


def test_concurrent_coroutines_have_separate_requests(session: OpenSession) -> None:
    @inference
    async def predict(number: int) -> int:
        mark("number", number)
        await asyncio.sleep(0)
        mark("number", number)
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*[predict(number) for number in range(5)])

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert inspect.iscoroutinefunction(predict)
    found = Found(session)
    assert len(found.requests) == 5
    values = sorted([m.value for m in found.marks(request)] for request in found.requests)
    assert values == [[n, n] for n in range(5)]
    assert {span.parent_id for span in found.requests} == {session.scope.id}


def test_a_generator_is_a_stream(session: OpenSession) -> None:
    @inference
    def generate(n: int) -> Any:
        got = None
        for number in range(n):
            got = yield number
        return got

    made = generate(3)
    assert inspect.isgenerator(made)
    items = [next(made)]
    with Scope("consumer") as consumer:
        items += [made.send("a"), made.send("b")]
    with pytest.raises(StopIteration) as stop:
        made.send("last")
    assert (items, stop.value.value) == ([0, 1, 2], "last")
    found = Found(session)
    assert found.names() == STREAMED
    assert {m.kind for m in found.marks(found.only())} == {"summary"}
    assert found.value("output_tokens") == 3
    first, whole = found.value("time_to_first_token_ms"), found.value("request_duration_ms")
    assert 0 <= first <= whole
    assert found.value("tokens_per_second") == pytest.approx(3000 / (whole - first))
    assert consumer.parent_id == session.scope.id, "the consumer runs outside of the request"


def test_an_async_generator_is_a_stream(session: OpenSession) -> None:
    @inference
    async def generate() -> Any:
        yield "a"
        mark("inside", 1)
        yield "b"

    async def main() -> list[str]:
        return [item async for item in generate()]

    assert asyncio.run(main()) == ["a", "b"]
    found = Found(session)
    assert found.names() == [STREAMED[0], "inside", *STREAMED[1:]]


def test_the_first_tokens_mark_is_the_requests_even_inside_a_scope(session: OpenSession) -> None:
    @inference
    def generate() -> Any:
        with Scope("decode"):
            yield 1

    assert list(generate()) == [1]
    assert Found(session).names() == STREAMED


def test_a_stream_that_fails_or_is_left_has_its_totals(session: OpenSession) -> None:
    @inference
    def generate() -> Any:
        yield 1
        raise RuntimeError("mid")

    with pytest.raises(RuntimeError, match="mid"):
        list(generate())
    left = generate()
    next(left)
    left.close()
    found = Found(session)
    failed, closed = found.requests
    assert found.names(failed) == found.names(closed) == STREAMED
    assert failed.otel["status"]["code"] == 2
    assert not isinstance(closed.otel, dict)


def test_an_empty_stream_has_a_duration_alone(session: OpenSession) -> None:
    @inference
    def generate() -> Any:
        yield from ()

    assert list(generate()) == []
    assert Found(session).names() == ["request_duration_ms"]


def test_chunks_are_timed_on_request(session: OpenSession) -> None:
    @inference(config={"stream_chunk_timing": True, "mine": 1})
    def generate() -> Any:
        yield from range(3)

    list(generate())
    found = Found(session)
    assert found.names() == [STREAMED[0], "chunk_ms", "chunk_ms", *STREAMED[1:]]
    chunks = [m for m in found.marks(found.only()) if m.name == "chunk_ms"]
    assert [(m.kind, m.attrs) for m in chunks] == [
        ("point", {"index": 1}),
        ("point", {"index": 2}),
    ]
    assert generate._cirron_config == {"stream_chunk_timing": True, "mine": 1}


class Usage:
    """As the OpenAI client's objects."""

    prompt_tokens, completion_tokens, total_tokens = 3, 4, 7


class Response:
    """A response with usage as an attribute."""

    usage = Usage()


BOTH = {"source": "openai"}, {"source": "openai", "normalized": True}
WHOLE = [
    ("prompt_tokens", 3, BOTH[0]),
    ("input_tokens", 3, BOTH[1]),
    ("completion_tokens", 4, BOTH[0]),
    ("output_tokens", 4, BOTH[1]),
    ("total_tokens", 7, BOTH[1]),
]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Response(), WHOLE),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}, WHOLE),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}, WHOLE),
        ({"usage": {"prompt_tokens": 3}}, WHOLE[:2]),
        ({"usage": {"total_tokens": 7}}, WHOLE[4:]),
        ({"usage": {"prompt_tokens": "3", "completion_tokens": 4.0, "total_tokens": True}}, []),
        ({"usage": None}, []),
        ("text", []),
        (["a"], []),
        (None, []),
    ],
)
def test_usage_of_a_result(session: OpenSession, result: Any, expected: list[Any]) -> None:
    assert inference(lambda: result)() is result
    found = Found(session)
    marks = found.marks(found.only())
    assert [(m.name, m.value, m.attrs) for m in marks] == expected
    assert {m.kind for m in marks} <= {"summary"}


def test_usage_in_a_stream_gives_the_output_token_count(session: OpenSession) -> None:
    @inference
    def generate() -> Any:
        yield {"choices": ["a"]}
        yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 40}}

    list(generate())
    assert Found(session).value("output_tokens") == 40


class Tokens:
    """A client library's stream: an iterator that can do more."""

    def __init__(self) -> None:
        self.left, self.closed, self.response = 2, False, "200 OK"

    def __iter__(self) -> Tokens:
        return self

    def __next__(self) -> str:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return "token"

    def __enter__(self) -> Tokens:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("make", [lambda: (x for x in "ab"), lambda: iter("ab"), Tokens])
def test_a_stream_that_a_function_returns(session: OpenSession, make: Any) -> None:
    made = inference(make)()
    assert Found(session).requests == [], "it lasts until the stream has ended"
    assert get_current_span() is session.scope
    assert len(list(made)) == 2
    assert Found(session).names() == STREAMED


def test_returned_stream_retains_its_attributes_and_methods(session: OpenSession) -> None:
    inner = Tokens()
    made = inference(lambda: inner)()
    assert made.response == "200 OK"
    with made as same:
        assert same is made
        assert next(made) == "token"
    assert inner.closed
    other = inference(Tokens)()
    other.close()
    assert other.closed
    found = Found(session)
    assert [found.names(one) for one in found.requests] == [STREAMED, ["request_duration_ms"]]


def test_a_returned_async_stream(session: OpenSession) -> None:
    class Lines:
        left = 2

        def __aiter__(self) -> Lines:
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return "line"

    @inference
    async def generator() -> Any:
        async def inner() -> Any:
            yield 1
            yield 2

        return inner()

    @inference
    async def iterator() -> Any:
        return Lines()

    async def main() -> list[int]:
        return [len([x async for x in await each()]) for each in (generator, iterator)]

    assert asyncio.run(main()) == [2, 2]
    found = Found(session)
    assert [found.names(one) for one in found.requests] == [STREAMED, STREAMED]


def test_request_ends_when_its_returned_stream_is_never_read(session: OpenSession) -> None:
    inference(lambda: (x for x in "ab"))()
    inference(Tokens)()
    gc.collect()
    found = Found(session)
    assert [found.names(one) for one in found.requests] == [["request_duration_ms"]] * 2
    assert get_current_span() is session.scope


def test_files_are_results_and_no_streams(session: OpenSession) -> None:
    file = io.StringIO("a\nb\n")
    assert inference(lambda: file)() is file
    assert Found(session).names() == []


def test_a_callable_that_returns_a_coroutine(session: OpenSession) -> None:
    class Model:
        async def __call__(self, x: int) -> dict[str, Any]:
            await asyncio.sleep(0)
            mark("inside", x)
            return {"usage": {"total_tokens": 9}}

    model = inference(Model())

    async def main() -> None:
        assert (await model(5))["usage"]["total_tokens"] == 9

    asyncio.run(main())
    assert Found(session).names() == ["inside", "total_tokens"]


def test_methods_of_every_kind(session: OpenSession) -> None:
    class Model:
        @inference
        def own(self, x: int) -> tuple[type, int]:
            return type(self), x

        @inference
        @classmethod
        def of_class(cls, x: int) -> tuple[type, int]:
            return cls, x

        @inference
        @staticmethod
        def static(x: int) -> int:
            return x

    assert Model().own(1) == (Model, 1)
    assert Model.of_class(2) == (Model, 2)  # type: ignore[operator]
    assert Model().static(3) == Model.static(3) == 3  # type: ignore[operator]
    assert len(Found(session).requests) == 4


def test_partials_and_builtins(session: OpenSession) -> None:
    assert inference(functools.partial(int, base=2))("101") == 5
    assert inference(len)("abc") == 3
    assert len(Found(session).requests) == 2


def test_as_a_context_manager(session: OpenSession) -> None:
    with inference() as request:
        request.set_attribute("model", "m")
        mark("score", 0.5)
    found = Found(session)
    assert found.only().id == request.id
    assert found.only().attrs["model"] == "m"
    assert len(found.only().attrs["request_id"]) == 32
    assert found.names() == ["score"]


def test_as_an_async_context_manager_and_an_error_inside(session: OpenSession) -> None:
    async def main() -> None:
        async with inference(config={}) as request:
            assert get_current_span() is request
            raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert Found(session).only().otel["status"]["code"] == 2


def test_one_context_manager_entered_by_many(session: OpenSession) -> None:
    serve = inference()
    meet = threading.Barrier(4, timeout=120)

    def call(number: int) -> None:
        with serve, serve as inner:
            inner.set_attribute("number", number)
            meet.wait()
            mark("number", number)
        meet.wait()

    threads = [threading.Thread(target=call, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Found(session)
    inner = [span for span in found.requests if "number" in span.attrs]
    assert [[m.value for m in found.marks(s)] for s in inner] == [
        [s.attrs["number"]] for s in inner
    ]
    of = {span.id: span for span in found.requests}
    assert len(of) == 8
    assert all(of[s.parent_id or ""].thread_id == s.thread_id for s in inner)
    assert serve._open == []


def test_inside_an_instrumented_server_it_is_in_the_callers_trace(session: OpenSession) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(session.foreign))
    caller = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    handler = inference(lambda: mark("score", 1))

    def serve() -> None:
        # As a server's instrumentation does it, in a worker thread with a context of its own.
        token = otel_context.attach(propagate.extract(caller))
        with provider.get_tracer("server").start_as_current_span("POST /predict"):
            handler()
        otel_context.detach(token)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    found = Found(session)
    server = next(span for span in found.spans if span.name == "POST /predict")
    request = found.only()
    assert request.id[16:] == "8448eb211c80319c"
    assert request.parent_id == server.id
    assert server.parent_id == session.scope.id, "Cirron's tree goes up to the session"
    assert found.names() == ["score"]


@pytest.mark.parametrize("odd", ["name", 5, b""])
def test_non_function_argument_is_counted_without_raising(session: OpenSession, odd: Any) -> None:
    with inference(odd):
        pass
    assert len(Found(session).requests) == 1
    assert errors.counts["inference"] == 1


@pytest.mark.parametrize("odd", ["text", 5, [1]])
def test_an_odd_config_is_counted_and_no_error(session: OpenSession, odd: Any) -> None:
    assert inference(config=odd)(len)("ab") == 2
    assert errors.counts["inference"] == 1


class Hostile:
    """A result that lets nobody look at it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_result_that_cannot_be_inspected_is_returned_unchanged(session: OpenSession) -> None:
    result = Hostile()
    assert inference(lambda: result)() is result
    assert list(inference(lambda: (each for each in [result]))()) == [result]
    assert errors.counts["inference"] == 2
    assert len(Found(session).requests) == 2


def switched_off(call: Callable[[], Any]) -> Any:
    state.recording = False
    try:
        return call()
    finally:
        state.recording = True


def test_inference_works_when_recording_is_disabled(session: OpenSession) -> None:
    def calls() -> Any:
        with inference():
            pass
        return (
            inference(len)("ab"),
            list(inference(lambda: iter("ab"))()),
            list(inference(lambda: (x for x in "ab"))()),
        )

    assert switched_off(calls) == (2, ["a", "b"], ["a", "b"])
    assert Found(session).spans == []
