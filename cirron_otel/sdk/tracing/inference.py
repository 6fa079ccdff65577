"""`inference`: a scope `request` for every served call, with the marks of cirron-sdk.

A stream gets summary marks: `time_to_first_token_ms`, `request_duration_ms`, `output_tokens` (the
number of items, unless an item reports usage), and `tokens_per_second` (after the first item).
Token counts are read from a result or item with OpenAI's `usage`.
"""

from __future__ import annotations

import functools
import inspect
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from os import urandom
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar, cast, overload

from ..session.errors import record_error
from .buffers import limits, local
from .clock import now
from .decorators import wrap_async_generator, wrap_calls, wrap_generator
from .hidden_frames import hidden, strip
from .mark import POINT, SUMMARY, check_room
from .scope import Scope
from .state import CONTEXT, SCOPE_KEY, state
from .streams import AsyncStream, Opened, Stream, awaited

F = TypeVar("F", bound=Callable[..., Any])

REQUEST = "request"
CHUNK_TIMING = "stream_chunk_timing"
"""The key of `config` that enables a mark `chunk_ms` for every item after the first."""


@overload
def inference(fn: F, *, config: Mapping[str, Any] | None = None) -> F: ...


@overload
def inference(fn: None = None, *, config: Mapping[str, Any] | None = None) -> Inference: ...


def inference(fn: Any = None, *, config: Mapping[str, Any] | None = None) -> Any:
    """Open a scope `request` for each call.

    Use it as `@inference`, `@inference(config={...})`, or `with inference() as request`. It
    decorates functions, coroutine functions, and generators of both kinds; a stream that a function
    returns is part of the request until it is exhausted or closed. Each request has the attribute
    `request_id`. `config` may contain `stream_chunk_timing`; it is stored on the decorated function
    as `_cirron_config`. The context manager (sync and async) returns the scope.
    """
    maker = Inference(config)
    if callable(fn) or issubclass(type(fn), (staticmethod, classmethod)):
        return maker(fn)
    if fn is not None:
        record_error("inference", f"{type(fn).__name__}: expected a function")
    return maker


