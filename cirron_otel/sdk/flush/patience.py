"""Wait as long as there is progress, if the user has set no limit."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

STALL_S: Final = 10.0
"""Seconds without any progress after which a wait without a limit ends."""
NOTICE_S: Final = 2.0
"""Seconds after which a wait without a limit is announced."""
_LOOK_S: Final = 0.1


def _nothing() -> None:
    pass


def wait(
    arrives: Callable[[float], bool],
    limit: float | None,
    progress: Callable[[], object],
    announce: Callable[[], None] = _nothing,
) -> bool:
    """Return whether `arrives` returns True in time; it waits up to its argument, in seconds.

    `limit` is in seconds. Without one, the wait ends when the value of `progress` has not changed
    for `STALL_S`. Either way, `announce` is called once if the wait takes `NOTICE_S`.
    """
    begun = changed = monotonic()
    last = progress()
    is_announced = False
    while True:
        now = monotonic()
        if limit is not None and now - begun >= limit:
            return arrives(0.0)
        pause_s = _LOOK_S if limit is None else min(_LOOK_S, begun + limit - now)
        if arrives(pause_s):
            return True
        if not is_announced and monotonic() - begun >= NOTICE_S:
            is_announced = True
            announce()
        if limit is None:
            current = progress()
            if current != last:
                last, changed = current, monotonic()
            elif monotonic() - changed >= STALL_S:
                return False
