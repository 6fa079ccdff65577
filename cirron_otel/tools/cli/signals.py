"""Handling of Ctrl-C and SIGTERM: both end the work cleanly, so that no partial file is left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from . import starting

_BOTH = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def terminating(arguments: list[str]) -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt within the block, as Ctrl-C does.

    If `arguments` start a collector, SIGTERM ends the process at once, until it listens.
    """
    owner = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker that inherited this handler must simply end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt

    is_service = starting.is_service(arguments)
    with _handling((signal.SIGTERM,), starting.end if is_service else interrupt):
        yield


@contextlib.contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on the first Ctrl-C or SIGTERM within the block; interrupt on the second."""

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _handling(_BOTH, ask):
        yield


@contextlib.contextmanager
def _handling(numbers: tuple[signal.Signals, ...], handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, old in before:
            # A collector that has run ignores further signals: its exit code is determined.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, old)
