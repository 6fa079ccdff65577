"""The rule that the flush side has one owner at every moment, and the check that enforces it.

The flush side consists of the flush builder, its drain and the sealer. They have no locks, so only
their owner may use them. Other threads may read their counters.

- In normal work, the flush thread owns them while it collects and seals.
- While the owner waits for a file, it offers the flush side to others (`lend`). It continues only
  if it can take the flush side back; otherwise it retires and no longer uses it.
- A thread that needs the flush side for the last time, because the process ends, demands it
  (`demand`). The owner gives it up at its next checkpoint: between two slices of records, and
  between two files.
- `flush()` and `shutdown()` ask the flush thread to work, also in a signal handler. Only if no
  thread can be started, or after the end of the session, does the main thread become the owner.
- The owner may have died. A dead thread works on nothing, so its successor takes over.
- A forked child never becomes the owner: the records belong to its parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
_OWNER: Final = "owner"
_DEMAND: Final = "demand"


class NotOwnerError(RuntimeError):
    """Code used the flush side without owning it; this is a bug of the SDK."""


class RetiredError(BaseException):
    """Another thread has taken the flush side over, so this thread ends.

    It is not an `Exception`, so that no handler of failures mistakes it for one.
    """


class FlushOwnership:
    """The thread that may use the flush side; see the module."""

    def __init__(self) -> None:
        # `setdefault` is atomic: of several threads, one becomes the owner.
        self._owners: dict[str, threading.Thread] = {}
        self._replacing = threading.Lock()
        self._lender: threading.Thread | None = None
        self._pid = os.getpid()
        self.checkpoints = 0
        """How many checkpoints have been passed: it rises as long as the owner makes progress."""

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is the owner."""
        return self._owners.get(_OWNER) is threading.current_thread()

    @property
    def is_in_use(self) -> bool:
        """Whether the calling thread uses the flush side, or has lent it."""
        return self.is_mine or self._lender is threading.current_thread()

    @property
    def is_demanded(self) -> bool:
        """Whether a thread has demanded the flush side for good."""
        return _DEMAND in self._owners

    def take(self) -> bool:
        """Become the owner; return False if there is one, which may be this thread itself.

        In a forked child, the result is always False.
        """
        thread = threading.current_thread()
        if self._owners.get(_DEMAND, thread) is not thread or os.getpid() != self._pid:
            return False
        owner = self._owners.get(_OWNER)
        if owner is None:
            return self._owners.setdefault(_OWNER, thread) is thread
        if owner is thread or owner.is_alive() or not self._replacing.acquire(blocking=False):
            return False
        try:
            if self._owners.get(_OWNER) is owner:
                self._owners[_OWNER] = thread
            return self.is_mine
        finally:
            self._replacing.release()

    def give(self) -> None:
        """Stop being the owner. Does nothing if the calling thread is not the owner."""
        if self.is_mine:
            del self._owners[_OWNER]

    def demand(self) -> bool:
        """Make the owner give up the flush side at its next checkpoint; only this thread takes it.

        Returns False, without an effect, if another thread has demanded it before.
        """
        thread = threading.current_thread()
        return self._owners.setdefault(_DEMAND, thread) is thread

    def check(self) -> None:
        """Raise NotOwnerError if the calling thread is not the owner."""
        if not self.is_mine:
            owner = self._owners.get(_OWNER)
            raise NotOwnerError(
                f"the flush side is used by {threading.current_thread().name}, and its owner is"
                f" {'no thread' if owner is None else owner.name}"
            )

    def checkpoint(self) -> None:
        """Give up the flush side if another thread has demanded it. Raises RetiredError then."""
        self.checkpoints += 1
        if _DEMAND in self._owners and self._owners[_DEMAND] is not threading.current_thread():
            self.give()
            raise RetiredError

    def lend(self, write: Callable[[], T]) -> T:
        """Write a file while another thread may take the flush side over.

        Returns the result of `write`. Raises its errors, and RetiredError if another thread has
        become the owner meanwhile.
        """
        self._lender = threading.current_thread()
        self.give()
        try:
            return write()
        finally:
            self._lender = None
            self.checkpoints += 1
            if not self.take():
                raise RetiredError
