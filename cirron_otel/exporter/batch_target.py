"""The seam between deliveries and the places that sealed batches go to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from ..spool.blobs import BlobKey


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

    @property
    def awaits_files(self) -> bool:
        """Whether a file that is not in the spool may still come: other clients send them."""

    def keys_of(self, name: str, data: bytes) -> list[BlobKey]:
        """Return the files below `snapshots/` that a batch names; see `blobs.named_blobs`."""

    def upload(self, snapshots: Path, key: BlobKey) -> bool:
        """Bring the file `key` below `snapshots` on by one part; True when all of it is there.

        What is there already is not sent again, whoever sent it. Raises FileNotFoundError where
        there is no such file, RefusedError where it will never be taken, and UnreachableError.
        """


class Sender(Protocol):
    """The part of a target that the delivery engine uses."""

    @property
    def key(self) -> str:
        """The name of this target in cursors and leases, unique to it and without secrets."""

    @property
    def shown(self) -> str:
        """The target's address for messages: without user, password and query."""

    @property
    def request_bytes(self) -> int:
        """Bytes of batches that one call of `send` may have; 0 if it takes one batch at a time."""

    @property
    def blobs(self) -> BlobSink | None:
        """The destination of snapshot files; None if the target accepts none."""

    def send(self, batches: list[SealedBatch]) -> Receipt:
        """Send batches of one lane in one attempt, all or none of them.

        Raises RefusedError if the target will never accept one of them, UnreachableError if the
        caller should try again later (MisconfiguredError if the configuration seems wrong), and
        StoppedError after `interrupt`.
        """


class BatchTarget(Sender, Protocol):
    """A destination of sealed batches. One thread uses it; any thread may call `interrupt`.

    A target may have a method `lane_of`, which returns the lane of a batch by its name. A lane has
    batches that the target treats the same, such as those of one tenant, and its failures delay no
    other lane. `send` is called with batches of one lane.

    Batches are sent at least once: if the answer to a request is lost, its batches are sent again
    with the same ids.
    """

    def interrupt(self) -> None:
        """End what `send` or `upload` are about, as far as that can be done, and what follows."""

    def close(self) -> None:
        """Give up the connections."""

    def abandon(self) -> None:
        """In a forked child: let go of the connections without a word to the server."""


def lanes_of(target: object) -> Callable[[str], str]:
    """Return the target's `lane_of`; without it, a function that puts all batches in one lane."""
    found: Callable[[str], str] = getattr(target, "lane_of", _one_lane)
    return found


def _one_lane(_name: str) -> str:
    return ""
