"""The spans, the steps and the speed of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .breakdown import Breakdown


@dataclass(slots=True)
class RankReport:
    """The spans and steps of one rank."""

    rank: int | None
    """None for spans without a rank."""
    spans: int
    first_ns: int | None
    last_ns: int | None
    """The earliest start and the latest end of its spans, Unix ns."""
    steps: Breakdown
    steps_per_second: float | None = None
    """The number of steps that no later process repeats, divided by the time in and between them,
    evaluations and checkpoints included, without the excess of the warm-up; None without steps."""
    recompute_ns: int = 0
    """The time in backward passes in which activation checkpointing recomputes activations, ns."""

    @property
    def run_ns(self) -> int | None:
        """The time from the first start to the last end, including pauses between sessions, ns."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return self.last_ns - self.first_ns

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, which includes the keys of the breakdown."""
        return {
            "rank": self.rank,
            "spans": self.spans,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "run_ns": self.run_ns,
            "steps_per_second": self.steps_per_second,
            **self.steps.to_json(),
        }
