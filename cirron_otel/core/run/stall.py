"""The silence of a rank of a running job."""

from __future__ import annotations

from typing import NamedTuple


class Stall(NamedTuple):
    """A rank of a running job that has finished no unit for some time, ns."""

    rank: int | None
    silent_ns: int
    median_step_ns: int
    """The median duration of its last units."""
    scopes: tuple[str, ...]
    """The open scopes, the innermost last."""
    longest_cycle_ns: int = 0
    """The longest time from the start of one of its last units to the start of the next one."""
