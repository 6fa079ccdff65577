"""Pictures of pages by a real browser: Chromium without a window, and without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
_SAID = ("CONSOLE", "Refused to", "violates")
_LIMIT_S = 120


class BrowserError(Exception):
    """There is no browser, it failed, or the page is not right to it; the message says which."""


def picture(page: Path, file: Path, width: int, height: int) -> None:
    """Draw the upper `height` pixels of `page` into `file`, a PNG.

    Raises BrowserError, also where the browser's console has anything to say of the page.
    """
    command = next(filter(None, map(shutil.which, NAMES)), None)
    if command is None:
        raise BrowserError(f"no browser: expected one of {', '.join(NAMES)} on the PATH")
    # Chromium refuses to run as root in its sandbox, as in a container.
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    file.unlink(missing_ok=True)  # the one before is no picture of this page
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                command, *_ARGUMENTS, *root, f"--user-data-dir={profile}",
                f"--screenshot={file}", f"--window-size={width},{height}",
                "--force-device-scale-factor=1", page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if any(word in line for word in _SAID)]
    if said:
        raise BrowserError(f"the browser says of {page}: {said[0]}")
    if done.returncode or not file.exists():
        raise BrowserError(f"no picture of {page}: {done.stderr[-500:]}")
