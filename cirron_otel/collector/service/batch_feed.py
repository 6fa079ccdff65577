"""Feed a delivery with the batches in the spool: those present at its start, and later ones.

The module also measures the progress of a delivery: the number and the age of unsent batches.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...core.delivery.batch_target import BatchTarget
from ...core.delivery.delivery import Delivery
from ...core.spool.cursor import cursor_path
from ...core.spool.ledger import Ledger, by_owner
from ...core.spool.owner import NONE, group_of, is_alive, known_owners
from ...core.spool.paths import SpoolPaths, batch_names

MOST_NAMES = 1_000_000
"""The maximum number of batches that a delivery queues by name; a spool should not contain more.
Further batches wait until batches of refused tenants leave the queue. A name takes about 200
bytes."""
_WAITING = MOST_NAMES // 2
"""The maximum number of batches that wait in a delivery. The delivery scans the directory for
further batches only when its queue is empty."""

_CHECK_FROM = 10_000
"""Above this number of names, the names of delivered and evicted batches are dropped."""

_LOOK_S = 5.0
_LOOK_SHARE = 100.0
"""The pause after counting, as a multiple of its duration: counting takes at most 1/100 of the
time."""


class BatchFeed:
    """Passes batches to a delivery as fast as the delivery accepts them; for one thread."""

    def __init__(self, delivery: Delivery, names: Iterable[str]) -> None:
        """`names` are the batches in the spool at the start."""
        self.delivery = delivery
        self._left = deque(names)

    def add(self, names: Iterable[str]) -> None:
        """Add batches that were sealed."""
        self._left.extend(names)
        self.pump()

    @property
    def left(self) -> int:
        """The number of batches that have not been passed to the delivery yet."""
        return len(self._left)

    def pump(self) -> None:
        """Pass on as many batches as the delivery has room for."""
        if self._left:
            room = _WAITING - int(self.delivery.stats()["waiting"])
            for _ in range(min(room, len(self._left))):
                self.delivery.notify(self._left.popleft())


def unsent(paths: SpoolPaths, target: BatchTarget) -> list[str]:
    """Return the batches in the spool that this process must send to a target.

    These are batches that the target has not received and that no other process sends. A process
    that is alive sends the batches it owns. The delivery itself finds the batches of dead processes
    that had begun to send to the same target.
    """
    others = {
        prefix
        for prefix in known_owners(paths)
        if is_alive(paths, prefix) or cursor_path(paths.state, target.key, prefix).exists()
    }
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = sorted(by_owner(batch_names(paths.spool), others).get(NONE, ()))
    with contextlib.closing(Ledger(paths, target.key)) as ledger:
        return ledger.lacking_of(NONE, names)


class DeliveryProgress(NamedTuple):
    """The progress of the delivery to one target."""

    waiting: int
    """The number of batches in the spool that the target has not received yet."""
    age_s: float
    """How long the oldest waiting batch has been in the spool, seconds."""
    evicted: int = 0
    """Batches that left the spool before they were sent."""


class UnsentBatches:
    """Counts the batches that a target has not received yet, according to its cursors.

    Counting is slow, so the result is cached for several seconds.
    """

    def __init__(self, paths: SpoolPaths, key: str) -> None:
        self._paths, self._ledger = paths, Ledger(paths, key)
        self._look_at = 0.0
        self._found: tuple[int, float | None] = 0, None

    def look(self, left: Callable[[], Sequence[str] | None] = lambda: None) -> DeliveryProgress:
        """Return the number of unsent batches and the age of the oldest.

        The result may be several seconds old. `left` returns the batches that the target may
        not have received, or None if they are not known; the directory is then read.
        """
        begun = time.monotonic()
        if begun >= self._look_at:
            with contextlib.suppress(OSError):
                self._found = self._count(left())
            now = time.monotonic()
            self._look_at = now + max(_LOOK_S, (now - begun) * _LOOK_SHARE)
        waiting, since = self._found
        return DeliveryProgress(waiting, 0.0 if since is None else max(time.time() - since, 0.0))

    def count(self) -> int:
        """Read the directory, and return the number of batches that the target has not received."""
        with contextlib.suppress(OSError):
            self._found = self._count(None)
        return self._found[0]

    def lacks(self, name: str) -> bool:
        """Return whether the batch has no owner and the target has not received it."""
        if self._ledger.has(NONE, name):
            return False
        return group_of(name, known_owners(self._paths)) == NONE

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Return the batches of `names` that are in the spool and that the target has not
        received.
        """
        left = self._ledger.lacking_of(NONE, names)
        return [name for name in left if (self._paths.spool / name).exists()]

    def _count(self, known_left: Sequence[str] | None) -> tuple[int, float | None]:
        """Return the number of unsent batches, and the time the first by name was sealed.

        The time is in Unix seconds, or None if there is no such batch.
        """
        if known_left is not None:
            left = self._ledger.lacking_of(NONE, known_left)
        else:
            left = self._ledger.lacking(batch_names(self._paths.spool))
        for name in sorted(left):
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                return len(left), (self._paths.spool / name).stat().st_mtime
        return len(left), None


class OldestUnsent:
    """Tracks the age of the oldest undelivered batch of a delivery.

    The names of delivered batches are dropped even while the oldest batch stays undelivered.
    """

    def __init__(self, paths: SpoolPaths, unsent: UnsentBatches, names: Iterable[str]) -> None:
        """`names` are the batches that wait when the delivery starts, oldest first."""
        self._paths, self._unsent = paths, unsent
        self._names = deque(names)
        self._check_from = max(_CHECK_FROM, 2 * len(self._names))

    def add(self, names: Iterable[str]) -> None:
        """Add batches that were sealed."""
        self._names.extend(names)
        if len(self._names) >= self._check_from:
            self._names = deque(self._unsent.lacking(self._names))
            self._check_from = max(_CHECK_FROM, 2 * len(self._names))

    def clear(self) -> None:
        """Record that the target has all batches."""
        self._names.clear()

    def __len__(self) -> int:
        return len(self._names)

    def age_s(self) -> float:
        """Return how long the oldest batch has been in the spool, seconds; 0 if there is none."""
        while self._names:
            name = self._names[0]
            with contextlib.suppress(OSError):
                since = (self._paths.spool / name).stat().st_mtime
                if self._unsent.lacks(name):
                    return max(time.time() - since, 0.0)
            self._names.popleft()
        return 0.0
