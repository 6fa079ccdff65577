"""Signals while the command is still being imported, which takes a few tenths of a second.

The module imports as little as possible: SIGTERM has its default effect until `end_quietly` runs.
"""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = 130
_PROGRAMS = ("cirron-otel", "cirron_otel/__main__.py")
_is_quiet = False


def end_quietly() -> None:
    """Let Ctrl-C end the process in one line, without a traceback, until `restore` is called.

    SIGTERM ends a starting collector with exit code 0: the default handler would end it with
    another one, and the kernel would ignore the signal for the first process of a container.
    Nothing needs to be cleaned up while modules are imported. Does nothing if another program
    imports the command line, except that SIGTERM also ends a collector that `python -c` starts; a
    program that handles Ctrl-C itself keeps its handler.
    """
    global _is_quiet  # noqa: PLW0603 - the state of the process
    if not sys.argv:
        return
    is_own = sys.argv[0].endswith(_PROGRAMS)
    try:
        if (is_own or sys.argv[0] == "-c") and is_service(sys.argv[1:]):
            signal.signal(signal.SIGTERM, end)
        if is_own and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
            _is_quiet = True
    except ValueError:
        return  # only the main thread may set handlers


def restore() -> None:
    """Handle Ctrl-C as before `end_quietly`."""
    global _is_quiet  # noqa: PLW0603
    if _is_quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _is_quiet = False


def is_service(arguments: list[str]) -> bool:
    """Return whether the command line (without the program) starts a collector that serves."""
    is_query = any(each.startswith(("--check", "--print", "--help")) for each in arguments)
    return arguments[:1] == ["collector"] and not is_query and "-h" not in arguments


def end(_number: int, _frame: object) -> None:
    """Handle SIGTERM in a collector that has not begun to listen.

    There is nothing to store or to close.
    """
    os._exit(0)


def _interrupt(_number: int, _frame: object) -> None:
    try:
        os.write(2, b"cirron-otel: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)
