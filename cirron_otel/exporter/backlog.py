"""What one target does not have yet of one owner's batches."""

from __future__ import annotations

import contextlib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

from ..errors import InputError, TargetError
from ..spool.blobs import BlobKey
from ..spool.cursor import Cursor, cursor_path
from ..spool.delivered import Delivered, cursor_of, reset_cursor
from ..spool.lease import Lease, claim_delivery
from ..spool.owner import NONE, group_of, known_owners
from ..spool.paths import SpoolPaths, batch_names
from .batch_target import SealedBatch
from .blobs import BlobQueue, named_blobs, queue_path
from .otlp import PushError

MOST_NAMES = 10_000
"""Batches that are remembered by name; what is more is found again in the directory."""

_TRIES = 5
"""So often a suspect batch is tried before those behind it are: it alone may be what the target
fails at, and must not keep up all others."""

_ABOUT_NO_BATCH = re.compile(
    r"40[1345]\b.*|429\b.*|503\b.*|no answer|no TLS connection|"
    r"|UNAVAILABLE|RESOURCE_EXHAUSTED|UNAUTHENTICATED|PERMISSION_DENIED"
)
"""Failures, in the words of Response.status, that another batch would meet as well."""


BlobsOf = Callable[[str, bytes], list[BlobKey]]
"""(a batch's name, its content) → the snapshot files that it names; see BlobSink.keys_of."""


