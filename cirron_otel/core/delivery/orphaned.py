"""The backlogs that dead owners left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spool.ledger import owned, owners_with_cursor
from ..spool.owner import NONE, is_alive, owners
from ..spool.paths import SpoolPaths
from .backlog import Backlog

if TYPE_CHECKING:
    from .engine import DeliveryEngine

_MOST_CLAIMED = 4
"""The maximum number of dead owners claimed at a time; each may queue MOST_NAMES batches."""


class OrphanedBacklogs:
    """The backlogs that a delivery has claimed from dead owners; the delivery sends them.

    Only the delivery's thread may use it, but any thread may set `are_more` and read `claimed`.
    """

    def __init__(self, paths: SpoolPaths, target: str, own: str, engine: DeliveryEngine) -> None:
        """`target` is the target's key; `own` is the owner whose batches `engine` sends anyway."""
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
        """Claim the unsent batches of dead owners; remove the cursors of owners without batches.

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
                # No process will recover this owner, so it gets no further batches.
                self.settled.add(owner)
                if not names[owner]:
                    backlog.remove()
            self._engine.release(owner)

    def settle(self, backlog: Backlog) -> bool:
        """Release a backlog if all of it is sent; return whether to sweep for more backlogs."""
        if backlog.waiting or not backlog.blobs.is_empty:
            return False
        self._engine.release(backlog.owner)
        return self.are_more and not self.claimed
