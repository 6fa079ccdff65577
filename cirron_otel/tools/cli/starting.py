"""Ctrl-C while the command is still being imported, which takes a few tenths of a second."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

_INTERRUPTED = 130
_PROGRAMS = ("cirron-otel", "cirron_otel/__main__.py")
_before: list[Any] = []


def end_quietly() -> None:
    """Let Ctrl-C end the process in one line, without a traceback, until `restore` is called.

    Nothing needs to be cleaned up while modules are imported. Does nothing if another program
    imports the command line, or handles Ctrl-C itself.
    """
    if (
        not sys.argv
        or not sys.argv[0].endswith(_PROGRAMS)
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return
    _before.append(signal.signal(signal.SIGINT, _end))


def restore() -> None:
    """Handle Ctrl-C as before `end_quietly`."""
    while _before:
        signal.signal(signal.SIGINT, _before.pop())


def _end(_number: int, _frame: object) -> None:
    try:
        os.write(2, b"cirron-otel: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)
