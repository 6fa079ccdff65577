"""Write the current segment of the intake journal.

`WrittenSegment` appends frames to the segment; `DirectFile` writes its file.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ....core.atomic_files import sync_directory
from ....core.spool.direct import BLOCK, BUFFER, DIRECT, write_whole
from .files import HEADER_BYTES, Position, encode_header, encode_prefix, segment_path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectFile:
    """A new file that is written with direct I/O; for one thread.

    Only complete blocks can be written. So the last block is padded with zeros, and written again
    with the next data. Its previous bytes are overwritten with identical bytes, which is safe in a
    power cut. core/spool/direct.py writes batches in the same way.
    """

    def __init__(self, path: Path) -> None:
        """Create the file with mode 0600. If this raises OSError, the file does not exist."""
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
        """The number of bytes of the file that are in the buffer."""
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

        The check is a single system call, because it is made for every group of frames.
        """
        try:
            return os.path.samestat(self._status, self._path.lstat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file. The buffer is freed with this object, because an error may still refer to
        it.
        """
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


Content = tuple[bytes, bytes, int, int]
"""The parts of a frame: head, body, size of the complete frame in bytes, checksum of both."""


class WrittenSegment:
    """A segment to which frames are appended; for one thread.

    Until it is closed, it is padded with zeros to a complete block.
    """

    def __init__(self, directory: Path, number: int) -> None:
        """Create the file. Raises OSError."""
        self.number, self.size = number, HEADER_BYTES
        """`size` is the end of the acknowledged frames, bytes."""
        self.path = segment_path(directory, number)
        self._file = DirectFile(self.path)

    def begin(self) -> None:
        """Write the header, and wait until the file and its name are on disk. Raises OSError."""
        self._file.append([encode_header(self.number)])
        os.fsync(self._file.descriptor)
        sync_directory(self.path.parent)

    def write(self, group: Sequence[Content]) -> list[Position]:
        """Append frames, wait until they are on disk, and return their end positions.

        Raises OSError, also if the file has been removed, because its content would be lost when it
        is closed.
        """
        pieces: list[bytes] = []
        ends = []
        offset = self.size
        for head, body, size, crc in group:
            pieces += (encode_prefix(self.number, head, body, crc) + head, body)
            offset += size
            ends.append(Position(self.number, offset))
        self._file.append(pieces)
        os.fdatasync(self._file.descriptor)
        if not self._file.has_name():
            raise FileNotFoundError(errno.ENOENT, "the file was removed or moved", str(self.path))
        return ends

    def cut(self) -> None:
        """Cut off unacknowledged frames; remove the file if none is left. Raises OSError."""
        if self.size > HEADER_BYTES:
            os.ftruncate(self._file.descriptor, self.size)
            os.fsync(self._file.descriptor)
        elif self._file.has_name():
            self.path.unlink()

    def close(self) -> None:
        """Remove the file's padding and close it; padding that cannot be removed does no harm."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.descriptor, self.size)
        self._file.close()
