"""Backlogs of dead owners that a delivery takes over, a few of them at a time."""

from __future__ import annotations

from ..spool.ledger import owned, owners_with_cursor
from ..spool.owner import NONE, is_alive, owners
from ..spool.paths import SpoolPaths
from .backlog import Backlog
from .engine import DeliveryEngine

_MOST_CLAIMED = 4
"""The maximum number of dead owners claimed at once; each may queue MOST_NAMES."""


class OrphanedBacklogs:
    """The backlogs that a delivery has claimed from dead owners; the delivery sends them.

    For the delivery's thread, but any thread may set `are_more` and read `claimed`.
    """

    def __init__(self, paths: SpoolPaths, target: str, own: str, engine: DeliveryEngine) -> None:
        """`target` is the target's key, and `own` the owner whose batches `engine` sends anyway."""
        self._paths, self._target, self._own, self._engine = paths, target, own, engine
        self.settled: set[str] = set()
        """Dead owners that have nothing left to send."""
        self.are_more = False
        """Whether there may be more backlogs to claim."""

    @property
    def claimed(self) -> dict[str, Backlog]:
        """The claimed backlogs with something to send, by owner."""
        claimed = self._engine.backlogs.copy()
        claimed.pop(self._own, None)
        return claimed

    def sweep(self) -> None:
        """Claim what dead owners left unsent, and remove the cursors of those that left nothing.

        Raises the errors of `DeliveryEngine.claim`.
        """
        known, claimed = set(owners(self._paths)), self.claimed
        dead = {
            owner
            for owner in owners_with_cursor(self._paths, self._target)
            if owner not in (NONE, self._own, *claimed, *self.settled)
            and not (owner in known and is_alive(self._paths, owner))
        }
        names = owned(self._paths, dead) if dead else {}
        self.are_more = False
        for owner in sorted(dead):
            if len(self.claimed) >= _MOST_CLAIMED:
                self.are_more = True
                break
            backlog = self._engine.claim(owner)
            if backlog is None:
                continue
            left = backlog.take(sorted(names[owner]))
            self.are_more |= left > 0
            backlog.find_lost_blobs()
            if backlog.waiting or not backlog.blobs.is_empty:
                continue
            if owner not in known and not left:
                # No process recovers it any more, so nothing can be added to it.
                self.settled.add(owner)
                if not names[owner]:
                    backlog.remove()
            self._engine.release(owner)

    def settle(self, backlog: Backlog) -> bool:
        """Release a backlog once all of it is sent; return whether it is time to sweep for more."""
        if backlog.waiting or not backlog.blobs.is_empty:
            return False
        self._engine.release(backlog.owner)
        return self.are_more and not self.claimed
