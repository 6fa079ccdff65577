"""Temporary folders and files; a failure to create or write them is a TargetError."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import TargetError


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a private folder, and remove it when the block ends.

    Raises TargetError if no temporary directory can be written.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="cirron-otel-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _unusable(error) from None
    with folder as name:
        yield Path(name)


@contextlib.contextmanager
def writing_temporary_files() -> Iterator[None]:
    """Convert an OSError in the block, which writes temporary files, to a TargetError."""
    try:
        yield
    except OSError as error:
        raise _unusable(error) from None


def copy_stream(stream: BinaryIO, folder: Path) -> Path:
    """Copy a stream, such as standard input, into a file in `folder`, since it is read twice."""
    path = folder / "stdin"
    with writing_temporary_files(), path.open("wb") as file:
        shutil.copyfileobj(stream, file)
    return path


def _unusable(error: OSError) -> TargetError:
    return TargetError(
        f"temporary files cannot be written: {error.strerror or error};"
        " set TMPDIR to a writable directory with enough space"
    )
