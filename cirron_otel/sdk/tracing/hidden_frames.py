"""Keep this package's frames out of a program's warnings, log records and tracebacks.

A wrapper of a function adds a frame between the function and its caller. `warnings.warn` with a
`stacklevel`, and `logging` with one, would count it. Both skip the frames of the import system,
which they recognize by the file name of the code: it contains "importlib" and "_bootstrap". (This
is so in every Python version from 3.3 on; `skip_file_prefixes` is an argument of the function that
warns, and new in Python 3.12.) The file name of hidden code contains both, and costs nothing at run
time. A traceback loses its entries for hidden frames where the wrapper catches the exception and
raises it again. Profilers and debuggers show the frames, under that file name.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

MARK = " (importlib._bootstrap)"
"""The end of the file name of hidden code, after the name of its real file."""
_CALL = "as_caller"
_CALL_WITH_ALL = dis.opmap["CALL_FUNCTION_EX"]
_MOST_SITES = 1_024
_hidden_modules: set[str] = set()


def hidden(function: F) -> F:
    """Hide the frames of a function and of the functions that it defines; return the function.

    It is changed in place.
    """
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        function.__code__ = _hidden_code(code)
    return function


def hide_package(name: str) -> None:
    """Hide the functions of a package's imported modules. A function that exists keeps its id."""
    for module_name, module in list(sys.modules.items()):
        if (module_name + ".").startswith(name + ".") and module_name not in _hidden_modules:
            _hidden_modules.add(module_name)
            hide_module(module)


def hide_module(module: ModuleType) -> None:
    """Hide the functions and methods that a module defines."""
    for function in functions_of(module):
        if function.__module__ == module.__name__:
            hidden(function)


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions among a module's names, and the methods of its classes."""
    for value in list(vars(module).values()):
        for each in [value, *vars(value).values()] if isinstance(value, type) else [value]:
            function = getattr(each, "__func__", getattr(each, "fget", each))
            if isinstance(function, FunctionType):
                yield function


def _hidden_code(code: CodeType) -> CodeType:
    if code.co_filename.endswith(MARK):
        return code
    constants = [
        _hidden_code(each) if isinstance(each, CodeType) else each for each in code.co_consts
    ]
    return code.replace(co_filename=code.co_filename + MARK, co_consts=tuple(constants))


def strip(error: BaseException) -> None:
    """Remove the outermost entries of an exception's traceback that are hidden frames.

    A wrapper calls it before it raises the exception again with a bare `raise`, which adds no
    entry. Raises nothing.
    """
    try:
        trace = error.__traceback__
        while trace is not None and is_hidden(trace.tb_frame.f_code):
            trace = trace.tb_next
        BaseException.with_traceback(error, trace)  # an exception's class may forbid assignments
    except Exception:  # noqa: S110 - the exception has attributes of its own
        pass


def is_hidden(code: CodeType) -> bool:
    """Return whether the frames of some code are hidden."""
    return code.co_filename.endswith(MARK) or code.co_name == _CALL


# --- functions in place of others ---------------------------------------------------------------

_Position = tuple[int | None, int | None, int | None, int | None]


def in_place_of(function: Any, original: FunctionType, calls: Sequence[int]) -> FunctionType:
    """Return `function` with the file, the names and the globals of `original`, which it replaces.

    Warnings and tracebacks then find the frame that the original would have. `calls` are, for each
    call `f(*args, **kwargs)` of the function, the number of the same call of the original, from 0.
    The function may refer to variables of its enclosing function only, not to globals.
    """
    located = [position for is_call, position in _positions(original.__code__) if is_call]
    first = original.__code__.co_firstlineno
    order, positions = iter(calls), []
    for is_call, _ in _positions(function.__code__):
        positions.append(located[next(order)] if is_call else located[-1])
    code = function.__code__.replace(
        co_filename=original.__code__.co_filename,
        co_name=original.__code__.co_name,
        co_qualname=original.__code__.co_qualname,
        co_firstlineno=first,
        co_linetable=_line_table(positions, first),
    )
    defaults, closure = function.__defaults__, function.__closure__
    return FunctionType(code, original.__globals__, function.__name__, defaults, closure)


def _positions(code: CodeType) -> Iterator[tuple[bool, _Position]]:
    """Yield for each code unit whether it is a call `f(*args, **kwargs)`, and its position."""
    for operation, position in zip(code.co_code[::2], code.co_positions(), strict=True):
        yield operation == _CALL_WITH_ALL, position


def _line_table(positions: list[_Position], first: int) -> bytes:
    """Return the location table (`Objects/locations.md` of CPython) of these positions, by unit."""
    table, before, start = bytearray(), first, 0
    while start < len(positions):
        position = positions[start]
        count = 1
        while count < 8 and start + count < len(positions) and positions[start + count] == position:
            count += 1
        line, end_line, column, end_column = position
        if line is None:
            table.append(0x80 | 15 << 3 | count - 1)
        elif end_line is None or column is None or end_column is None:
            table.append(0x80 | 13 << 3 | count - 1)
            table += _signed(line - before)
            before = line
        else:
            table.append(0x80 | 14 << 3 | count - 1)
            table += _signed(line - before) + _unsigned(end_line - line)
            table += _unsigned(column + 1) + _unsigned(end_column + 1)
            before = line
        start += count
    return bytes(table)


def _unsigned(value: int) -> bytes:
    pieces = bytearray()
    while value >= 64:
        pieces.append(0x40 | value & 0x3F)
        value >>= 6
    pieces.append(value)
    return bytes(pieces)


def _signed(value: int) -> bytes:
    return _unsigned((-value << 1) | 1 if value < 0 else value << 1)


# --- functions written in C ---------------------------------------------------------------------


class _Site(NamedTuple):
    """A place in a program that calls a wrapped function written in C."""

    code: CodeType
    names: dict[str, Any]
    call: Callable[..., Any]


_sites: dict[tuple[int, int], _Site] = {}


def forget_callers() -> None:
    """Release the programs whose calls `as_caller` has seen. Called when the hooks are removed."""
    _sites.clear()


def as_caller(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` from a frame that looks like its visible caller's.

    A function written in C attributes its warnings to the innermost frame. Here, that frame has the
    file, the line and the globals of the innermost frame that is not hidden. A function written in
    Python is returned unchanged.
    """
    if hasattr(function, "__code__"):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename.endswith(MARK) and frame.f_back is not None:
            frame = frame.f_back
        code, names = frame.f_code, frame.f_globals
        key = (id(code), frame.f_lasti)
        site = _sites.get(key)
        if site is None or site.code is not code or site.names is not names:
            if len(_sites) >= _MOST_SITES:
                _sites.clear()
            site = _sites[key] = _Site(code, names, _site_call(frame))
        return site.call(function, args, kwargs)

    return call


def _site_call(frame: Any) -> Callable[..., Any]:
    code = _as_caller.__code__
    line = frame.f_lineno or frame.f_code.co_firstlineno
    units: list[_Position] = [(line, None, None, None) for _ in code.co_positions()]
    replaced = code.replace(
        co_filename=frame.f_code.co_filename, co_name=_CALL, co_firstlineno=line,
        co_linetable=_line_table(units, line),
    )  # fmt: skip
    return FunctionType(replaced, frame.f_globals)


def _as_caller(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


hidden(as_caller)
