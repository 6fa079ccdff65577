"""A reading of the sampler."""

from __future__ import annotations

from typing import NamedTuple


class Utilization(NamedTuple):
    """A reading of the sampler over a run, or over a window of it."""

    rank: int | None
    source: str
    """`host`, `process`, or a device such as `cuda:0`."""
    value: float
