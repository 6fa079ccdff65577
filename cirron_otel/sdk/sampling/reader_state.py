"""Whether a reader works: one notice when it begins to fail, backoff, one when it works again."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class ReaderState:
    """The state of one reader, by the monotonic clock in seconds."""

    __slots__ = ("_due", "_pause", "failures", "since")

    def __init__(self) -> None:
        self.failures = 0
        """The number of failures since the last success."""
        self.since = 0.0
        """The time of the first of these failures."""
        self._due = 0.0
        self._pause = FIRST_PAUSE_S

    def is_due(self, now: float) -> bool:
        """Return whether the reader may be called."""
        return not self.failures or now >= self._due

    def failed(self, now: float) -> bool:
        """Record a failure; return whether it is the first since the last success.

        The next call is due after a pause, which doubles with each failure.
        """
        self.failures += 1
        self._due = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        if self.failures == 1:
            self.since = now
        return self.failures == 1

    def succeeded(self) -> int:
        """Record a success; return the number of failures that it ends."""
        failures, self.failures = self.failures, 0
        self._pause = FIRST_PAUSE_S
        return failures
