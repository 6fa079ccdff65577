"""Write files atomically: a reader sees the complete new file, or the previous one.

Each function that replaces a file writes a temporary file in the same directory and renames it.
`sync_file` and `publish` are the two steps of this for callers that open the temporary file
themselves, for example because they hold a lock on it. Only this module, the intake journal and the
direct writer of batches call fsync; `tests/project/test_state_helpers.py` checks that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_ONCE: Final = 64 << 20
"""Bytes per call of `write`: macOS refuses calls of 2 GiB and more."""


@contextlib.contextmanager
def replacing_file(
    path: Path, tmp: Path | None = None, *, is_durable: bool = True, syncs_name: bool = True
) -> Iterator[int]:
    """Yield a descriptor to write to; when the block ends, the written file replaces `path`.

    `tmp` is the temporary file, by default `<name>.tmp`; its mode is 0600. Two callers must not use
    the same temporary file at the same time. On an OSError it is removed, and `path` is unchanged.

    `is_durable` syncs the content before the rename, so that it survives a power cut. `syncs_name`
    also syncs the directory after the rename; pass False if the caller syncs the directory later.

    Raises OSError.
    """
    tmp = path.with_name(path.name + ".tmp") if tmp is None else tmp
    try:
        descriptor = os.open(tmp, _NEW_FILE, 0o600)
        try:
            yield descriptor
            if is_durable:
                sync_file(descriptor)
        finally:
            os.close(descriptor)
        publish(tmp, path, syncs_name=is_durable and syncs_name)
    except OSError:
        with contextlib.suppress(OSError):
            tmp.unlink(missing_ok=True)
        raise


def replace_file(path: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Replace the content of `path` with `data`; see `replacing_file`. Raises OSError."""
    with replacing_file(path, is_durable=is_durable) as descriptor:
        write_all(descriptor, data)


def write_file(path: Path, data: bytes) -> int:
    """Write a synced file with mode 0600 into a directory that is not published yet.

    Returns its size in bytes. Raises OSError.
    """
    descriptor = os.open(path, _NEW_FILE, 0o600)
    try:
        size = write_all(descriptor, data)
        sync_file(descriptor)
    finally:
        os.close(descriptor)
    return size


def publish(tmp: Path, path: Path, *, syncs_name: bool = True) -> None:
    """Rename `tmp`, a file or directory, and wait until the name is on disk. Raises OSError."""
    tmp.replace(path)
    if syncs_name:
        sync_directory(path.parent)


def write_all(descriptor: int, data: bytes | memoryview) -> int:
    """Write all of `data` and return its size in bytes. Raises OSError."""
    view = memoryview(data)
    size = len(view)
    while view:
        view = view[os.write(descriptor, view[:_AT_ONCE]) :]
    return size


def sync_file(descriptor: int) -> None:
    """Wait until the content of an open file is on disk. Raises OSError."""
    os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
