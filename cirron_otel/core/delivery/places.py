"""The lanes that have a request in flight, and those that may start one."""

from __future__ import annotations

_SLOW_S = 1.0
"""A lane whose latest request took longer than this, in seconds, is slow."""
_MOST_SLOW = 10_000
"""The maximum number of slow lanes to remember."""
_MOST_PROBES = 2
"""The maximum number of requests in flight while the target is closed (see `schedule`)."""


class Places:
    """The lanes with a request in flight: at most one request per lane, and `most` in total.

    A lane that is slow or fails may start a request only if it leaves half of the places to others.
    So lanes without a response cannot occupy all places.
    """

    def __init__(self, most: int) -> None:
        """Start with all places free."""
        self.most = most
        self._occupied: dict[str, bool] = {}
        """Whether each lane with a request in flight was slow or failing when it started."""
        self._slow: set[str] = set()

    def is_free(self, lane: str, *, is_failing: bool, is_target_closed: bool) -> bool:
        """Return whether a lane may start a request."""
        most = min(self.most, _MOST_PROBES) if is_target_closed else self.most
        if lane in self._occupied or len(self._occupied) >= most:
            return False
        if is_target_closed or not (is_failing or lane in self._slow):
            return True
        return sum(self._occupied.values()) < max(self.most // 2, 1)

    def occupy(self, lane: str, *, is_failing: bool) -> None:
        """Record that a request of a lane starts."""
        self._occupied[lane] = is_failing or lane in self._slow

    def leave(self, lane: str, seconds: float) -> None:
        """Record that the request of a lane has ended, `seconds` after its start."""
        self._occupied.pop(lane, None)
        if seconds <= _SLOW_S:
            self._slow.discard(lane)
        elif len(self._slow) < _MOST_SLOW:
            self._slow.add(lane)
