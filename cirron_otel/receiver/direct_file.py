"""A file that is appended to past the page cache.

What is journalled is synced at once and soon removed: a copy of it in the page cache costs the
copying and, where memory is not there yet (a virtual machine), the faults of every page, and then
the sync has to write it all the same. Direct I/O writes whole blocks from aligned memory, so the
last block is filled up with zeros, and written again with what comes next: its old bytes over
themselves, which a power cut cannot harm. A file system that cannot do it (open(2), "O_DIRECT") is
written through the page cache, the same blocks in the same way.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

BLOCK = 4096
"""Bytes; what direct I/O is aligned to: no common device has larger logical blocks."""
_BUFFER = 1024 * 1024

_DIRECT = getattr(os, "O_DIRECT", 0)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectFile:
    """A new file; for one thread."""

    def __init__(self, path: Path) -> None:
        """Make it, readable for its owner alone. Raises OSError; then it is not there."""
        self._buffer = mmap.mmap(-1, _BUFFER)  # anonymous memory begins with a page
        try:
            self.descriptor = os.open(path, _FLAGS | _DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)  # it may have been made before it was refused
            self.descriptor = os.open(path, _FLAGS, 0o600)
        self._path, self._status = path, os.fstat(self.descriptor)
        self._filled = 0
        """Bytes in the buffer that are of the file."""
        self._at = 0
        """Where in the file the buffer begins."""

    def append(self, pieces: Iterable[bytes]) -> None:
        """Write `pieces` at the end, and zeros up to the end of the block. Raises OSError.

        After that nothing more can be appended.
        """
        for piece in pieces:
            begin = 0
            while begin < len(piece):
                taken = min(len(piece) - begin, _BUFFER - self._filled)
                part = piece if taken == len(piece) else piece[begin : begin + taken]
                self._buffer[self._filled : self._filled + taken] = part
                self._filled += taken
                begin += taken
                if self._filled == _BUFFER:
                    self._write()
        if self._filled:
            self._write()

    def has_name(self) -> bool:
        """Whether it still stands where it was made; one look, for this is asked of every group."""
        try:
            return os.path.samestat(self._status, self._path.lstat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Let the file go; the memory goes with this, for an error may still hold on to it."""
        os.close(self.descriptor)

    def _write(self) -> None:
        end = -(-self._filled // BLOCK) * BLOCK
        self._buffer[self._filled : end] = bytes(end - self._filled)
        with memoryview(self._buffer) as view:
            written = 0
            while written < end:
                written += self._write_some(view[written:end], self._at + written)
        whole = self._filled // BLOCK * BLOCK
        rest = self._filled - whole
        self._buffer[:rest] = self._buffer[whole : self._filled]
        self._at += whole
        self._filled = rest

    def _write_some(self, view: memoryview, offset: int) -> int:
        try:
            return os.pwrite(self.descriptor, view, offset)
        except OSError as error:
            flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & _DIRECT:
                raise
            # Larger blocks than ours, or a file system that says so only now.
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
            return os.pwrite(self.descriptor, view, offset)
