"""The interface of blob stores."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from typing import BinaryIO, NamedTuple, Protocol

from ....errors import TargetError
from .place import BlobPlace

PIECE_BYTES = 1 << 20


class BlobContent:
    """The content of an object, which can be read several times.

    It consists of `head`, followed by `length` bytes of `file` from `start`. The file is read by
    position, so several threads may share it. It must stay open while the content is in use.
    """

    def __init__(self, file: BinaryIO, start: int, length: int, head: bytes = b"") -> None:
        self._descriptor, self._start, self._length = file.fileno(), start, length
        self._head = head
        self.size = len(head) + length
        """The size of the content in bytes."""

    @cached_property
    def sha256(self) -> str:
        """The hash of the complete content, in hexadecimal. Raises OSError if reading fails."""
        hasher = hashlib.sha256()
        for piece in self.pieces():
            hasher.update(piece)
        return hasher.hexdigest()

    def checked_pieces(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yield the content like `pieces`; raise OSError at the end if `sha256` does not match."""
        sha256, hasher = self.sha256, hashlib.sha256()
        for piece in self.pieces(size):
            hasher.update(piece)
            yield piece
        if hasher.hexdigest() != sha256:
            raise OSError("the file changed while it was read")

    def pieces(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yield the content, at most `size` bytes at a time.

        Raises OSError if the file is too short.
        """
        at, end = self._start, self._start + self._length
        piece = self._head
        while at < end or piece:
            while len(piece) < size and at < end:
                more = os.pread(self._descriptor, min(size - len(piece), end - at), at)
                if not more:
                    raise OSError(f"the file is {end - at} bytes too short for the content to send")
                at += len(more)
                piece += more
            yield piece[:size]
            piece = piece[size:]


def file_content(file: BinaryIO) -> BlobContent:
    """Return the content of an object that consists of a complete file."""
    return BlobContent(file, 0, os.fstat(file.fileno()).st_size)


class DifferentError(TargetError):
    """An object with this key but different content already exists; it was not changed."""


class StoredObject(NamedTuple):
    """The metadata of an object in a store."""

    size: int
    """The size in bytes."""
    sha256: str | None
    """The hash in hexadecimal; None if the uploader did not record it."""


class BlobStore(Protocol):
    """Stores objects under keys (`place.checked_key`), each completely or not at all.

    An object is never replaced: a key keeps its content until the object is deleted. Several
    processes may share a store. All methods raise UsageError for an invalid key, UnreachableError
    if the store does not respond now (MisconfiguredError if the configuration seems wrong), and
    StoppedError after `interrupt`. Error messages do not contain secrets.
    """

    place: BlobPlace

    def put(self, key: str, content: BlobContent) -> bool:
        """Store an object; return False if it already existed, with the same size and checksum.

        When this method returns, the object survives a power cut. A cancelled call leaves no
        readable object. Raises DifferentError if an object with different content exists, and
        OSError if `content` cannot be read.
        """

    def head(self, key: str) -> StoredObject | None:
        """Return the metadata of an object, or None if it does not exist."""

    def get(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object. Raises FileNotFoundError if it does not exist."""

    def delete(self, key: str) -> None:
        """Remove an object if it exists."""

    def interrupt(self) -> None:
        """Cancel the calls of other threads, if possible, and refuse all later ones."""
