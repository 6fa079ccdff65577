"""Files that are read, standard input, and pipes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ...core.temporary import copy_stream, temporary_folder
from ...errors import InputError
from .tables import STANDARD


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input. Raises InputError."""
    if path == STANDARD:
        if sys.stdin is None:
            raise InputError("standard input is closed: name a file instead of -")
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise InputError(f"{path} cannot be read: {what}") from None
        yield file


@contextlib.contextmanager
def repeatable_path(path: str) -> Iterator[str]:
    """Yield the path of a file that can be read more than once.

    This is `path` itself, or a temporary copy of standard input or of a pipe. Raises InputError if
    these cannot be read, and TargetError if the copy cannot be written.
    """
    if not _is_stream(path):
        yield path
        return
    with temporary_folder() as folder:
        with open_input(path) as stream:
            copy = copy_stream(stream, folder, path)
        yield str(copy)


def _is_stream(path: str) -> bool:
    if path == STANDARD:
        return True
    try:
        return Path(path).is_fifo()
    except OSError:  # opening the path raises a precise error
        return False
