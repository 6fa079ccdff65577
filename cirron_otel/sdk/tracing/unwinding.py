"""Scopes of loops that an exception may be leaving.

An exception that leaves a `for` loop drops the loop's iterator first, which ends the loop's scopes.
At that moment no code can determine which exception it is, or whether it will be caught. So these
scopes wait for a short time before they may be sealed. If the exception ends the program,
`session.exits` marks them as failed.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from inspect import CO_GENERATOR
from time import monotonic
from types import CodeType
from typing import Any, NamedTuple

from .state import state

WAIT_S = 30.0
"""The time that a scope waits, seconds: the program may save a checkpoint before it fails."""

_MOST = 64
_LEAVING = frozenset({"POP_TOP", "POP_ITER", "END_FOR", "SWAP", "DELETE_FAST", "STORE_FAST"})
"""The instructions at which a frame leaves a loop by `break` or `return`, or drops its iterator."""
_SUSPENDED = frozenset({"YIELD_VALUE", "RESUME", "RETURN_GENERATOR"})
_RERAISED = frozenset({"RERAISE", "RAISE_VARARGS"})


class Place(NamedTuple):
    """The instruction at which a loop was left."""

    code: CodeType
    at: int | None
    """Offset of the instruction; None if it reraises: the traceback then has another offset."""

    def is_in(self, error: BaseException) -> bool:
        """Return whether the exception passed through this instruction."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is self.code and self.at in (None, trace.tb_lasti):
                return True
            trace = trace.tb_next
        return False


class Raised(NamedTuple):
    """An exception that leaves a function of this package, which called a framework's loop."""

    identity: int
    line: tuple[CodeType, int] | None
    """The innermost place in the traceback, since another exception may reuse the identity."""

    def is_in(self, error: BaseException) -> bool:
        """Return whether `error` is this exception."""
        return id(error) == self.identity and _innermost(error) == self.line


def raised_in(error: BaseException) -> Raised:
    """Return an identification of an exception that holds no reference to it or to its frames."""
    return Raised(id(error), _innermost(error))


def _innermost(error: BaseException) -> tuple[CodeType, int] | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else (trace.tb_frame.f_code, trace.tb_lasti)


class _Waiting(NamedTuple):
    scope: Any
    place: Place | Raised
    since: float
    is_finished_here: bool


_waiting: deque[_Waiting] = deque()


def loop_left(depth: int = 1) -> Place | None:
    """Return the place at which an exception may be leaving the caller's loop, or None.

    `depth` is the number of frames between this function and the loop. Generators that are being
    closed are skipped.
    """
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:  # the thread ends
        return None
    while frame is not None:
        code, at = frame.f_code, frame.f_lasti
        name = dis.opname[code.co_code[at]] if at >= 0 else "RESUME"
        if not (code.co_flags & CO_GENERATOR and name in _SUSPENDED):
            if name in _LEAVING:
                return None
            return Place(code, None if name in _RERAISED else at)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def keep(scope: Any, place: Place | Raised, until: int | None = None) -> None:
    """Make a scope wait. If its end `until` (monotonic ns) is given, finish it after the wait."""
    if until is not None:
        scope._until = until
    _waiting.append(_Waiting(scope, place, monotonic(), until is not None))
    if len(_waiting) > _MOST:
        _finish(_waiting.popleft())


def passed_by(error: BaseException) -> list[Any]:
    """Return the waiting scopes whose loops the exception left."""
    return [each.scope for each in tuple(_waiting) if each.place.is_in(error)]


def release(*, now: bool = False) -> None:
    """Finish the scopes that have waited long enough, or all of them."""
    oldest = monotonic() - WAIT_S
    while _waiting and (now or _waiting[0].since < oldest):
        try:
            _finish(_waiting.popleft())
        except IndexError:  # another thread took it
            return


def forget() -> None:
    """In a forked child, forget the waiting scopes, which belong to the parent."""
    _waiting.clear()


def _finish(each: _Waiting) -> None:
    scope = each.scope
    if each.is_finished_here and not scope._end:
        if state.special:
            scope._notify_end(scope._until)
        else:
            scope._end = scope._until
