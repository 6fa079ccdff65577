"""Defer the signals that end the process while it saves its last records."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ..session.errors import record_error

_FATAL = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM after the block, as they would be handled without it.

    Only the main thread can set handlers, and only it runs them: in another thread, the block is
    not protected from a handler that ends the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: list[tuple[int, Any]] = []
    wakeup = -1

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    try:
        # An event loop is woken by a byte for each signal: once, when it is sent again.
        wakeup = signal.set_wakeup_fd(-1)
        for number in _FATAL:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # None: a handler that is not Python's
                signal.signal(number, note)
                before.append((number, handler))
    except (ValueError, OSError) as error:
        record_error("signal", error)
    try:
        yield
    finally:
        # SIGINT last: its handler usually raises an exception.
        for restored, handler in reversed(before):
            signal.signal(restored, handler)
        if wakeup != -1:
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for each in sorted(set(came), key=_FATAL.index, reverse=True):
            os.kill(os.getpid(), each)
