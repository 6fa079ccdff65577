"""The end of the process: the interpreter's exit, uncaught exceptions, and signals.

Each handler flushes within a deadline and then calls the previous handler. An exception or a signal
that ends the process sets the status ERROR on the open scopes.

An exception that the program catches does not reach this module. The scopes whose `with` block it
leaves, and the phases whose call raised it, get their status when they exit.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from opentelemetry.trace import StatusCode
from opentelemetry.trace.status import Status

from ..tracing.scope import NO_SESSION, Scope
from ..tracing.state import CONTEXT, SCOPE_KEY
from ..tracing.unwinding import passed_by
from .errors import record_error

KILLED = "killed: "
"""Prefix of the status message of a scope that a signal ended."""

_FLOW = (StopIteration, StopAsyncIteration)


def cause_of(error: BaseException | None) -> Exception | None:
    """Return the exception to record if `error` ends the program; None if it is not a failure.

    For `sys.exit(1)` in an exception handler, this is the handled exception.
    """
    if isinstance(error, SystemExit) and error.code not in (None, 0):
        error = error.__context__
    return error if isinstance(error, Exception) and not isinstance(error, _FLOW) else None


def fail(session: Scope, error: BaseException | None) -> None:
    """Set ERROR and record the exception on all open scopes: the exception ends the session."""
    cause = cause_of(error)
    if cause is None:
        return
    for scope in (*passed_by(cause), *_open_in(session)):
        if not _has_failed(scope):
            scope._fail(cause)


def terminate(session: Scope, number: int, frame: FrameType | None) -> None:
    """Set ERROR on open scopes, and add an event with the stack: a signal ends the process."""
    name = signal.Signals(number).name
    message = f"{KILLED}the process was ended by {name}"
    stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
    event = {
        "exception.type": name,
        "exception.message": message.removeprefix(KILLED),
        "exception.stacktrace": stack,
    }
    for scope in _open_in(session):
        if not _has_failed(scope):
            scope.add_event("exception", event)
            scope.set_status(Status(StatusCode.ERROR, message))


def unreported(hook: Any) -> BaseException | None:
    """Return the exception that ended the program, if `sys.excepthook` is no longer `hook`.

    An interactive interpreter also sets `sys.last_value`, but continues.
    """
    if sys.excepthook == hook or hasattr(sys, "ps1"):
        return None
    return getattr(sys, "last_value", None)


def _open_in(session: Scope) -> Iterator[Any]:
    """Yield the open scopes of this context, innermost first, and then the session."""
    scope: Any = CONTEXT.get().get(SCOPE_KEY)
    chain = []
    while scope is not None and scope is not NO_SESSION and scope._depth:
        chain.append(scope)
        scope = scope._above
    if scope is session:
        yield from chain
    yield session


def _has_failed(scope: Any) -> bool:
    extras = scope._extras
    return bool(scope._end) or (
        extras is not None and extras.status.status_code is StatusCode.ERROR
    )


_FATAL = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class Exits:
    """The handlers for the end of the process, which can be removed again."""

    def __init__(
        self,
        flush: Callable[[], object],
        end: Callable[[], object],
        fail: Callable[[BaseException], object],
        terminate: Callable[[int, FrameType | None], object],
    ) -> None:
        """`flush` seals all records; `end` also closes the session. Both observe a deadline.

        Before `end`, `fail` is called with the exception that ends the program, or `terminate`
        with the signal that ends it.
        """
        self._flush, self._end, self._fail, self._terminate = flush, end, fail, terminate
        self._hook_before: Any = None
        self._before: dict[int, Handler] = {}
        self._is_installed = False

    def install(self, *, signals: bool) -> None:
        """Install the handlers; signal handlers only on the main thread, as Python requires."""
        atexit.register(self._at_exit)
        self._hook_before, sys.excepthook = sys.excepthook, self._on_exception
        self._is_installed = True
        if not signals or threading.current_thread() is not threading.main_thread():
            return
        for number in _FATAL:
            before = signal.getsignal(number)
            # Python's own SIGINT handler raises KeyboardInterrupt, and the exit then flushes. None
            # means a handler that was not installed from Python.
            if before in (signal.SIG_IGN, signal.default_int_handler, None):
                continue
            try:
                signal.signal(number, self._on_signal)
            except (ValueError, OSError) as error:
                record_error("signal", error)
                continue
            self._before[number] = before

    def remove(self) -> None:
        """Restore the previous handlers where this object's handlers are still installed."""
        if not self._is_installed:
            return
        self._is_installed = False
        atexit.unregister(self._at_exit)
        # Each access creates a new bound method: compare by equality.
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._hook_before
        if threading.current_thread() is not threading.main_thread():
            return  # our handlers stay, and call the previous ones
        for number, before in list(self._before.items()):
            if signal.getsignal(number) != self._on_signal:
                continue  # a later handler may call ours; ours calls the previous one
            try:
                signal.signal(number, before)
            except (ValueError, OSError, TypeError) as error:
                record_error("signal", error)
            else:
                del self._before[number]

    def _at_exit(self) -> None:
        error = unreported(self._on_exception)
        if error is not None:
            self._safely(lambda: self._fail(error))
        self._safely(self._end)

    def _on_exception(self, kind: Any, error: BaseException, trace: Any) -> None:
        """Handle an exception as `sys.excepthook`; after `remove`, only call the previous hook."""
        if self._is_installed:
            self._safely(lambda: self._fail(error))
        self._hook_before(kind, error, trace)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number, signal.SIG_DFL)
        if callable(before):
            self._safely(self._flush)  # the previous handler may call os._exit, or return
            before(number, frame)
            return
        self._safely(lambda: self._terminate(number, frame))
        self._safely(self._end)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _safely(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            record_error("exit", error)
