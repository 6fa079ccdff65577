"""The file that the intake journal is being written into."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from ..spool.directories import sync_directory
from ..spool.state import has_name
from .journal_files import (
    HEADER_BYTES,
    Position,
    encode_header,
    encode_prefix,
    segment_path,
)

_IOV_MAX = 1024

Content = tuple[bytes, bytes, int]
"""What becomes a frame: its head, its body, the bytes of the frame."""


class WrittenSegment:
    """A segment that is appended to; for one thread."""

    def __init__(self, directory: Path, number: int) -> None:
        """Make it. Raises OSError."""
        self.number, self.size = number, HEADER_BYTES
        """`size` is what is acknowledged."""
        self.path = segment_path(directory, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)

    def begin(self) -> None:
        """Write the header, and wait until the file has its name on disk. Raises OSError."""
        _write_all(self._descriptor, [encode_header(self.number)])
        os.fsync(self._descriptor)
        sync_directory(self.path.parent)

    def write(self, group: Sequence[Content]) -> list[Position]:
        """Append frames and wait until they are on disk; returns their ends.

        Raises OSError, also where the file has no name any more: what is written into it then is
        gone when it is closed.
        """
        buffers: list[bytes | memoryview] = []
        ends = []
        offset = self.size
        for head, body, size in group:
            buffers += (encode_prefix(self.number, head, body) + head, body)
            offset += size
            ends.append(Position(self.number, offset))
        _write_all(self._descriptor, buffers)
        os.fdatasync(self._descriptor)
        if not has_name(self._descriptor, self.path):
            raise FileNotFoundError(errno.ENOENT, "it was removed, or moved away", str(self.path))
        return ends

    def cut(self) -> None:
        """Cut off what is not acknowledged; an empty segment goes altogether. Raises OSError."""
        if self.size > HEADER_BYTES:
            os.ftruncate(self._descriptor, self.size)
            os.fsync(self._descriptor)
        elif has_name(self._descriptor, self.path):
            self.path.unlink()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _write_all(descriptor: int, buffers: list[bytes | memoryview]) -> None:
    index = 0
    while index < len(buffers):
        written = os.writev(descriptor, buffers[index : index + _IOV_MAX])
        while index < len(buffers) and written >= len(buffers[index]):
            written -= len(buffers[index])
            index += 1
        if written:
            buffers[index] = memoryview(buffers[index])[written:]
