"""The file that the intake journal is being written into."""

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
"""What becomes a frame: its head, its body, the bytes of the frame, the checksum of the two."""


class WrittenSegment:
    """A segment that is appended to; for one thread.

    While it is written it ends with zeros, up to a whole block.
    """

    def __init__(self, directory: Path, number: int) -> None:
        """Make it. Raises OSError."""
        self.number, self.size = number, HEADER_BYTES
        """`size` is what is acknowledged."""
        self.path = segment_path(directory, number)
        self._file = DirectFile(self.path)

    def begin(self) -> None:
        """Write the header, and wait until the file has its name on disk. Raises OSError."""
        self._file.append([encode_header(self.number)])
        os.fsync(self._file.descriptor)
        sync_directory(self.path.parent)

    def write(self, group: Sequence[Content]) -> list[Position]:
        """Append frames and wait until they are on disk; returns their ends.

        Raises OSError, also where the file has no name any more: what is written into it then is
        gone when it is closed.
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
        """Cut off what is not acknowledged; an empty segment goes altogether. Raises OSError."""
        if self.size > HEADER_BYTES:
            os.ftruncate(self._file.descriptor, self.size)
            os.fsync(self._file.descriptor)
        elif self._file.has_name():
            self.path.unlink()

    def close(self) -> None:
        """Close the file, if possible at its length: zeros at its end are in nobody's way."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.descriptor, self.size)
        self._file.close()
