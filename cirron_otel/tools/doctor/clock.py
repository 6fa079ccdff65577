"""Check the clocks of this machine: the wall clock, which timestamps spans, and the monotonic
clock, which measures their durations.
"""

from __future__ import annotations

import time

from .check import Check, ok, warning

_EARLIEST_S = 1_704_067_200.0
"""The earliest plausible time, 2024-01-01, Unix seconds; it is earlier than this package."""
_LATEST_S = 4_102_444_800.0
"""The latest plausible time, 2100-01-01, Unix seconds."""
_LOOK_S = 0.05
_APART_S = 0.02
_COARSE_S = 0.001


def examine_clock() -> Check:
    """Check that the wall clock is plausible, and advances as fast as the monotonic clock."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(_LOOK_S)
    wall_took, steady_took = time.time() - wall, time.monotonic() - steady
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall))
    advice = "set the clock by NTP: backends drop or misplace spans with a wrong time"
    if not _EARLIEST_S < wall < _LATEST_S:
        return warning("clock", f"the time is {shown}, which is implausible", advice)
    if steady_took <= 0 or abs(wall_took - steady_took) > _APART_S:
        finding = (
            f"the wall clock advanced by {1000 * wall_took:.0f} ms and the monotonic clock by"
            f" {1000 * steady_took:.0f} ms"
        )
        return warning("clock", finding, "the clock is being adjusted: run the check again")
    resolution = max(time.get_clock_info(name).resolution for name in ("time", "monotonic"))
    if resolution > _COARSE_S:
        finding = f"{shown}, in steps of {1000 * resolution:.3g} ms"
        return warning("clock", finding, "short scopes are recorded with a duration of 0")
    return ok("clock", f"{shown}; the monotonic clock advances equally")
