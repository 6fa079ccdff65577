"""The seam between deliveries and the places that sealed batches go to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from ..spool.blobs import BlobKey
from .otlp import RefusedError, StoppedError, UnreachableError

__all__ = [
    "BatchTarget",
    "BlobSink",
    "MisconfiguredError",
    "Receipt",
    "RefusedError",
    "SealedBatch",
    "Sender",
    "StoppedError",
    "UnreachableError",
    "lanes_of",
]


class MisconfiguredError(UnreachableError):
    """The target says no to whatever is sent: a wrong key, URL, certificate or proxy.

    Setting it right must not have lost anything: it is tried again, slowly, and reported.
    """


class SealedBatch(NamedTuple):
    """A batch as it stands in the spool."""

    name: str
    """Its file's name."""
    data: bytes


class Receipt(NamedTuple):
    """What a target said to batches that it took."""

    rejected_spans: int = 0
    """Of these batches, the spans that it will not take."""
    message: str = ""
    """Its words about them, in one line."""


class BlobSink(Protocol):
    """Where the snapshot files go that batches name."""

    def keys_of(self, name: str, data: bytes) -> list[BlobKey]:
        """The files below `snapshots/` that a batch names; see `blobs.named_blobs`."""

    def upload(self, snapshots: Path, key: BlobKey) -> bool:
        """Bring the file `key` below `snapshots` on by one part; True when all of it is there.

        What is there already is not sent again, whoever sent it. Raises FileNotFoundError where
        there is no such file, RefusedError where it will never be taken, and UnreachableError.
        """


class Sender(Protocol):
    """A target as far as one attempt needs it."""

    @property
    def key(self) -> str:
        """The name of this target in cursors and leases, unique to it and without secrets."""

    @property
    def shown(self) -> str:
        """The target as people may see it: without user, password and query."""

    @property
    def request_bytes(self) -> int:
        """How many bytes of batches `send` takes at once; 0 if it takes one by one."""

    def send(self, batches: list[SealedBatch]) -> Receipt:
        """Send batches of one lane, all or none of them, once: the caller tries again.

        Raises RefusedError if the target will never take one of them, UnreachableError if it
        takes nothing now (MisconfiguredError if that looks like a fault of the configuration),
        and StoppedError after `interrupt`.
        """


class BatchTarget(Sender, Protocol):
    """Takes sealed batches. One thread uses it; `interrupt` may come from any.

    A target may have a method `lane_of`, which gives the lane of a batch by its name: the failures
    of one lane delay no other. Batches of a lane are alike to the target, as those of one tenant
    are. `send` is given batches of one lane.

    Batches are sent at least once: those of a request whose answer was lost may be there already,
    and come again with the same ids.
    """

    @property
    def blobs(self) -> BlobSink | None:
        """Where snapshot files go; None where the target takes none."""

    def interrupt(self) -> None:
        """End what `send` or `upload` are about, as far as that can be done, and what follows."""

    def close(self) -> None:
        """Give up the connections."""

    def abandon(self) -> None:
        """In a forked child: let go of the connections without a word to the server."""


def lanes_of(target: object) -> Callable[[str], str]:
    """Return what gives the lane of a batch; without `lane_of` all are in one lane."""
    found: Callable[[str], str] = getattr(target, "lane_of", _one_lane)
    return found


def _one_lane(_name: str) -> str:
    return ""
