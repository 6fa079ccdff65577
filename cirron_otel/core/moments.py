"""Points in time in readable form."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from .durations import UNIT_SECONDS

_SECOND = 1_000_000_000
_AGE = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)


def parse_moment(text: str, now_ns: int) -> int:
    """Return the wall-clock ns of a date, a time or an age.

    A date or a time has the form of ISO 8601, such as `2026-11-21T05:00:00Z`; without a zone it is
    in UTC. An age, such as `90m`, is relative to `now_ns`. Raises ValueError.
    """
    if age := _AGE.fullmatch(text):
        return now_ns - int(age[1]) * UNIT_SECONDS[age[2]] * _SECOND
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        whole = moment.replace(microsecond=0)
        return int(whole.timestamp()) * _SECOND + moment.microsecond * 1000
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:40]!a} is not a time: expected one like 2026-11-21T05:00:00Z, or an age"
            " like 90s, 30m, 12h, 7d, 2w"
        ) from None


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
