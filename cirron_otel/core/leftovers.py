"""Temporary files and folders that a later process removes if their own process was killed.

Each is locked (flock) as long as it is used. The lock is released when its process ends, however
that happens. Before a process creates one, it removes the unlocked ones of the same kind: those
with the same start and end of the name, of the same user. On a file system without locks, none is
removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .spool.state import has_name, remove_unlocked


@contextlib.contextmanager
def temporary_file(prefix: str, suffix: str, directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield a new file of mode 0600, with its descriptor, which the caller closes.

    The file stays locked until the block ends, and is removed then, if it has not been renamed.
    Raises OSError.
    """
    _remove_leftovers(prefix, suffix, directory)
    while True:
        descriptor, name = tempfile.mkstemp(suffix, prefix, directory)
        path, guard = Path(name), os.dup(descriptor)
        if _lock(guard, path):
            break
        os.close(descriptor)
        os.close(guard)
    try:
        yield path, descriptor
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(guard)


@contextlib.contextmanager
def temporary_directory(prefix: str, suffix: str, directory: Path) -> Iterator[Path]:
    """Yield a new folder of mode 0700, which is removed when the block ends, unless it was renamed.

    Raises OSError.
    """
    _remove_leftovers(prefix, suffix, directory)
    while True:
        path = Path(tempfile.mkdtemp(suffix, prefix, directory))
        try:
            guard = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process removed it before it was locked
            continue
        if _lock(guard, path):
            break
        os.close(guard)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(guard)


def _lock(descriptor: int, path: Path) -> bool:
    """Lock a new file or folder; return False if another process is removing it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return has_name(descriptor, path)


def _remove_leftovers(prefix: str, suffix: str, directory: Path) -> None:
    """Remove the files and folders of this kind whose process has ended."""
    kind = re.compile(f"{re.escape(prefix)}[a-z0-9_]{{8}}{re.escape(suffix)}")
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            # The first check is faster: a folder of temporary files can have thousands of others.
            if not entry.name.startswith(prefix) or kind.fullmatch(entry.name) is None:
                continue
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    _remove_folder(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    remove_unlocked(Path(entry.path))


def _remove_folder(path: Path) -> None:
    """Remove a folder, unless a process has locked it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if has_name(descriptor, path):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
