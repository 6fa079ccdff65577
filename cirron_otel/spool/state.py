"""What all files in a spool's `state/` have in common: locks, private files, replacing.

A lock is an flock on an open file: it goes with its process, however that ends. Who has locked a
file looks whether it still has its name, for its owner before may have removed it: so lock files
can be removed, by whoever holds them.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from .. import atomic_files
from ..errors import TargetError
from .directories import make_private

_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})


def make_state(state: Path) -> None:
    """Make the directory, private. Raises TargetError where it cannot be made."""
    try:
        make_private(state)
    except OSError as error:
        raise unwritable(state, error) from None


def unwritable(path: Path, error: OSError) -> TargetError:
    """The error of a file of `state/` that cannot be written."""
    return TargetError(
        f"{path} cannot be written: {error.strerror or error}; free some space, or choose a"
        " directory that can be written"
    )


def lock_named(path: Path, *, wait: bool = False) -> int | None:
    """A descriptor of the file at `path`, made if it is missing, locked; None where another has it.

    `wait=True` is for a file that nobody else keeps locked for more than a moment. On a file system
    that has no locks, the file counts as locked, as for the writer of batches. Raises TargetError
    where the file cannot be made.
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
    """Whether the open file is what stands at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def is_locked(path: Path) -> bool:
    """Whether somebody holds the file; also where that cannot be found out, False where it is gone.

    To look is to lock it for a moment: shared, so that those who look do not see each other.
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
    """Remove a file that nobody holds; False where somebody does, or it is gone.

    It is removed under its lock: whoever takes it up in this moment finds that it has no name.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if has_name(descriptor, path):
            path.unlink()
            return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def replace_file(path: Path, data: bytes) -> None:
    """Bring `data` under `path`, whole or not at all; only one process at a time may do so.

    There is no fsync: this guards against the end of a process, not of the machine. Raises
    TargetError where it cannot be written.
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
    """Rename a damaged file to `<name>.bad`, where it is in nobody's way. Raises TargetError."""
    bad = path.with_name(path.name + ".bad")
    try:
        path.replace(bad)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unwritable(bad, error) from None
    return bad
