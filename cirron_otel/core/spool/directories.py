"""The directories of a spool: only their owner may access them, and their names are synced."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from ..atomic_files import sync_directory

DEFAULT_NAME: Final = ".cirron"
"""The default directory of recordings, which git ignores."""


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents with mode 0700, and sync their names.

    A new `.cirron` gets a `.gitignore` for all its contents. An existing directory stays
    unchanged. Raises OSError.
    """
    if directory.is_dir():
        return
    make_private(directory.parent)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not directory.is_dir():  # otherwise another process created it first
            why = os.strerror(errno.ENOTDIR)
            raise NotADirectoryError(errno.ENOTDIR, why, str(directory)) from None
    else:
        if directory.name == DEFAULT_NAME:
            with contextlib.suppress(OSError):
                (directory / ".gitignore").write_text("*\n")
    # A process may be allowed to create files in the parent, but not to read it.
    with contextlib.suppress(PermissionError):
        sync_directory(directory.parent)
