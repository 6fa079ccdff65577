"""The delivery of a collector's batches to one target that accepts them without conversion."""

from __future__ import annotations

from typing import Any

from ...core.delivery.batch_target import BatchTarget
from ...core.delivery.delivery import Delivery
from ...core.spool.owner import NONE
from ...core.spool.paths import SpoolPaths
from .batch_feed import MOST_NAMES, BatchFeed, DeliveryProgress, OldestUnsent, UnsentBatches, unsent
from .delivery_counters import Counting, counted_letters
from .metrics import BLOBS, Registry


class NoOwner:
    """The placeholder owner of the batches that a collector stores; they have no owning process."""

    prefix = NONE


class TargetSender:
    """Sends the batches of the spool to one target; for one thread."""

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
        self.name = name
        nobodys: Any = NoOwner()
        counted: Any = Counting(target, registry, name) if name else target
        shown = target.key, target.shown
        letters = counted_letters(paths, shown, max_bytes, registry, name or BLOBS)
        self.delivery = Delivery(paths, nobodys, counted, most_names=MOST_NAMES, letters=letters)
        names = unsent(paths, target)
        self._feed = BatchFeed(self.delivery, names)
        self._unsent = UnsentBatches(paths, target.key)
        self._oldest = OldestUnsent(paths, self._unsent, names)
        self.delivery.start()
        self._feed.pump()

    def stored(self, names: list[str]) -> None:
        """Add batches that were stored in the spool."""
        self._feed.add(names)
        self._oldest.add(names)

    def end(self, timeout: float) -> None:
        """Stop, even if batches are left; from any thread, as the last call."""
        self.delivery.finish(timeout)

    def finish(self, timeout: float) -> None:
        """Send the remaining batches, and stop."""
        self.delivery.finish(timeout)

    def undelivered(self) -> int:
        """Return the number of batches in the spool that the target has not received yet."""
        return self._unsent.count()

    def lacks(self, name: str) -> bool:
        """Return whether a batch must still be sent.

        The caller needs the batch's space in the spool, so the delivery gives up sooner on a batch
        that the target keeps refusing (`Schedule.request_room`).
        """
        is_lacking = self._unsent.lacks(name)
        if is_lacking:
            self.delivery.request_room()
        return is_lacking

    def standing(self) -> DeliveryProgress:
        """Return the progress of the delivery."""
        self._feed.pump()
        stats = self.delivery.stats()
        waiting = int(stats["waiting"]) + self._feed.left
        if not waiting:
            self._oldest.clear()
        age_s = self._oldest.age_s()
        return DeliveryProgress(waiting, age_s, int(stats["evicted"]))
