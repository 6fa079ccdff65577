"""Snapshot files that batches name but that are not in the spool yet."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..spool.blobs import BlobKey

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0


class AwaitedBlobs:
    """Schedules the next look at each missing file: after 1 s, 2 s, 4 s and so on, up to 30 s.

    Only a process that receives files awaits them: clients send a batch before its files.
    """

    def __init__(self, most: int) -> None:
        """Await at most `most` files."""
        self._most = most
        self._due: dict[BlobKey, float] = {}
        self._waits: dict[BlobKey, float] = {}
        """The latest wait, in seconds, of each file awaited or returned by `take_due`."""
        self._heap: list[tuple[float, BlobKey]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: object) -> bool:
        return key in self._due

    def __iter__(self) -> Iterator[BlobKey]:
        return iter(self._due)

    def add(self, key: BlobKey, now: float) -> BlobKey | None:
        """Await a file; above the limit, give up and return the one awaited longest."""
        wait = min(max(2 * self._waits.get(key, 0.0), FIRST_WAIT_S), LONGEST_WAIT_S)
        self._waits[key], self._due[key] = wait, now + wait
        heapq.heappush(self._heap, (now + wait, key))
        if len(self._waits) <= self._most:
            return None
        given_up = next(iter(self._waits))
        self.remove(given_up)
        return given_up

    def take_due(self, now: float) -> list[BlobKey]:
        """Return the files whose next look is due, and stop awaiting them."""
        due_keys = []
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                due_keys.append(key)
        return due_keys

    def opens(self) -> float:
        """Return when the next look is due; infinity if no file is awaited."""
        return self._heap[0][0] if self._heap else float("inf")

    def remove(self, key: BlobKey) -> None:
        """Forget a file that was sent or never will be."""
        self._waits.pop(key, None)
        self._due.pop(key, None)
