"""The bytes of an object: a header, and a range of an open file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from typing import BinaryIO

PIECE_BYTES = 1 << 20


class BlobContent:
    """Bytes that can be read again: `head`, then `size - len(head)` bytes of `file` from `start`.

    The file is read by position, so several threads may share it. It must stay open while the
    content is in use.
    """

    def __init__(self, file: BinaryIO, start: int, length: int, head: bytes = b"") -> None:
        self._descriptor, self._start, self._length = file.fileno(), start, length
        self._head = head
        self.size = len(head) + length
        """The size in bytes."""

    @cached_property
    def sha256(self) -> str:
        """The hash of the complete content, in hexadecimal. Raises OSError if reading fails."""
        hasher = hashlib.sha256()
        for piece in self.pieces():
            hasher.update(piece)
        return hasher.hexdigest()

    def checked_pieces(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yield `pieces`; raise OSError at the end if they do not match `sha256`."""
        sha256, hasher = self.sha256, hashlib.sha256()
        for piece in self.pieces(size):
            hasher.update(piece)
            yield piece
        if hasher.hexdigest() != sha256:
            raise OSError("a file changed while it was read")

    def pieces(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yield the content, `size` bytes at a time. Raises OSError if the file is too short."""
        at, end = self._start, self._start + self._length
        piece = self._head
        while at < end or piece:
            while len(piece) < size and at < end:
                more = os.pread(self._descriptor, min(size - len(piece), end - at), at)
                if not more:
                    raise OSError(f"a file ends {end - at} bytes before what is to be sent of it")
                at += len(more)
                piece += more
            yield piece[:size]
            piece = piece[size:]


def file_content(file: BinaryIO) -> BlobContent:
    """Return the content of a complete file."""
    return BlobContent(file, 0, os.fstat(file.fileno()).st_size)
