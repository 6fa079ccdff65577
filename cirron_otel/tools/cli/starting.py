"""Signals while the command is still being imported, which takes a few tenths of a second."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from . import signals

_INTERRUPTED = 130
_PROGRAMS = ("cirron-otel", "cirron_otel/__main__.py")
_before: list[Any] = []


def end_quietly() -> None:
    """Let Ctrl-C end the process in one line, without a traceback, until `restore` is called.

    SIGTERM ends a starting collector (see `signals.end_at_once`): the default handler would end it
    with another exit code, and the kernel would ignore the signal for the first process of a
    container. Nothing needs to be cleaned up while modules are imported. Does nothing if another
    program imports the command line, except that SIGTERM also ends a collector that `python -c`
    starts; a program that handles Ctrl-C itself keeps its handler.
    """
    if not sys.argv or threading.current_thread() is not threading.main_thread():
        return
    is_own = sys.argv[0].endswith(_PROGRAMS)
    if is_own and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _before.append(signal.signal(signal.SIGINT, _end))
    if (is_own or sys.argv[0] == "-c") and signals.is_service(sys.argv[1:]):
        signals.end_at_once()


def restore() -> None:
    """Handle Ctrl-C as before `end_quietly`."""
    while _before:
        signal.signal(signal.SIGINT, _before.pop())


def _end(_number: int, _frame: object) -> None:
    try:
        os.write(2, b"cirron-otel: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)
