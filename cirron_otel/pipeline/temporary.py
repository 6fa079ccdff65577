"""Temporary folders and files; a failure to make or write them is a TargetError."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import TargetError


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A private folder that is removed when the block ends.

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
    """Within the block, an OSError is a failure to write temporary files: a TargetError."""
    try:
        yield
    except OSError as error:
        raise _unusable(error) from None


def _unusable(error: OSError) -> TargetError:
    return TargetError(
        f"temporary files cannot be written: {error.strerror or error};"
        " set TMPDIR to a directory that can be written and has space"
    )
