"""Streams and coroutines returned by a call, whose scope stays open until they are finished."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import Any

from ..session.errors import record_error
from .hidden_frames import hide_module, strip
from .scope import Scope


class Opened:
    """A scope that is open and suspended; entering it resumes the scope.

    The scope ends at the latest when the result is garbage-collected.
    """

    def __init__(self, scope: Scope) -> None:
        """The caller suspends `scope` before it returns the result."""
        self._scope = scope

    def __enter__(self) -> Opened:
        """Become the current span."""
        self._scope.resume()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """End the scope."""
        self._scope.__exit__(kind, error, trace)

    def suspend(self) -> None:
        """Stop being the current span."""
        self._scope.suspend()

    def resume(self) -> None:
        """Become the current span again."""
        self._scope.resume()

    def close(self, error: BaseException | None = None) -> None:
        """End the scope if it has not ended."""
        if not self._scope._end:
            self._scope.resume()
            self._scope.__exit__(type(error) if error is not None else None, error, None)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception as error:
            record_error("stream", error)


async def awaited(
    inner: Coroutine[Any, Any, Any], scope: Opened, on_result: Callable[[Any], None]
) -> Any:
    """Await `inner` inside `scope`, and call `on_result` with its result."""
    with scope:
        result = await inner
        try:
            on_result(result)
        except Exception as error:
            record_error("stream", error)
        return result


class _Wrapped:
    """Base of both kinds of stream: forwards all other attributes to the wrapped stream."""

    def __init__(self, inner: Any, scope: Opened, tell: Callable[[Any, Any], None]) -> None:
        """`tell` is called with every item."""
        self._inner, self._scope, self._tell = inner, scope, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> Any:
        """Close the stream if it has a `close` method, and end the scope."""
        try:
            close = getattr(self._inner, "close", None)
            return close() if close is not None else None
        finally:
            self._scope.close()


class Stream(_Wrapped):
    """An iterator that is not a generator (a client library's response) inside a scope."""

    def __iter__(self) -> Any:
        """Return the wrapper itself."""
        return self

    def __next__(self) -> Any:
        """Return the next item; the scope ends with the last one."""
        self._scope.resume()
        try:
            item = next(self._inner)
        except StopIteration:
            self._scope.close()
            raise
        except BaseException as error:
            strip(error)
            self._scope.close(error)
            raise
        self._tell(self._scope, item)
        self._scope.suspend()
        return item

    def __enter__(self) -> Any:
        """Enter the wrapped stream, but return the wrapper."""
        enter = getattr(type(self._inner), "__enter__", None)
        if enter is not None:
            enter(self._inner)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        """Exit the wrapped stream, and end the scope."""
        try:
            leave = getattr(type(self._inner), "__exit__", None)
            return leave(self._inner, kind, error, trace) if leave is not None else None
        finally:
            self._scope.close(error)


class AsyncStream(_Wrapped):
    """An asynchronous iterator that is not a generator, inside a scope."""

    def __aiter__(self) -> Any:
        """Return the wrapper itself."""
        return self

    async def __anext__(self) -> Any:
        """Return the next item; the scope ends with the last one."""
        self._scope.resume()
        try:
            item = await anext(self._inner)
        except StopAsyncIteration:
            self._scope.close()
            raise
        except BaseException as error:
            strip(error)
            self._scope.close(error)
            raise
        self._tell(self._scope, item)
        self._scope.suspend()
        return item

    async def __aenter__(self) -> Any:
        """Enter the wrapped stream, but return the wrapper."""
        enter = getattr(type(self._inner), "__aenter__", None)
        if enter is not None:
            await enter(self._inner)
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any:
        """Exit the wrapped stream, and end the scope."""
        try:
            leave = getattr(type(self._inner), "__aexit__", None)
            return await leave(self._inner, kind, error, trace) if leave is not None else None
        finally:
            self._scope.close(error)


hide_module(sys.modules[__name__])
