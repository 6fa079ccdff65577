"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import TargetError
from ..atomic_files import publish, sync_directory, sync_file
from ..leftovers import temporary_file

_LONGEST_NAME = 200
"""The number of bytes of the target's name in the temporary name: file systems allow 255 bytes."""


class _TargetFile(io.FileIO):
    """A file whose write errors are TargetErrors with the name of the target."""

    def __init__(self, file: int | str, shown: str) -> None:
        super().__init__(file, "wb")
        self._shown = shown

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise _target_error(self._shown, error) from error


def _target_error(path: str, error: OSError) -> TargetError:
    return TargetError(f"cannot write {path}: {error.strerror or error}")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends, and not earlier.

    The new file is written under a `.tmp` name next to the target, synced, and renamed. Its mode is
    that of the replaced file, or 0600 if there is none. On any failure, including Ctrl-C, the new
    file is removed, and the previous content of `path` stays. The new file of a killed process is
    removed by the next call for the same `path`. If `path` is a symbolic link, the target of the
    link is replaced. A path that is not a regular file (a pipe, a device) cannot be
    replaced and is written directly.

    Raises TargetError if the target cannot be written: no such folder, no permission, a full disk.
    """
    shown = os.fspath(path)
    target = Path(os.path.realpath(path))
    mode = _mode_of(target, shown)
    if mode is not None and not stat.S_ISREG(mode):
        with _open_directly(target, shown) as file:
            yield file
        return
    prefix = os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME]) + "."
    with contextlib.ExitStack() as stack:
        try:
            temporary, descriptor = stack.enter_context(
                temporary_file(prefix, ".tmp", target.parent)
            )
        except OSError as error:
            raise _target_error(shown, error) from error
        raw = _TargetFile(descriptor, shown)
        try:
            file = io.BufferedWriter(raw)
            yield file
            file.flush()
            try:
                if mode is not None:
                    os.fchmod(raw.fileno(), stat.S_IMODE(mode))
                sync_file(raw.fileno())
                raw.close()
                publish(temporary, target, syncs_name=False)
            except OSError as error:
                raise _target_error(shown, error) from error
        except BaseException:
            with contextlib.suppress(OSError):
                raw.close()
            raise
    with contextlib.suppress(OSError):  # a file system that cannot sync directories
        sync_directory(target.parent)


def _mode_of(target: Path, shown: str) -> int | None:
    """Return the mode of the file at `target`; None if there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _target_error(shown, error) from error
    if stat.S_ISDIR(mode):
        raise TargetError(f"cannot write {shown}: it is a directory: name a file in it")
    if not os.access(target, os.W_OK):
        raise TargetError(
            f"cannot write {shown}: it is read-only: change its mode, or choose another name"
        )
    return mode


def _open_directly(target: Path, shown: str) -> io.BufferedWriter:
    try:
        return io.BufferedWriter(_TargetFile(os.fspath(target), shown))
    except OSError as error:
        raise _target_error(shown, error) from error
