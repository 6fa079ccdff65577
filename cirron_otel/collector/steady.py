"""Whether the wall clock can be trusted with what is removed because of its age."""

from __future__ import annotations

import time
from collections.abc import Callable

_JUMP_S = 60.0
_TRUST_S = 3600.0


def _passed_s() -> float:
    """Seconds that no setting of the clock changes, and that go on in suspension."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Steadiness:
    """Watches the wall clock against one that is never set."""

    def __init__(
        self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = _passed_s
    ) -> None:
        """Both give seconds."""
        self._wall, self._passed = wall, passed
        self._offset = wall() - passed()
        self._jumped_at: float | None = None

    def is_steady(self) -> bool:
        """Whether the clock has not been set by more than a minute within the last hour.

        A change is noticed by the first call behind it.
        """
        passed = self._passed()
        offset = self._wall() - passed
        if abs(offset - self._offset) > _JUMP_S:
            self._offset, self._jumped_at = offset, passed
        return self._jumped_at is None or passed - self._jumped_at >= _TRUST_S
