"""Wrap every call of a function in a scope: functions, coroutines, and both kinds of generator.

A generator's scope is open from its first step to its last, but it is the current span only while
the generator itself runs: the work of its consumer between steps does not belong to the scope.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from .hidden_frames import hide_module, strip

if TYPE_CHECKING:
    from .state import OpenScope

F = TypeVar("F", bound=Callable[..., Any])
OnItem = Callable[["OpenScope", Any], None]
"""Called with the scope and each yielded item, or with the scope and the call's result."""


def _nothing(_scope: Any, _item: Any) -> None:
    pass


def wrap_calls(function: F, make: Callable[[], OpenScope], tell: OnItem = _nothing) -> F:
    """Return `function` wrapped so that each call runs in a new scope, which `make` returns."""
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return wrap_async_generator(function(*args, **kwargs), make(), tell)

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make() as scope:
                try:
                    result = await function(*args, **kwargs)
                except BaseException as error:
                    strip(error)
                    raise
                tell(scope, result)
                return result

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return wrap_generator(function(*args, **kwargs), make(), tell)

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make() as scope:
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:
                    strip(error)
                    raise
                tell(scope, result)
                return result

    return wrapper  # type: ignore[return-value]


def wrap_generator(
    inner: Generator[Any, Any, Any], scope: OpenScope, tell: OnItem = _nothing
) -> Generator[Any, Any, Any]:
    """Run the generator `inner` inside `scope`; pass on send, throw, and close."""
    sent: Any = None
    thrown: BaseException | None = None
    with scope:
        while True:
            try:
                item = inner.send(sent) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                return stop.value
            except BaseException as error:
                strip(error)
                raise
            tell(scope, item)
            sent = thrown = None
            scope.suspend()
            try:
                sent = yield item
            except GeneratorExit:
                scope.resume()
                inner.close()
                raise
            except BaseException as error:
                thrown = error
            scope.resume()


async def wrap_async_generator(
    inner: AsyncGenerator[Any, Any], scope: OpenScope, tell: OnItem = _nothing
) -> AsyncGenerator[Any, Any]:
    """Run the asynchronous generator `inner` inside `scope`."""
    sent: Any = None
    thrown: BaseException | None = None
    with scope:
        while True:
            try:
                item = await (inner.asend(sent) if thrown is None else inner.athrow(thrown))
            except StopAsyncIteration:
                return
            except BaseException as error:
                strip(error)
                raise
            tell(scope, item)
            sent = thrown = None
            scope.suspend()
            try:
                sent = yield item
            except GeneratorExit:
                scope.resume()
                await inner.aclose()
                raise
            except BaseException as error:
                thrown = error
            scope.resume()


hide_module(sys.modules[__name__])
