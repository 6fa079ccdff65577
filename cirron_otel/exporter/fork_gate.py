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
    """Held by a call while it runs, and by a fork while it happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forking: int | None = None
        """The thread whose fork holds the gate."""
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call at a time, and none while the process is forked."""
        with self._lock:
            yield

    def _before(self) -> None:
        if self._lock.acquire(timeout=PATIENCE_S):
            self._forking = threading.get_ident()

    def _in_parent(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = None
            self._lock.release()

    def _in_child(self) -> None:
        self._lock, self._forking = threading.Lock(), None
