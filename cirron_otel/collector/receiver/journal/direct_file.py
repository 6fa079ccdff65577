"""A file that is appended to without the page cache, because journal frames are synced immediately.

Only complete blocks can be written. So the last block is padded with zeros, and written again with
the next data. Its previous bytes are overwritten with identical ones, which is safe in a power cut.
core/spool/direct.py does the same for batches.
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
        """Create the file with mode 0600. Raises OSError; then it does not exist."""
        self._buffer = mmap.mmap(-1, BUFFER)  # anonymous memory is aligned to a page
        try:
            self.descriptor = os.open(path, _FLAGS | DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)  # a failed open may have created it
            self.descriptor = os.open(path, _FLAGS, 0o600)
        self._path, self._status = path, os.fstat(self.descriptor)
        self._filled = 0
        """Bytes of the file in the buffer."""
        self._at = 0
        """The offset of the buffer in the file."""

    def append(self, pieces: Iterable[bytes]) -> None:
        """Write `pieces` at the end, padded with zeros to a complete block.

        Raises OSError; after that, nothing more can be appended.
        """
        for piece in pieces:
            begin = 0
            while begin < len(piece):
                size = min(len(piece) - begin, BUFFER - self._filled)
                part = piece if size == len(piece) else piece[begin : begin + size]
                self._buffer[self._filled : self._filled + size] = part
                self._filled += size
                begin += size
                if self._filled == BUFFER:
                    self._write()
        if self._filled:
            self._write()

    def has_name(self) -> bool:
        """Return whether the file still has its name.

        This takes one system call, because it runs for every group.
        """
        try:
            return os.path.samestat(self._status, self._path.lstat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file. The buffer is freed with this object: an error may still refer to it."""
        os.close(self.descriptor)

    def _write(self) -> None:
        end = -(-self._filled // BLOCK) * BLOCK
        self._buffer[self._filled : end] = bytes(end - self._filled)
        with memoryview(self._buffer) as view, view[:end] as blocks:
            write_whole(self.descriptor, blocks, self._at)
        whole = self._filled // BLOCK * BLOCK
        remainder = self._filled - whole
        self._buffer[:remainder] = self._buffer[whole : self._filled]
        self._at += whole
        self._filled = remainder
