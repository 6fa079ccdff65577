"""What dead owners left unsent to one target, claimed of a few of them at a time."""

from __future__ import annotations

from collections.abc import Callable

from ..spool.owner import NONE, is_alive, owners
from ..spool.paths import SpoolPaths
from .backlog import Backlog, owned, owners_with_cursor

_MOST_CLAIMED = 4
"""Dead owners whose batches are claimed at once; each may take MOST_NAMES of memory."""


class Leftovers:
    """The backlogs that a delivery took over from dead owners; it sends them itself.

    For the delivery's thread; `are_more` may be set from any, and `claimed` is read by others, and
    in a forked child: it stays the same dict, and is not walked through there but copied.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        target: str,
        own: str,
        claim: Callable[[str], Backlog | None],
    ) -> None:
        """`target` is its key, `own` the delivery's owner, and `claim` how it claims of another."""
        self._paths, self._target, self._own, self._claim = paths, target, own, claim
        self.claimed: dict[str, Backlog] = {}
        """By owner: those of which something is still to be sent."""
        self.settled: set[str] = set()
        """Dead owners of whom nothing is left to send."""
        self.are_more = False
        """Whether there may be more to claim than was claimed."""

    def sweep(self) -> None:
        """Claim what dead owners left unsent, and remove the cursors of those that left nothing.

        Raises what `claim` raises.
        """
        known = set(owners(self._paths))
        dead = {
            owner
            for owner in owners_with_cursor(self._paths, self._target)
            if owner not in (NONE, self._own, *self.claimed, *self.settled)
            and not (owner in known and is_alive(self._paths, owner))
        }
        names = owned(self._paths, dead) if dead else {}
        self.are_more = False
        for owner in sorted(dead):
            if len(self.claimed) >= _MOST_CLAIMED:
                self.are_more = True
                break
            backlog = self._claim(owner)
            if backlog is None:
                continue
            left = backlog.take(sorted(names[owner]))
            self.are_more |= left > 0
            backlog.find_lost_blobs()
            if backlog.waiting or not backlog.blobs.is_empty:
                self.claimed[owner] = backlog
                continue
            if owner not in known and not left:
                # Nobody is going to recover it any more: it has said all that it ever will.
                self.settled.add(owner)
                if not names[owner]:
                    backlog.remove()
            backlog.release()

    def settle(self, backlog: Backlog) -> bool:
        """Let go of a backlog once all of it is sent; whether it is time to sweep for more."""
        if backlog.waiting or not backlog.blobs.is_empty:
            return False
        self.claimed.pop(backlog.owner, None)
        backlog.release()
        return self.are_more and not self.claimed
