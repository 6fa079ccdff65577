"""A file that is appended to past the page cache, as what is journalled is synced at once.

Whole blocks are written, so the last one is filled up with zeros, and written again with what comes
next: its old bytes over themselves, which a power cut cannot harm. See spool/direct.py.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from ....core.spool.direct import BLOCK, BUFFER, DIRECT, write_whole

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectFile:
    """A new file; for one thread."""

    def __init__(self, path: Path) -> None:
        """Make it, readable for its owner alone. Raises OSError; then it is not there."""
        self._buffer = mmap.mmap(-1, BUFFER)  # anonymous memory begins with a page
        try:
            self.descriptor = os.open(path, _FLAGS | DIRECT, 0o600)
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
                taken = min(len(piece) - begin, BUFFER - self._filled)
                part = piece if taken == len(piece) else piece[begin : begin + taken]
                self._buffer[self._filled : self._filled + taken] = part
                self._filled += taken
                begin += taken
                if self._filled == BUFFER:
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
        with memoryview(self._buffer) as view, view[:end] as blocks:
            write_whole(self.descriptor, blocks, self._at)
        whole = self._filled // BLOCK * BLOCK
        rest = self._filled - whole
        self._buffer[:rest] = self._buffer[whole : self._filled]
        self._at += whole
        self._filled = rest
