"""Temporary folders and files; a failure to create or write them is a TargetError."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ..errors import InputError, TargetError
from .leftovers import temporary_directory

_CHUNK: Final = 2**20
_PREFIX: Final = "cirron-otel-work-"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a private folder, and remove it when the block ends.

    The folders of processes that were killed are removed, too. Raises TargetError if no temporary
    directory can be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            place = Path(tempfile.gettempdir())
            folder = stack.enter_context(temporary_directory(_PREFIX, "", place))
        except OSError as error:
            raise _unusable(error) from None
        yield folder


@contextlib.contextmanager
def writing_temporary_files() -> Iterator[None]:
    """Convert an OSError in the block, which writes temporary files, to a TargetError."""
    try:
        yield
    except OSError as error:
        raise _unusable(error) from None


def copy_stream(stream: BinaryIO, folder: Path, shown: str) -> Path:
    """Copy a stream, such as standard input, into a file in `folder`, since it is read twice.

    `shown` is its name in messages. Raises InputError if it cannot be read.
    """
    path = folder / "stdin"
    with writing_temporary_files(), path.open("wb") as file:
        while chunk := _next_chunk(stream, shown):
            file.write(chunk)
    return path


def _next_chunk(stream: BinaryIO, shown: str) -> bytes:
    """Return the next bytes; none at the end."""
    try:
        chunk: bytes | None = stream.read(_CHUNK)
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror or error}") from None
    if chunk is None:
        raise InputError(
            f"{shown} cannot be read: it does not wait for data (O_NONBLOCK): pipe it through `cat`"
        )
    return chunk


def _unusable(error: OSError) -> TargetError:
    return TargetError(
        f"temporary files cannot be written: {error.strerror or error};"
        " set TMPDIR to a writable directory with enough space"
    )
