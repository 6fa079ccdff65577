"""No fork in the middle of one of our gRPC calls.

gRPC's own fork handlers give up while another thread is inside of it, and may then abort the child:
a child of the user's. So a fork waits for our call, and a call for the fork, for a moment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.3
"""The most that a fork waits: a slow endpoint is not to stop training."""


class ForkGate:
    """Held by calls while they run, any number at a time, and by a fork while it happens."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0
        self._forking: set[int] = set()
        """The threads that fork."""
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call, which does not begin while the process is forked."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls = max(self._calls - 1, 0)  # a child has none of its parent's
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
