"""Points in time in readable form."""

from __future__ import annotations

from datetime import UTC, datetime

_SECOND = 1_000_000_000


def local_moment(ns: int | None) -> str:
    """Return wall-clock ns as local time to the second, with the zone; `?` for None."""
    if ns is None:
        return "?"
    try:
        local = datetime.fromtimestamp(ns // _SECOND, UTC).astimezone()
        return local.strftime("%Y-%m-%d %H:%M:%S %Z").rstrip()
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"


def clock_time(ns: int | None) -> str:
    """Return the time of day in the result of `local_moment`."""
    text = local_moment(ns)
    return text.split(" ")[1] if text.count(" ") >= 2 else text
