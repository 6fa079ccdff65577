"""A pager for long output on a terminal, chosen as git chooses one."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

from . import output

_DEFAULT = "less"
_LESS = "FRX"
"""The options of less that git sets: exit if one screen is enough, show colours, and leave the text
on the screen."""


@contextlib.contextmanager
def paged(*, is_wanted: bool) -> Iterator[None]:
    """Show the block's stdout in $PAGER if it has more lines than the terminal.

    An empty PAGER, or `cat`, means no pager.
    """
    pager = os.environ.get("PAGER", _DEFAULT).strip()
    terminal = sys.stdout
    if not is_wanted or pager in ("", "cat") or terminal is None or not terminal.isatty():
        yield
        return
    columns, lines = shutil.get_terminal_size()
    captured = io.StringIO()
    sys.stdout, output.terminal.width = captured, columns
    try:
        yield
    finally:
        sys.stdout, output.terminal.width = terminal, None
    text = captured.getvalue()
    if text.count("\n") < lines or not _shown(pager, text):
        output.result(text.removesuffix("\n"))


def _shown(pager: str, text: str) -> bool:
    """Run the pager; return False if it cannot be started."""
    environment = {"LESS": _LESS, "LV": "-c", **os.environ}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", pager], stdin=subprocess.PIPE, env=environment, text=True,
            errors="backslashreplace",
        )  # fmt: skip
        with contextlib.suppress(BrokenPipeError):
            process.communicate(text)
        return process.wait() not in (126, 127)
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGINT, before)
