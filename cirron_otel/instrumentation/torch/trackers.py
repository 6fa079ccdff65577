"""A tracker for every thread."""

from __future__ import annotations

import threading

from .shared import Shared
from .tracker import Tracker


class Trackers(threading.local):
    """The calling thread's tracker, as `t`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.t = Tracker(shared)
        self._sentinel = _Sentinel(self.t)
        shared.trackers.add(self.t)

    def renew(self) -> None:
        """The calling thread is in no loop."""
        self._sentinel._tracker = self.t = Tracker(self._shared)
        self._shared.trackers.add(self.t)


class _Sentinel:
    """Dies with its thread."""

    __slots__ = ("_tracker",)

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def __del__(self) -> None:
        tracker = self._tracker
        tracker.shared.trackers.discard(tracker)
        tracker.finish()
