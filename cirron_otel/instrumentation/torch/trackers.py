"""A tracker for every thread."""

from __future__ import annotations

import threading
from typing import Any

from .kinds import LOAD
from .shared import Shared
from .tracker import Tracker


class Trackers(threading.local):
    """The calling thread's tracker, as `t`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.t = Tracker(shared)
        self._sentinel = _Sentinel(self.t)
        shared.trackers.add(self.t)

    def __reduce__(self) -> Any:
        """A class that was pickled by value, by cloudpickle for one, records nothing elsewhere."""
        return _Nobodys, ()

    def renew(self) -> None:
        """The calling thread is in no loop."""
        self._sentinel._tracker = self.t = Tracker(self._shared)
        self._shared.trackers.add(self.t)


class _Nobodys:
    """Stands for the trackers in another process: as if a fetch was always open."""

    class t:  # noqa: N801 - in the place of Trackers.t
        """A tracker that is in something already."""

        inside, is_plain = LOAD, False


class _Sentinel:
    """Dies with its thread."""

    __slots__ = ("_tracker",)

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def __del__(self) -> None:
        tracker = self._tracker
        tracker.shared.trackers.discard(tracker)
        tracker.finish()
