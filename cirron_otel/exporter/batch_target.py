"""The seam between deliveries and the places that sealed batches go to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class BatchTarget(Protocol):
    """Takes sealed batches. One thread uses it; `interrupt` may come from any.

    A target may have a method `lane_of`, which gives the lane of a batch by its name: the failures
    of one lane delay no other. Batches of a lane are alike to the target, as those of one tenant
    are. `send` is given batches of one lane.

    Batches are sent at least once: those of a request whose answer was lost may be there already,
    and come again with the same ids.
    """

    @property
    def key(self) -> str:
        """What tells this target from others, for cursors and leases; it holds no secret."""

    @property
    def shown(self) -> str:
        """The target as people may see it: without user, password and query."""

    @property
    def request_bytes(self) -> int:
        """How many bytes of batches `send` takes at once; 0 where it takes one by one."""

    @property
    def blobs(self) -> BlobSink | None:
        """Where snapshot files go; None where the target takes none."""

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Send batches of one lane, all or none of them, once: the caller tries again.

        Raises RefusedError where the target will never take one of them, UnreachableError where it
        takes nothing now (MisconfiguredError where that looks like a fault of the configuration),
        and StoppedError behind `interrupt`.
        """

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
