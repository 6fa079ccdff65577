"""Environments with the wheel of an earlier commit or of this tree.

`make compare` and the benchmark of `report` use the same environments: run one at a time.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kit.environments import Environment
from tests.kit.wheels import (
    ROOT,
    build,
    put,
    requirements,
)


def checked_out(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a new folder."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=archive.stdout)
    return folder


def environment(side: str, source: Path, place: Path) -> Environment:
    """Install the wheel of a source tree into the environment of a side, `base` or `head`."""
    wheels = place / f"{side}-wheel"
    wheels.mkdir()
    made = Environment(
        f"compare/{side}", pins=source / "constraints.txt", install=requirements(source)
    )
    put(made, build(wheels, source))
    return made
