"""Folders that appear with all their files, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..errors import InputError, TargetError
from .atomic_files import publish, sync_directory, sync_file
from .leftovers import temporary_directory


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `target` when the block ends.

    If the block raises, the folder is removed. Raises TargetError if `target` exists and is not
    empty, or if it cannot be written.
    """
    if target.is_dir() and any(target.iterdir()):
        raise TargetError(f"{target} is not empty: name a new directory")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f"{target.name[:200]}."
        with temporary_directory(prefix, ".tmp", target.parent) as temporary:
            yield temporary
            _sync(temporary)
            publish(temporary, target)
    except OSError as error:
        raise TargetError(f"cannot write {target}: {error.strerror or error}") from error


def safe_parts(name: str) -> tuple[str, ...]:
    """Return the parts of a recorded file's name. Raises InputError if it leads elsewhere."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise InputError(f"a file is named {name[:100]!a}: expected a path below the recording")
    return parts


def _sync(folder: Path) -> None:
    """Wait until all files are on disk."""
    for directory, _, names in os.walk(folder):
        for name in names:
            with (Path(directory) / name).open("rb") as file:
                sync_file(file.fileno())
        sync_directory(Path(directory))