class Backlog:
    """An owner's unacknowledged batches and snapshot files, in order, under the lease to send them.

    For one thread. Nothing but names is kept; the spool has the rest.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        target: str,
        owner: str,
        lease: Lease,
        on_trouble: Callable[[Exception], None],
    ) -> None:
        """`claim` is how one comes by a backlog."""
        self.owner = owner
        self.evicted = 0
        """Batches that were gone before they could be sent."""
        self._paths, self._target, self._lease = paths, target, lease
        self._on_trouble = on_trouble
        self._heap: list[tuple[int, str]] = []
        """(tries // _TRIES, name)"""
        self._names: set[str] = set()
        """Those in the heap, and those being sent."""
        self._tries: dict[str, int] = {}
        self._alone: set[str] = set()
        """Batches to be sent in a request of their own, for one of their group was refused."""
        self._is_unsaved = self._are_blobs_unsaved = False
        self.cursor = self._cursor()
        self.blobs, self._are_blobs_lost = self._queue()

    @classmethod
    def claim(
        cls, paths: SpoolPaths, target: str, owner: str, on_trouble: Callable[[Exception], None]
    ) -> Self | None:
        """The backlog of an owner (a prefix) for the key of a target; None where another has it.

        What was damaged is set aside and given to `on_trouble`. Raises TargetError where `state/`
        cannot be written.
        """
        lease = claim_delivery(paths, target, owner)
        if lease is None:
            return None
        try:
            backlog = cls(paths, target, owner, lease, on_trouble)
            backlog.cursor.save()  # else the next process does not know whose the batches are
        except BaseException:
            lease.release()
            raise
        return backlog

    def _cursor(self) -> Cursor | Delivered:
        try:
            return cursor_of(self._paths, self._target, self.owner)
        except InputError as error:
            self._on_trouble(error)
            return reset_cursor(self._paths, self._target, self.owner)

    def _queue(self) -> tuple[BlobQueue, bool]:
        state = self._paths.state
        try:
            return BlobQueue(state, self._target, self.owner), False
        except InputError as error:
            self._on_trouble(error)
            return BlobQueue.reset(state, self._target, self.owner), True

    def is_held(self) -> bool:
        """Whether the lease still is ours; it is claimed again where its file was removed."""
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
        """Batches that the target does not have, as far as they are known."""
        return len(self._names)

    def take(self, names: Iterable[str]) -> int:
        """Take up batches that are not done; gives how many there was no room for."""
        left = 0
        for name in names:
            if name in self._names or name in self.cursor:
                continue
            if len(self._names) >= MOST_NAMES:
                left += 1
                continue
            self._names.add(name)
            heapq.heappush(self._heap, (0, name))
        return left

    def scan(self) -> int:
        """Take up what the directory holds; gives how many there was no room for."""
        return self.take(sorted(owned(self._paths, {self.owner})[self.owner]))

    def find_lost_blobs(self, blobs_of: BlobsOf = named_blobs) -> None:
        """Where the list of snapshot files was damaged: make it anew of what was acknowledged."""
        if self._are_blobs_lost:
            self._are_blobs_lost = False
            for name in sorted(owned(self._paths, {self.owner})[self.owner]):
                if name in self.cursor:
                    with contextlib.suppress(OSError):
                        data = (self._paths.spool / name).read_bytes()
                        self.blobs.add(blobs_of(name, data))

    def group(self, limit: int) -> list[SealedBatch]:
        """The batches whose turn it is: the next one, and more up to `limit` bytes together.

        They are to be given to `acknowledge`, `refuse` or `put_back`. Raises OSError where the
        next one cannot be read.
        """
        found: list[SealedBatch] = []
        room, first = limit, 0
        while self._heap:
            turn, name = self._heap[0]
            path = self._paths.spool / name
            try:
                room -= path.stat().st_size
                if found and (room < 0 or turn != first or name in self._alone):
                    break
                data = path.read_bytes()
            except FileNotFoundError:
                heapq.heappop(self._heap)
                self._forget(name)
                self.evicted += 1
                continue
            except OSError:
                if found:
                    break
                heapq.heappop(self._heap)
                self._again(name, True)
                raise
            heapq.heappop(self._heap)
            found.append(SealedBatch(name, data))
            first = turn
            if name in self._alone or room <= 0:
                break
        return found

    def acknowledge(
        self, group: Sequence[SealedBatch], *, with_blobs: bool, blobs_of: BlobsOf = named_blobs
    ) -> None:
        """Note that the target has a group, and what snapshot files it is to get now.

        Raises TargetError where that cannot be kept; for this process it is noted all the same.
        """
        for batch in group:
            if with_blobs and self.blobs.add(blobs_of(batch.name, batch.data)):
                self._are_blobs_unsaved = True
            self.cursor.acknowledge(batch.name)
            self._forget(batch.name)
        self._save()

    def finish_blob(self, key: BlobKey) -> None:
        """Note that the target has a snapshot file, or never will. Raises as `acknowledge`."""
        self.blobs.finish(key)
        self._are_blobs_unsaved = True
        self._save()

    def _save(self) -> None:
        self._is_unsaved = True
        if self._are_blobs_unsaved:
            self.blobs.save()
            self._are_blobs_unsaved = False
        self.cursor.save(self._names)
        self._is_unsaved = False

    def refuse(self, batch: SealedBatch, reason: str) -> None:
        """Note that the target will never take a batch. Raises as `acknowledge`."""
        self.cursor.refuse(batch.name, reason)
        self._forget(batch.name)
        self._save()

    def put_back(
        self, group: Sequence[SealedBatch], *, singly: bool = False, is_suspect: bool = False
    ) -> None:
        """Try a group again later; `singly`: one by one, for the target refuses one of them.

        `is_suspect`: the failure may be for what is in it (see `makes_suspect`).
        """
        for batch in group:
            if singly:
                self._alone.add(batch.name)
            self._again(batch.name, is_suspect)

    def _again(self, name: str, is_suspect: bool) -> None:
        tries = self._tries.get(name, 0) + is_suspect
        if tries:
            self._tries[name] = tries
        if tries >= _TRIES:
            self._alone.add(name)  # to find out which of its group it is
        heapq.heappush(self._heap, (tries // _TRIES, name))

    def _forget(self, name: str) -> None:
        self._names.discard(name)
        self._tries.pop(name, None)
        self._alone.discard(name)

    def remove(self) -> None:
        """Remove what is kept of an owner that is no more and none of whose batches is left."""
        state = self._paths.state
        for path in (queue_path(state, self._target, self.owner), self.cursor.path):
            with contextlib.suppress(OSError):
                path.unlink()

    def release(self) -> None:
        """Let others send it."""
        if self._is_unsaved and self._lease.is_held:
            with contextlib.suppress(TargetError):
                self._save()
        self.cursor.close()
        self._lease.release()

    def abandon(self) -> None:
        """In a forked child: let go of the lease, which is the parent's."""
        self._lease.abandon()


def makes_suspect(error: BaseException) -> bool:
    """Whether a failure may be for what is in the batches, and not for all that is sent."""
    if isinstance(error, PushError):
        return not _ABOUT_NO_BATCH.fullmatch(error.status)
    return not isinstance(error, OSError)


def owned(paths: SpoolPaths, owners: set[str]) -> dict[str, list[str]]:
    """The names of the batches of each of the `owners`, of whom one may be NONE, in no order."""
    found: dict[str, list[str]] = {owner: [] for owner in owners}
    known = owners | (known_owners(paths) if NONE in owners else set())
    with contextlib.suppress(FileNotFoundError):
        for name in batch_names(paths.spool):
            owner = group_of(name, known)
            if owner in found:
                found[owner].append(name)
    return found


def owners_with_cursor(paths: SpoolPaths, target: str) -> Iterator[str]:
    """The owners that had batches for a target, dead or alive, by the cursors they left."""
    start, end = cursor_path(paths.state, target, "").name.split(".")
    with contextlib.suppress(OSError):
        for path in paths.state.iterdir():
            if path.name.startswith(start) and path.suffix == f".{end}":
                yield path.stem.removeprefix(start)
