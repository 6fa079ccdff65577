"""What a command writes to a terminal, and a page that shows it as a terminal does."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

_THEME = TerminalTheme(
    (22, 27, 34), (222, 227, 233),
    [(72, 79, 88), (255, 123, 114), (126, 209, 133), (227, 179, 65), (121, 192, 255),
     (210, 168, 255), (118, 216, 222), (222, 227, 233)],
)  # fmt: skip
_LINE, _LETTER, _EDGE = 20, 8.43, 22
"""Pixels: the height of a line, the width of a letter, and the room around them all."""
_PAGE = """<!DOCTYPE html>
<meta charset="utf-8">
<style>
{{stylesheet}}
html {{{{ background: {{background}}; }}}}
body {{{{ margin: 0; background: {{background}}; color: {{foreground}}; }}}}
pre {{{{ margin: 0; padding: {edge}px; font: 14px/{line}px "DejaVu Sans Mono", monospace; }}}}
</style>
<body><pre><code style="font-family:inherit">{{code}}</code></pre></body>
"""


def output_of(command: list[str], columns: int, cwd: Path, prompt: str) -> str:
    """What a command shows on a terminal of so many columns, below the prompt that started it.

    Raises CalledProcessError where it fails.
    """
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
    primary, replica = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": path, "COLUMNS": str(columns), "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=replica,
        stderr=replica,
    )
    os.close(replica)
    pieces = []
    try:
        while piece := os.read(primary, 65_536):
            pieces.append(piece)
    except OSError:  # how Linux says that nobody writes any more
        pass
    finally:
        os.close(primary)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command, b"".join(pieces))
    text = b"".join(pieces).decode(errors="replace").replace("\r\n", "\n")
    return f"\x1b[32m$\x1b[0m \x1b[1m{prompt}\x1b[0m\n{text}"


def write_page(text: str, page: Path) -> tuple[int, int]:
    """Write a page that shows `text`; its width and height, pixels."""
    shown = Text.from_ansi(text.rstrip())
    lines = shown.split()
    columns = max(line.cell_len for line in lines)
    console = Console(record=True, file=io.StringIO(), width=columns + 1, color_system="truecolor")
    console.print(shown)
    template = _PAGE.format(edge=_EDGE, line=_LINE)
    page.write_text(
        console.export_html(theme=_THEME, code_format=template, inline_styles=True), "utf-8"
    )
    return round(columns * _LETTER) + 2 * _EDGE, len(lines) * _LINE + 2 * _EDGE
