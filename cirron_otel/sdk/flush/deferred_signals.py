"""Defer the signals that end the process while it saves its last records."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

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

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    try:
        for number in _FATAL:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # None: a handler that is not Python's
                before.append((number, handler))
                signal.signal(number, note)
        yield
    finally:
        for restored, handler in before:
            signal.signal(restored, handler)
        if came:
            os.kill(os.getpid(), came[0])
