"""Check `hidden_frames.py`, whose path is the argument, in the running Python.

The module is loaded alone, so that the interpreter needs no packages. Prints `passed`.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import operator
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

spec: Any = importlib.util.spec_from_file_location("hidden_frames", sys.argv[1])
hidden_frames = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hidden_frames)
strip = hidden_frames.strip


@dataclass(frozen=True)
class FrozenError(Exception):
    """An exception whose attributes cannot be assigned."""

    number: int


def original(*args: Any, **kwargs: Any) -> Any:
    warnings.warn("caller", stacklevel=2)
    warnings.warn("its caller", stacklevel=3)
    logging.getLogger().warning("caller", stacklevel=2)
    if args:
        raise FrozenError(*args, **kwargs)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper with two frames."""

    def inner(args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(args, kwargs)
        except BaseException as error:
            strip(error)
            raise

    return call


def outcome(function: Callable[..., Any], *args: Any) -> list[str]:
    """Return what a call of a function attributes to its callers."""
    output = io.StringIO()
    logging.basicConfig(stream=output, format="%(pathname)s:%(lineno)d:%(funcName)s", force=True)
    found: list[str] = []
    registry = globals().setdefault("__warningregistry__", {})
    registry.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            function(*args)
        except Exception as error:
            found += traceback.format_exception(error)
    found += [f"{each.filename}:{each.lineno}" for each in caught]
    keys = sorted(map(str, registry))
    return [*found, output.getvalue(), *keys]


def check_hidden() -> None:
    """Compare a function with its hidden wrapper."""
    hidden_frames.hidden(wrapped)
    for args in ((), (7,)):
        assert outcome(wrapped(original), *args) == outcome(original, *args)


class Model:
    """Calls its method in two ways, as torch's modules do."""

    compiled: Any = None

    def method(self, *args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.compiled is not None:
            return self.compiled(*args, **kwargs)
        else:
            return self.method(*args, **kwargs)


def check_in_place_of() -> None:
    """Compare a method with one that has its place."""
    bare = Model.__call__
    expected = [outcome(Model(), *args) for args in ((), (7,))]
    compiled = Model()
    compiled.compiled = compiled.method
    expected += [outcome(compiled, *args) for args in ((), (7,))]
    gate = SimpleNamespace(is_open=True)

    def outermost(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return (self.compiled or self.method)(*args, **kwargs)
        except BaseException as error:
            strip(error)
            raise

    hidden_frames.hidden(outermost)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if gate.is_open:
            if self.compiled is not None:
                return outermost(self, *args, **kwargs)
            return outermost(self, *args, **kwargs)
        if self.compiled is not None:
            return self.compiled(*args, **kwargs)
        return self.method(*args, **kwargs)

    replacement: Any = hidden_frames.in_place_of(__call__, bare, (0, 1, 0, 1))
    Model.__call__ = replacement  # type: ignore[method-assign]
    for gate.is_open in (True, False):
        found = [outcome(Model(), *args) for args in ((), (7,))]
        found += [outcome(compiled, *args) for args in ((), (7,))]
        assert found == expected
    assert replacement.__globals__ is bare.__globals__


class Index:
    """An object that C code warns about, in its innermost frame."""

    def __index__(self) -> int:
        return True  # noqa: PLE0305 - C code warns about a subclass of int


def check_as_caller() -> None:
    """Compare a function written in C with its hidden wrapper."""
    call = wrapped(hidden_frames.as_caller(operator.index))

    def use(index: Callable[[Any], Any], argument: Any) -> Any:
        return index(argument)

    for argument in (Index(), "x"):
        expected = outcome(use, operator.index, argument)
        assert len(expected) > 1
        assert outcome(use, call, argument) == expected
        assert outcome(use, call, argument) == expected  # from the place that is known now
    assert hidden_frames.as_caller(original) is original


check_hidden()
check_in_place_of()
check_as_caller()
print("passed")
