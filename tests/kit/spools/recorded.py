"""The recorded spools that ship with the tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from .made import OWN_VERSION

SPOOLS = Path(__file__).parents[2] / "testdata" / "spools"
NAMES = sorted(path.name for path in SPOOLS.iterdir() if path.is_dir())


def batch_files(name: str) -> list[Path]:
    """The batch files of a recording, in order."""
    return sorted((SPOOLS / name / ".cirron" / "spool").glob("*.json"))


ALL_BATCHES = [path for name in NAMES for path in batch_files(name)]


def as_own(files: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The files as if this SDK had recorded them: engines leave those of cirron-sdk to Python."""
    own = f'"sdk_version":"{OWN_VERSION}"'.encode()
    forms = (b'"sdk_version":"0.3.0"', b'"sdk_version": "0.3.0"')
    found = []
    for name, data in files:
        for each in forms:
            data = data.replace(each, own)  # noqa: PLW2901
        found.append((name, data))
    return found


def own_spool(name: str, folder: Path) -> Path:
    """Write a recording into a folder as if this SDK had recorded it; return the folder."""
    target = folder / name / "spool"
    if not target.exists():
        target.mkdir(parents=True)
        files = ((path.name, path.read_bytes()) for path in batch_files(name))
        for file, data in as_own(files):
            (target / file).write_bytes(data)
    return target.parent


def copy_of(name: str, target: Path) -> Path:
    """A copy of a recording's `.cirron`, to be changed; returns it."""
    return shutil.copytree(SPOOLS / name / ".cirron", target / ".cirron")
