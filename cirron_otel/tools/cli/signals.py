"""Handling of Ctrl-C and SIGTERM: both end the work cleanly, so that no partial file is left.

The module imports little, because `is_service` is called before the other imports.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

_BOTH = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def terminating(arguments: Sequence[str]) -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt within the block, as Ctrl-C does.

    If `arguments` start a collector, SIGTERM ends the process at once (see `end_at_once`).
    """
    owner = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker that inherited this handler must simply end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt

    with _handling((signal.SIGTERM,), _end if is_service(arguments) else interrupt):
        yield


def is_service(arguments: Sequence[str]) -> bool:
    """Return whether the command line (without the program) starts a collector that serves."""
    is_query = any(each.startswith(("--check", "--print", "--help")) for each in arguments)
    return arguments[:1] == ["collector"] and not is_query and "-h" not in arguments


def end_at_once() -> None:
    """Let SIGTERM end this process with exit code 0, until another handler is set.

    It is for a collector that has not begun to listen: there is nothing to store or to close.
    """
    signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


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
            signal.signal(number, old)
