"""The interface of blob stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ....errors import TargetError
from .content import BlobContent
from .place import BlobPlace


class DifferentError(TargetError):
    """An object with this key but other content exists already; it was not changed."""


class StoredObject(NamedTuple):
    """The metadata of an object in a store."""

    size: int
    """The size in bytes."""
    sha256: str | None
    """In hexadecimal; None if the uploader did not record it."""


class BlobStore(Protocol):
    """Objects by their keys (`keys.checked_key`). An object exists completely or not at all.

    An object is never replaced: a key keeps its content until it is deleted. Several processes may
    share a store. All methods raise UsageError for an invalid key, UnreachableError if the store
    does not respond now (MisconfiguredError if the configuration seems wrong), and StoppedError
    after `interrupt`. No message contains a secret.
    """

    place: BlobPlace

    def put(self, key: str, content: BlobContent) -> bool:
        """Store an object; return False if it existed already, with the same size and checksum.

        When it returns, the object survives a power cut. A cancelled call leaves nothing readable.
        Raises DifferentError if an object with other content exists, and OSError if `content`
        cannot be read.
        """

    def head(self, key: str) -> StoredObject | None:
        """Return the metadata of an object, or None if it does not exist."""

    def get(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object. Raises FileNotFoundError if it does not exist."""

    def delete(self, key: str) -> None:
        """Remove an object if it exists."""

    def interrupt(self) -> None:
        """Cancel the calls of other threads, if possible, and refuse all later ones."""
