"""The modules that a program loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def loaded_by(code: str, cwd: Path | None = None) -> set[str]:
    """The modules that are loaded after `code` ran in a new Python."""
    program = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())
