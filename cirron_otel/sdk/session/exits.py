"""The end of the process: the interpreter's exit, uncaught exceptions, and signals.

Each handler flushes within a deadline and then calls the previous handler.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from .errors import record_error
from .failures import unreported

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
        with the signal that does.
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
        """Restore the previous handlers wherever ours are still installed."""
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
