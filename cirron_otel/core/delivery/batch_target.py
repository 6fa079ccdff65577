"""The interface between the delivery engine and the destinations of sealed batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from ..spool.blobs import BlobKey


class SealedBatch(NamedTuple):
    """A batch and its content in the spool."""

    name: str
    """The name of the batch's file."""
    data: bytes


class Receipt(NamedTuple):
    """A target's response to batches that it accepted."""

    rejected_spans: int = 0
    """The number of spans of these batches that the target rejected."""
    message: str = ""
    """The target's message about the batches, as one line."""

    @property
    def notice(self) -> str:
        """The text of a log line about rejected spans and the target's message; "" for neither."""
        if not self.rejected_spans:
            return self.message
        reason = self.message or "no reason given"
        return f"{self.rejected_spans} spans were rejected, and are not sent again: {reason}"


class BlobSink(Protocol):
    """The destination of the snapshot files that batches name."""

    @property
    def awaits_files(self) -> bool:
        """Whether a file that is not in the spool may still arrive, from another client."""

    def keys_of(self, name: str, data: bytes) -> list[BlobKey]:
        """Return the files below `snapshots/` that a batch names; see `blobs.named_blobs`."""

    def upload(self, snapshots: Path, key: BlobKey) -> bool:
        """Upload the next part of the file `key` below `snapshots`; return whether it was the last.

        Parts that the target already has are not sent again, even if another client sent them.
        Raises FileNotFoundError if the file does not exist, RefusedError if the target will never
        accept it, and UnreachableError if the caller should try again later.
        """


class BatchTarget(Protocol):
    """A destination of sealed batches. Only one thread uses it, but any may call `interrupt`.

    A target to which several requests may be in flight has an attribute `most_in_flight`, their
    maximum number, and a method `prepared`. It takes the argument of `send`, and returns a function
    that does what `send` does, but on another thread. Of each lane, one such call is in progress at
    most.

    A target may have a method `lane_of`, which takes a batch's name and returns its lane. A lane
    consists of batches that the target treats equally, such as the batches of one tenant. Its
    failures do not delay other lanes. `send` is called with batches of one lane.

    A target that sends a batch in several requests may keep the unfinished part of a batch between
    two attempts, and what it was answered so far. It then has a method `forget` (see `forget_of`).

    Batches are sent at least once: if the response to a request is lost, its batches are sent again
    with the same ids.
    """

    @property
    def key(self) -> str:
        """The target's unique name in cursors and leases, without secrets."""

    @property
    def shown(self) -> str:
        """The target's address as shown in messages: without user, password and query."""

    @property
    def request_bytes(self) -> int:
        """The maximum size in bytes of the batches in one `send`; 0 for one batch at a time."""

    @property
    def blobs(self) -> BlobSink | None:
        """The destination of snapshot files; None if the target accepts none."""

    def send(self, batches: list[SealedBatch]) -> Receipt:
        """Send batches of one lane in one attempt, which succeeds for all of them or none.

        Raises RefusedError if the target will never accept one of the batches, UnreachableError if
        the caller should try again later (MisconfiguredError if the configuration seems wrong), and
        StoppedError after `interrupt`.
        """

    def interrupt(self) -> None:
        """Cancel the `send` or `upload` in progress, if possible, and refuse all later calls."""

    def close(self) -> None:
        """Close the connections."""

    def abandon(self) -> None:
        """In a forked child: drop the parent's connections without sending anything."""


def lanes_of(target: object) -> Callable[[str], str]:
    """Return the target's `lane_of`; by default, a function that puts all batches in one lane."""
    lane_of: Callable[[str], str] = getattr(target, "lane_of", _one_lane)
    return lane_of


def _one_lane(_name: str) -> str:
    return ""


def most_in_flight_of(target: object) -> int:
    """Return the maximum number of requests in flight to the target; by default 1."""
    most: int = getattr(target, "most_in_flight", 1)
    return most


def forget_of(target: object) -> Callable[[str], Receipt]:
    """Return the target's `forget`; by default, a function that does nothing.

    It takes the name of a batch that this process will not continue to send, because the batch is a
    dead letter, has left the spool, or is sent by another process. It returns the receipt for the
    accepted parts, whose rejected spans have not been counted yet.
    """
    forget: Callable[[str], Receipt] = getattr(target, "forget", _nothing_kept)
    return forget


def _nothing_kept(_name: str) -> Receipt:
    return Receipt()
