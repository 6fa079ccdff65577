"""On a terminal, a long report goes through the pager, unless that is switched off."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.conftest import RECORDED, environment

PREFIXED = "sed s/^/paged:/"


def on_a_terminal(*options: str, **more: str) -> str:
    """Return the output of the report on a terminal of 80 columns and 24 lines."""
    terminal, end = os.openpty()
    command = [sys.executable, "-m", "cirron_otel", "report", "--full", str(RECORDED), *options]
    process = subprocess.Popen(
        command, stdout=end, stderr=end, env=environment() | {"TERM": "xterm"} | more
    )
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is closed
        while piece := os.read(terminal, 65536):
            shown += piece
    os.close(terminal)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("pager", "options", "is_paged"),
    [(PREFIXED, (), True), (PREFIXED, ("--no-pager",), False), ("", (), False),
     ("no-such-pager", (), False)],
)  # fmt: skip
def test_the_pager(pager: str, options: tuple[str, ...], is_paged: bool) -> None:
    shown = on_a_terminal(*options, PAGER=pager)
    assert shown.count("paged:") == (shown.count("\n") if is_paged else 0)
    assert "The slowest steps:" in shown
    assert "\x1b[" in shown  # colours are kept
    assert Path(RECORDED).name in shown


@pytest.mark.parametrize("options", [(), ("--no-pager",)])
def test_a_narrow_terminal_breaks_no_figure_and_no_id(options: tuple[str, ...]) -> None:
    wide, narrow = (
        on_a_terminal(*options, PAGER="cat -", COLUMNS=columns, NO_COLOR="1")
        for columns in ("80", "40")
    )
    shown = [line.split() for line in narrow.splitlines()]
    assert [line.split() for line in wide.splitlines()] == shown
    assert "…" not in narrow
