"""Directories of a spool: only their owner may enter them, and their names are on disk."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from ..atomic_files import sync_directory

DEFAULT_NAME: Final = ".cirron"
"""The directory that recordings go to by default. Git is to ignore it."""


def make_private(directory: Path) -> None:
    """Make a directory, and those above it that are missing, with mode 0700, and sync their names.

    A new `.cirron` gets a `.gitignore` for all that is in it. A directory that is there already
    stays as it is. Raises OSError.
    """
    if directory.is_dir():
        return
    make_private(directory.parent)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not directory.is_dir():  # else another was quicker
            why = os.strerror(errno.ENOTDIR)
            raise NotADirectoryError(errno.ENOTDIR, why, str(directory)) from None
    else:
        if directory.name == DEFAULT_NAME:
            with contextlib.suppress(OSError):
                (directory / ".gitignore").write_text("*\n")
    # One may be allowed to make names in it, and not to read it.
    with contextlib.suppress(PermissionError):
        sync_directory(directory.parent)
