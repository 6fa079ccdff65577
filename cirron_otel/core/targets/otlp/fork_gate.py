"""Prevent forks during this package's gRPC calls.

If another thread is in a call, gRPC's fork handlers give up and may then abort the child, which is
the user's process. So a fork waits briefly for this package's calls to end, and new calls wait for
the fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.3
"""The maximum time in seconds that a fork waits for calls. Without a limit, a slow endpoint could
stop the training.
"""


class ForkGate:
    """A lock that is held by any number of running calls, or by a fork."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0
        self._forking: set[int] = set()
        """The ids of the threads that are forking."""
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    @contextmanager
    def call(self) -> Iterator[None]:
        """Hold the gate during a call; wait first until no fork is in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls = max(self._calls - 1, 0)  # a child does not have its parent's calls
                self._changed.notify_all()

    def _before(self) -> None:
        if self._changed.acquire(timeout=PATIENCE_S):
            try:
                self._forking.add(threading.get_ident())
                self._changed.wait_for(lambda: not self._calls, PATIENCE_S)
            finally:
                self._changed.release()

    def _in_parent(self) -> None:
        with self._changed:
            self._forking.discard(threading.get_ident())
            self._changed.notify_all()

    def _in_child(self) -> None:
        self._changed, self._calls, self._forking = threading.Condition(), 0, set()