class Inference:
    """A decorator and a reentrant context manager that open a `Request` for each call."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        """`config` has the same meaning as in `inference`."""
        self.config: dict[str, Any] = {}
        self._times_chunks = False
        try:
            if isinstance(config, Mapping):
                self.config = dict(config)
                self._times_chunks = bool(self.config.get(CHUNK_TIMING))
            elif config is not None:
                record_error(
                    "inference", f"config is a {type(config).__name__}: expected a mapping"
                )
        except Exception as error:
            record_error("inference", error)
        self._open: list[Request] = []

    def __call__(self, fn: F) -> F:
        """Decorate a function; any other object is returned unchanged."""
        try:
            return cast(F, self._decorated(fn))
        except Exception as error:
            record_error("decorator", error)
            return fn

    def _decorated(self, fn: Any) -> Any:
        if isinstance(fn, (staticmethod, classmethod)):
            return type(fn)(self(fn.__func__))
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            wrapper: Any = wrap_calls(fn, self._stream, _tell)
        elif inspect.iscoroutinefunction(fn):
            wrapper = self._around_coroutine(fn)
        else:
            wrapper = self._around_call(fn)
        wrapper._cirron_config = dict(self.config)
        return wrapper

    def __enter__(self) -> Request:
        """Open a request."""
        request = self._request()
        self._open.append(request)
        return request.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Close the innermost request of this context that this object opened."""
        request = self._innermost()
        if request is not None:
            self._open.remove(request)
            request.__exit__(kind, error, trace)

    async def __aenter__(self) -> Request:
        """Open a request in `async with`."""
        return self.__enter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Close the request in `async with`."""
        self.__exit__(kind, error, trace)

    def _innermost(self) -> Request | None:
        scope: Any = CONTEXT.get().get(SCOPE_KEY)
        while scope is not None and scope._depth:
            if any(scope is request for request in self._open):
                return scope  # type: ignore[no-any-return]
            scope = scope._above
        return self._open[-1] if self._open else None

    def _request(self) -> Request:
        return Request(times_chunks=self._times_chunks)

    def _stream(self) -> Request:
        request = self._request()
        request.is_stream = True
        return request

    @hidden
    def _around_call(self, fn: Callable[..., Any]) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._request() as request:
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:
                    strip(error)
                    raise
                return _result(result, request)

        return wrapper

    @hidden
    def _around_coroutine(self, fn: Callable[..., Any]) -> Any:
        @functools.wraps(fn)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._request() as request:
                try:
                    result = await fn(*args, **kwargs)
                except BaseException as error:
                    strip(error)
                    raise
                return _result(result, request)

        return wrapper


class Request(Scope):
    """The scope of one call."""

    def __init__(self, *, times_chunks: bool = False) -> None:
        """`times_chunks`: make a mark `chunk_ms` for every item after the first."""
        super().__init__(REQUEST)
        try:
            self.attrs["request_id"] = urandom(16).hex()
        except Exception as error:
            record_error("inference", error)
        self.is_stream = False
        self._times_chunks = times_chunks
        self._items = 0
        self._first = self._last = 0
        self._tokens: int | None = None

    def again(self) -> Request:
        """Return an unopened copy of this request."""
        return Request(times_chunks=self._times_chunks)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Close the request; for a stream, first add the marks with its totals."""
        if self._token is not None and self.is_stream:
            try:
                self._finish(now())
            except Exception as problem:
                record_error("inference", problem)
        super().__exit__(kind, error, trace)

    def note(self, name: str, value: Any, kind: str = SUMMARY, **attrs: Any) -> None:
        """Add a mark to this scope, even if another scope is open inside it."""
        if not state.recording or not self._id or self._end:
            return
        buffers = local.b
        if len(buffers.marks) >= limits.marks_checked:
            check_room(buffers, len(buffers.marks))
        buffers.marks.append((self, name, value, now(), kind, attrs))

    def result(self, result: Any) -> None:
        """Add marks with the token counts of the call's result."""
        prompt, completion, total = _usage(result)
        if prompt is not None:
            self.note("prompt_tokens", prompt, source="openai")
            self.note("input_tokens", prompt, source="openai", normalized=True)
        if completion is not None:
            self.note("completion_tokens", completion, source="openai")
            self.note("output_tokens", completion, source="openai", normalized=True)
        if total is None and prompt is not None and completion is not None:
            total = prompt + completion
        if total is not None:
            self.note("total_tokens", total, source="openai", normalized=True)

    def item(self, item: Any) -> None:
        """Add the timing marks for an item of the stream."""
        at = now()
        if not self._items:
            self._first = at
            self.note("time_to_first_token_ms", (at - self._start) / 1e6)
        elif self._times_chunks:
            self.note("chunk_ms", (at - self._last) / 1e6, POINT, index=self._items)
        self._items += 1
        self._last = at
        completion = _usage(item)[1]
        if completion is not None:
            self._tokens = completion

    def _finish(self, at: int) -> None:
        self.note("request_duration_ms", (at - self._start) / 1e6)
        if not self._items:
            return
        tokens = self._items if self._tokens is None else self._tokens
        self.note("output_tokens", tokens, normalized=True)
        if at > self._first:
            self.note("tokens_per_second", tokens * 1e9 / (at - self._first))


def _tell(scope: Any, item: Any) -> None:
    try:
        scope.item(item)
    except Exception as error:
        record_error("inference", error)


def _result(result: Any, request: Request) -> Any:
    """Return the result, or a stream that keeps the request open while it is consumed.

    A suspended request stays open at the end of its `with` block.
    """
    try:
        later = _later(result, request)
        if later is None:
            request.result(result)
            return result
    except Exception as error:
        record_error("inference", error)
        return result
    request.suspend()
    return later


def _later(result: Any, request: Request) -> Any:
    """Wrap a stream or a coroutine in the request; return None for any other result."""
    if inspect.iscoroutine(result):
        return awaited(result, Opened(request), request.result)
    if not isinstance(result, (Iterator, AsyncIterator)) or isinstance(result, io.IOBase):
        return None
    opened: Any = Opened(request)  # not created earlier, because its deletion ends the request
    request.is_stream = True
    tell = functools.partial(_count_item, request)
    if isinstance(result, GeneratorType):
        return wrap_generator(result, opened, tell)
    if isinstance(result, AsyncGeneratorType):
        return wrap_async_generator(result, opened, tell)
    kind = Stream if isinstance(result, Iterator) else AsyncStream
    return kind(result, opened, tell)


def _count_item(request: Request, _opened: Any, item: Any) -> None:
    _tell(request, item)


def _usage(result: Any) -> tuple[int | None, int | None, int | None]:
    """Return prompt, completion, and total tokens of an OpenAI-style object or mapping."""
    usage = _field(result, "usage")
    if usage is None:
        return None, None, None
    counts = [_field(usage, f"{kind}_tokens") for kind in ("prompt", "completion", "total")]
    prompt, completion, total = [count if type(count) is int else None for count in counts]
    return prompt, completion, total


def _field(record: Any, name: str) -> Any:
    if isinstance(record, Mapping):
        return record.get(name)
    return getattr(record, name, None)
