"""The seam between what is uploaded and where it goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ....errors import TargetError
from .content import BlobContent
from .place import BlobPlace


class DifferentError(TargetError):
    """An object of that key is there already, with other content; it was left as it is."""


class StoredObject(NamedTuple):
    """An object that is there."""

    size: int
    """Bytes."""
    sha256: str | None
    """In hexadecimal; None where whoever put it did not say."""


class BlobStore(Protocol):
    """Objects by their keys (`keys.checked_key`). An object is there whole or not at all.

    An object is never replaced: a key has one content for good, until it is deleted. Several
    processes may share a store. All methods raise UsageError for a key that is none,
    UnreachableError where the store does not answer now (MisconfiguredError where that looks like
    a fault of the configuration), and StoppedError behind `interrupt`; no message has a secret.
    """

    place: BlobPlace

    def put(self, key: str, content: BlobContent) -> bool:
        """Store an object; False where it was there already, by its size and checksum.

        When it returns, the object outlives a power cut. What is broken off leaves nothing that
        can be read. Raises DifferentError where another content is there, OSError where `content`
        cannot be read.
        """

    def head(self, key: str) -> StoredObject | None:
        """The object, without its content; None where there is none."""

    def get(self, key: str) -> Iterator[bytes]:
        """The content of an object. Raises FileNotFoundError where there is none."""

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""

    def interrupt(self) -> None:
        """End what another thread is doing here, as far as that can be done, and what follows."""
