"""An object in a bucket as a file, of which only the parts that are read are fetched."""

from __future__ import annotations

import io
from typing import Any

from ..targets.objects.s3 import S3BlobStore

TAIL_BYTES = 256 << 10
"""The size of the first request, which has the footer of most files, and small files completely."""


class RangedObject(io.RawIOBase):
    """A readable and seekable file. Methods raise FileNotFoundError if the object is removed."""

    def __init__(self, objects: S3BlobStore, key: str) -> None:
        """Fetch the end of an object. Raises FileNotFoundError if it does not exist."""
        super().__init__()
        self._objects, self._key = objects, key
        self._tail, self._size = objects.get_tail(key, TAIL_BYTES)
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as fit, up to the end of the object."""
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size)
        if end <= self._at:
            return 0
        count = end - self._at
        view[:count] = self._read(self._at, end)
        self._at = end
        return count

    def _read(self, start: int, end: int) -> bytes:
        first = self._size - len(self._tail)
        if start >= first:
            return self._tail[start - first : end - first]
        return self._objects.get_range(self._key, start, end)
