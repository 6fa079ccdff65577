"""The segment of the intake journal that is being written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from ....core.atomic_files import sync_directory
from .direct_file import DirectFile
from .files import HEADER_BYTES, Position, encode_header, encode_prefix, segment_path

Content = tuple[bytes, bytes, int, int]
"""The parts of a frame: head, body, size of the complete frame in bytes, checksum of both."""


class WrittenSegment:
    """A segment that is appended to; for one thread.

    While it is being written, it is padded with zeros to a complete block.
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
        """Append frames, wait until they are on disk, and return their ends.

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
            raise FileNotFoundError(errno.ENOENT, "it was removed, or moved away", str(self.path))
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
