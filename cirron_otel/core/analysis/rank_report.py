"""The report of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .breakdown import Breakdown
from .run_time import WallTime


@dataclass(slots=True)
class RankReport:
    """The spans, steps and wall time of one rank."""

    rank: int | None
    """None for spans without a rank."""
    spans: int
    first_ns: int | None
    last_ns: int | None
    """The earliest start and the latest end of its spans, Unix ns."""
    steps: Breakdown
    time: WallTime
    """The time from `first_ns` to `last_ns`, divided into rows."""
    recompute_ns: int = 0
    """The part of the backward passes in which activation checkpointing computes again."""

    @property
    def run_ns(self) -> int | None:
        """The time from the first start to the last end, including pauses between sessions, ns."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return self.last_ns - self.first_ns

    @property
    def steps_per_second(self) -> float | None:
        """The number of steps after the warm-up, divided by the time in and between steps."""
        rows = self.time.rows
        ns = rows["steps"] + rows["between_steps"]
        steps = len(self.steps.steady.durations)
        return steps * 1e9 / ns if ns and steps else None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, which includes the keys of the breakdown."""
        return {
            "rank": self.rank,
            "spans": self.spans,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "run_ns": self.run_ns,
            "time": self.time.to_json(),
            "steps_per_second": self.steps_per_second,
            **self.steps.to_json(),
        }
