"""The entry point of the collector process that embedded.py starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time

from .embedded import END_S
from .main import main


def serve(command: int) -> None:
    """Run `cirron-otel` with the arguments of this process until standard input is closed.

    `command` is the id of the process that started it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command decides when to end
    threading.Thread(target=_watch, daemon=True).start()
    try:
        main()
    finally:
        if os.getppid() != command:  # the command was killed, and cannot remove these files
            shutil.rmtree(sys.argv[sys.argv.index("--spool") + 1], ignore_errors=True)


def _watch() -> None:
    """End the process when the other end of its standard input is closed."""
    with contextlib.suppress(OSError):
        # Do not read sys.stdin: this thread would hold its lock while the interpreter exits.
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S)
    os._exit(1)
