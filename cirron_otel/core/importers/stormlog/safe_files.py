"""Opening files of a recording: regular files only, and no symbolic links below its directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ....errors import InputError


class UnreadableFileError(InputError):
    """One file of a recording cannot be read."""


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading. Raises UnreadableFileError for anything else.

    A symbolic link is followed only with `follow`, which is for the path that the user named.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        if not follow and path.is_symlink():
            raise UnreadableFileError(
                "it is a symbolic link: links in a recording are not followed"
            )
        descriptor = os.open(path, flags)
    except OSError as error:
        raise UnreadableFileError(f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UnreadableFileError("cannot be read: its name is not valid") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableFileError("not a regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises UnreadableFileError.
    """
    try:
        with open_regular(path, follow=follow) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UnreadableFileError(f"cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise UnreadableFileError(f"larger than {limit} bytes: not read")
    return data
