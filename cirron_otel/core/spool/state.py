"""Operations on the files in a spool's `state/`: locking, replacing, setting aside.

A lock is an flock on an open file; it is released when its process ends, however that happens.
After locking a file, a process checks that the file still has its name, because the previous holder
may have removed it. This allows the holder of a lock to remove the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from ...errors import TargetError
from .. import atomic_files
from .directories import make_private

BAD_SUFFIX = ".bad"
"""The suffix of a damaged file that is set aside."""
_MAX_CHECKS_WAITED_FOR = 1000
_CHECK_SECONDS = 0.001
_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})


def make_state(state: Path) -> None:
    """Create the directory `state/` with mode 0700. Raises TargetError if that fails."""
    try:
        make_private(state)
    except OSError as error:
        raise unwritable(state, error) from None


def unwritable(path: Path, error: OSError) -> TargetError:
    """Return the error for a file of `state/` that cannot be written."""
    return TargetError(
        f"{path} cannot be written: {error.strerror or error}; free some space, or choose a"
        " directory that can be written"
    )


def lock_named(path: Path, *, wait: bool = False) -> int | None:
    """Lock the file at `path` and return its descriptor, or None if another process has locked it.

    A missing file is created. `wait=True` is for a file that no other process keeps locked for
    long. On a file system without locks, the call succeeds without a lock, as in the writer of
    batches. Raises TargetError if the file cannot be created.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritable(path, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise unwritable(path, error) from None
        if has_name(descriptor, path):
            return descriptor
        os.close(descriptor)


def has_name(descriptor: int, path: Path) -> bool:
    """Return whether the open file is the file at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def is_locked(path: Path) -> bool:
    """Return whether a process has locked the file; if that is unknown, return True.

    A missing file is not locked. The check briefly takes a shared lock, so that concurrent checks
    do not affect each other.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_unlocked(path: Path) -> bool:
    """Remove a file unless it is missing or a process has locked it; return whether it was removed.

    The file is removed under its lock: a process that locks it afterwards detects the removal. The
    shared lock of a check (`is_locked`) is waited for, because it is brief.
    """
    for _ in range(_MAX_CHECKS_WAITED_FOR):
        try:
            return _remove(path)
        except BlockingIOError:
            if is_locked(path):
                return False
            time.sleep(_CHECK_SECONDS)
        except OSError:
            return False
    return False


def _remove(path: Path) -> bool:
    """Remove a file under its lock; raises BlockingIOError if the lock is taken, or OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if has_name(descriptor, path):
            path.unlink()
            return True
    finally:
        os.close(descriptor)
    return False


def replace_file(path: Path, data: bytes) -> None:
    """Replace the file at `path` atomically; only one process at a time may do so.

    The file is not synced: this guards against the death of a process, not of the machine. Raises
    TargetError if the file cannot be written.
    """
    try:
        try:
            atomic_files.replace_file(path, data, is_durable=False)
        except FileNotFoundError:
            make_state(path.parent)
            atomic_files.replace_file(path, data, is_durable=False)
    except OSError as error:
        raise unwritable(path, error) from None


def set_aside(path: Path) -> Path:
    """Rename a damaged file to `<name>.bad`, and return the new path. Raises TargetError."""
    bad = path.with_name(path.name + BAD_SUFFIX)
    try:
        path.replace(bad)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unwritable(bad, error) from None
    return bad
