"""The delivery of a collector's batches to one target, and the batches that it has not received."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from ...core.delivery.batch_target import BatchTarget
from ...core.delivery.delivery import Delivery
from ...core.delivery.delivery_stats import DeliveryStats
from ...core.delivery.follow import Follower
from ...core.spool.cursor import cursor_path
from ...core.spool.ledger import Ledger, by_owner
from ...core.spool.owner import NONE, group_of, is_alive, known_owners
from ...core.spool.paths import SpoolPaths, batch_names
from .delivery_counters import Counting, counted_letters, rejected_counter
from .metrics import BLOBS, Registry

_MOST_NAMES = 500_000
"""The maximum number of batches that a delivery queues by name. Further batches wait until batches
of refused tenants leave the queue. A name takes about 200 bytes."""
_CHECK_FROM = 10_000
"""Above this number of names, the names of delivered and evicted batches are dropped."""

_LOOK_S = 5.0
_LOOK_SHARE = 100.0
"""The pause after counting, as a multiple of its duration: counting takes at most 1/100 of the
time."""


def unsent(paths: SpoolPaths, target: BatchTarget) -> list[str]:
    """Return the batches in the spool that this process must send to a target.

    These are batches that the target has not received and that no other process sends. A running
    process sends the batches that it owns. The delivery itself finds the batches of dead processes
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

        The result may be several seconds old. `left` returns the batches that the target may not
        have received, or None if these are unknown; the directory is then read.
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
        """Return those of `names` that are in the spool and that the target has not received."""
        left = self._ledger.lacking_of(NONE, names)
        return [name for name in left if (self._paths.spool / name).exists()]

    def _count(self, known_left: Sequence[str] | None) -> tuple[int, float | None]:
        """Return the number of unsent batches, and the time at which the first of them by name was
        sealed.

        The time is in Unix seconds; None if no batch is unsent.
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


class BatchSender:
    """The common part of all senders; for one thread."""

    def __init__(
        self,
        paths: SpoolPaths,
        target: tuple[str, str],
        registry: Registry,
        name: str,
        max_bytes: int | None,
    ) -> None:
        """`target` is the target's key and its address without secrets; for the rest see
        TargetSender.
        """
        self.name = name
        self._paths, self._registry = paths, registry
        self._letters = counted_letters(paths, target, max_bytes, registry, name or BLOBS)
        self._unsent = UnsentBatches(paths, target[0])
        self._at_work: Delivery | Follower | None = None
        self._counting: Counting | None = None
        """The target, if its batches are counted."""

    def unanswered_s(self) -> float:
        """Return how long the target has not answered a request, seconds; 0 if none is open."""
        return 0.0 if self._counting is None else self._counting.unanswered_s()

    def undelivered(self) -> int:
        """Return the number of batches in the spool that the target has not received yet."""
        return self._unsent.count()

    def lacks(self, name: str) -> bool:
        """Return whether a batch must still be sent; False for a batch that cannot be read.

        The caller needs the batch's space in the spool, so the delivery gives up sooner on a batch
        that the target keeps refusing (`Schedule.request_room`).
        """
        is_lacking = self._unsent.lacks(name)
        if is_lacking and (work := self._at_work) is not None:
            work.request_room()
        return is_lacking


class TargetSender(BatchSender):
    """Sends batches to a target that accepts them without conversion."""

    def __init__(
        self,
        paths: SpoolPaths,
        target: BatchTarget,
        registry: Registry,
        name: str = "",
        max_bytes: int | None = None,
    ) -> None:
        """Start immediately, with the batches that are already in the spool.

        `name` is the target's label in metrics; without one, sent batches are not counted.
        `max_bytes` is the spool's cap.
        """
        super().__init__(paths, (target.key, target.shown), registry, name, max_bytes)
        no_owner: Any = SimpleNamespace(prefix=NONE)
        if name:
            self._counting = Counting(target, registry, name)
        counted: Any = self._counting or target
        count = rejected_counter(registry, name or BLOBS)
        self._at_work = self._delivery = Delivery(
            paths,
            no_owner,
            counted,
            most_names=_MOST_NAMES,
            most_noted=sys.maxsize,
            letters=self._letters,
            stats=DeliveryStats(target.shown, on_rejected=count),
        )
        names = unsent(paths, target)
        self._oldest = OldestUnsent(paths, self._unsent, names)
        self._delivery.start()
        self._notify(names)

    def stored(self, names: list[str]) -> None:
        """Add batches that were stored in the spool."""
        self._notify(names)
        self._oldest.add(names)

    def _notify(self, names: list[str]) -> None:
        for name in names:
            self._delivery.notify(name)

    def finish(self, timeout: float) -> None:
        """Send the remaining batches, and stop; callable from any thread, as the last call."""
        self._delivery.finish(timeout)

    end = finish

    def progress(self) -> DeliveryProgress:
        """Return the progress of the delivery."""
        # Read first: a batch that moves meanwhile is counted twice, but never left out.
        held_back = self._held_back()
        stats = self._delivery.stats()
        waiting = stats["waiting"] + held_back
        if not waiting:
            self._oldest.clear()
        return DeliveryProgress(waiting, self._oldest.age_s(), stats["evicted"])

    def _held_back(self) -> int:
        """Return the number of batches that the delivery does not have yet."""
        return 0
