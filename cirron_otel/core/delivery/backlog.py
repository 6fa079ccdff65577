"""The batches of one owner that one target has not received yet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from ...errors import InputError, TargetError
from ..spool.blobs import BlobKey
from ..spool.cursor import Cursor, cursor_path
from ..spool.dead_letters import DeadLetters
from ..spool.delivered import Delivered
from ..spool.lease import Lease, claim_delivery
from ..spool.ledger import open_cursor, owned
from ..spool.paths import SpoolPaths
from .batch_queue import BatchQueue
from .batch_target import SealedBatch, lanes_of
from .blobs import BlobQueue, named_blobs, queue_path
from .retry_policy import RetryPolicy
from .schedule import Schedule

MOST_NAMES = 10_000
"""The maximum number of batches queued by name. A later scan of the directory finds the rest."""


BlobsOf = Callable[[str, bytes], list[BlobKey]]
"""Takes a batch's name and content; returns its snapshot files. See BlobSink.keys_of."""


class Backlog:
    """An owner's unacknowledged batches and snapshot files, in order, with the lease to send them.

    Only one thread may use it. Only names are kept in memory; the content stays in the spool.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        target: str,
        owner: str,
        lease: Lease,
        on_trouble: Callable[[Exception], None],
        queue: BatchQueue,
        most_names: int,
        letters: DeadLetters,
    ) -> None:
        """Use `claim` instead."""
        self.owner = owner
        self.evicted: list[str] = []
        """Batches that left the spool before they could be sent; the caller may clear the list."""
        self.unreadable: list[str] = []
        """Batches that were given up because they cannot be read; the caller may clear the list."""
        self.settled = 0
        """The number of batches that were sent, refused, evicted or given up as unreadable."""
        self._paths, self._target, self._lease = paths, target, lease
        self._on_trouble = on_trouble
        self.queue = queue
        """The batches to send, by name."""
        self._most_names, self._letters = most_names, letters
        self._is_unsaved = self._are_blobs_unsaved = False
        self.cursor = self._cursor()
        self.blobs, self._are_blobs_lost = self._blob_queue()

    @classmethod
    def claim(
        cls,
        paths: SpoolPaths,
        target: str,
        owner: str,
        on_trouble: Callable[[Exception], None],
        queue: BatchQueue | None = None,
        *,
        most_names: int = MOST_NAMES,
        letters: DeadLetters | None = None,
    ) -> Self | None:
        """Claim the backlog of an owner (a prefix) for a target (its key).

        Returns None if another process has claimed it. A damaged state file is set aside and
        reported to `on_trouble`. At most `most_names` batches are queued by name. `letters` are the
        target's dead letters. Raises TargetError if `state/` cannot be written.
        """
        lease = claim_delivery(paths, target, owner)
        if lease is None:
            return None
        if queue is None:
            queue = BatchQueue(Schedule(RetryPolicy(), time.monotonic), lanes_of(None))
        try:
            letters = letters or DeadLetters(paths, target, target)
            backlog = cls(paths, target, owner, lease, on_trouble, queue, most_names, letters)
            backlog.cursor.save()  # without it, the next process cannot find the owner
        except BaseException:
            lease.release()
            raise
        return backlog

    def _cursor(self) -> Cursor | Delivered:
        return open_cursor(self._paths, self._target, self.owner, self._on_trouble)

    def _blob_queue(self) -> tuple[BlobQueue, bool]:
        state = self._paths.state
        try:
            return BlobQueue(state, self._target, self.owner), False
        except InputError as error:
            self._on_trouble(error)
            return BlobQueue.reset(state, self._target, self.owner), True

    def is_held(self) -> bool:
        """Return whether the lease is still held; claim it again if its file was removed."""
        if self._lease.is_held:
            return True
        self._lease.abandon()
        lease = claim_delivery(self._paths, self._target, self.owner)
        if lease is None:
            return False
        self._lease = lease
        if cursor_path(self._paths.state, self._target, self.owner).exists():
            self.cursor.close()
            self.cursor = self._cursor()
        return True

    @property
    def waiting(self) -> int:
        """The number of queued batches, including those that are being sent."""
        return len(self.queue)

    def _settle(self, name: str) -> None:
        self.settled += name in self.queue
        self.queue.forget(name)

    def take(self, names: Iterable[str], *, are_first: bool = False) -> int:
        """Queue the batches that the target has not received; return how many did not fit.

        `are_first` puts them ahead of the batches that are already queued.
        """
        left = 0
        for name in names:
            if name in self.queue or name in self.cursor:
                continue
            if len(self.queue) >= self._most_names:
                left += 1
                continue
            self.queue.add(name, is_first=are_first)
        return left

    def scan(self) -> int:
        """Queue the owner's batches that are in the directory; return how many did not fit."""
        return self.take(sorted(owned(self._paths, {self.owner})[self.owner]))

    def find_lost_blobs(self, blobs_of: BlobsOf = named_blobs) -> None:
        """If the list of snapshot files was damaged, rebuild it from the acknowledged batches."""
        if self._are_blobs_lost:
            self._are_blobs_lost = False
            for name in sorted(owned(self._paths, {self.owner})[self.owner]):
                if name in self.cursor:
                    with contextlib.suppress(OSError):
                        data = (self._paths.spool / name).read_bytes()
                        self.blobs.add(blobs_of(name, data))

    def group(self, limit: int) -> list[SealedBatch]:
        """Return the next batches to send: one, or several of one lane with at most `limit` bytes.

        The list is empty if no batch may be tried now. The caller must pass the batches to
        `acknowledge`, `refuse` or `put_back`.
        """
        batches: list[SealedBatch] = []
        room = limit
        name = self.queue.take()
        while name is not None:
            if batches and self._size(name) > room:
                self.queue.put_back(name)
                break
            data = self._read(name)
            if data is not None:
                room -= len(data)
                batches.append(SealedBatch(name, data))
            if not batches:
                name = self.queue.take()
            else:
                name = self.queue.take_with(batches[0].name) if room > 0 else None
        return batches

    def _size(self, name: str) -> int:
        with contextlib.suppress(OSError):
            return (self._paths.spool / name).stat().st_size
        return 0

    def _read(self, name: str) -> bytes | None:
        """Return the content of a batch; None if the batch was evicted or cannot be read now."""
        try:
            return (self._paths.spool / name).read_bytes()
        except FileNotFoundError:
            self._settle(name)
            self.evicted.append(name)
        except OSError as error:
            self._on_trouble(error)
            if self.queue.failed(name, error):
                self.cursor.refuse(name, f"cannot be read: {error.strerror or error}")
                self._settle(name)
                self.unreadable.append(name)
        return None

    def acknowledge(
        self, group: Sequence[SealedBatch], *, with_blobs: bool, blobs_of: BlobsOf = named_blobs
    ) -> None:
        """Record that the target accepted a group, and queue its batches' snapshot files.

        Raises TargetError if this cannot be saved; this process still remembers it.
        """
        for batch in group:
            if with_blobs and self.blobs.add(blobs_of(batch.name, batch.data)):
                self._are_blobs_unsaved = True
            self.cursor.acknowledge(batch.name)
            self._settle(batch.name)
            if batch.name in self._letters:
                with contextlib.suppress(TargetError):  # still record the rest of the group
                    self._letters.remove(batch.name)
        self._save()

    def finish_blob(self, key: BlobKey) -> None:
        """Record that a snapshot file was sent or will never be sent.

        Raises TargetError if this cannot be saved.
        """
        self.blobs.finish(key)
        self._are_blobs_unsaved = True
        self._save()

    def _save(self) -> None:
        self._is_unsaved = True
        if self._are_blobs_unsaved:
            self.blobs.save()
            self._are_blobs_unsaved = False
        self.cursor.save(self.queue)
        self._is_unsaved = False

    def refuse(self, batch: SealedBatch, reason: str) -> None:
        """Record that the target will never accept a batch, and keep the batch as a dead letter.

        If the batch cannot be kept, it waits for another attempt while other batches are sent.
        Raises TargetError if the dead letter or the record cannot be written.
        """
        attempts = self.queue.tries(batch.name) or 1
        try:
            self._letters.put(batch.name, batch.data, reason, attempts)
        except TargetError as error:
            self.queue.failed(batch.name, error)
            raise
        self.cursor.refuse(batch.name, reason)
        self._settle(batch.name)
        self._save()

    def put_back(self, group: Sequence[SealedBatch], *, singly: bool = False) -> None:
        """Return a group to the queue; with `singly`, its batches are sent one by one."""
        for batch in group:
            self.queue.put_back(batch.name, alone=singly)

    def remove(self) -> None:
        """Remove the state files of a dead owner that has no batches left."""
        state = self._paths.state
        for path in (queue_path(state, self._target, self.owner), self.cursor.path):
            with contextlib.suppress(OSError):
                path.unlink()

    def release(self) -> None:
        """Save the state, and let other processes send the batches."""
        if self._is_unsaved and self._lease.is_held:
            with contextlib.suppress(TargetError):
                self._save()
        self.cursor.close()
        self._lease.release()

    def abandon(self) -> None:
        """In a forked child: drop the lease but do not release it, since the parent has it."""
        self._lease.abandon()
