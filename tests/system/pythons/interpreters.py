"""The Python versions that are supported, and the interpreters of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
_SOURCE = "import sys; print(sys.version.replace(chr(10), ' '))"


class Interpreter(NamedTuple):
    """A Python of this machine that starts."""

    path: str
    version: str
    """`sys.version`, on one line."""

    @property
    def number(self) -> str:
        """The version without the build: `3.12.1`."""
        return self.version.split()[0]


def supported() -> list[str]:
    """Return the versions that the classifiers of the project list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    matches = (_CLASSIFIER.fullmatch(line) for line in project["classifiers"])
    return [match[1] for match in matches if match]


def find(version: str) -> Interpreter | None:
    """Return the Python of that version, of the PATH or of pyenv; None if none starts."""
    candidates = [shutil.which(f"python{version}")]
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = sorted(
        root.glob(f"versions/{version}.*/bin/python"),
        key=lambda path: [int(part) for part in re.findall(r"\d+", path.parts[-3])],
    )
    candidates += [str(path) for path in reversed(installed)]
    for path in candidates:
        # A shim of pyenv is on the PATH for versions that are not selected, too, and fails.
        if path is not None and (number := _starts(path)).startswith(f"{version}."):
            return Interpreter(path, number)
    return None


def _starts(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "-c", _SOURCE], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
