"""The recorded spools that ship with the tests."""

from __future__ import annotations

import shutil
from pathlib import Path

SPOOLS = Path(__file__).parents[2] / "testdata" / "spools"
NAMES = sorted(path.name for path in SPOOLS.iterdir() if path.is_dir())


def batch_files(name: str) -> list[Path]:
    """The batch files of a recording, in order."""
    return sorted((SPOOLS / name / ".cirron" / "spool").glob("*.json"))


ALL_BATCHES = [path for name in NAMES for path in batch_files(name)]


def copy_of(name: str, target: Path) -> Path:
    """A copy of a recording's `.cirron`, to be changed; returns it."""
    return shutil.copytree(SPOOLS / name / ".cirron", target / ".cirron")
