"""The wall time of a rank, from its first start to its last end, divided into rows.

Each moment belongs to exactly one row. A `RankReport` contains these rows, the rank's spans and its
steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .breakdown import Breakdown

Row = Literal[
    "set_up", "warm_up", "steps", "evaluation", "checkpoints", "between_steps", "after_steps",
    "pauses",
]  # fmt: skip
ROWS: tuple[Row, ...] = (
    "set_up", "warm_up", "steps", "evaluation", "checkpoints", "between_steps", "after_steps",
    "pauses",
)  # fmt: skip
"""The rows in the order of display."""

WORK: tuple[Row, ...] = ("checkpoints", "evaluation", "warm_up", "steps")
"""In order of precedence: a moment that several of these rows cover belongs to the first one."""


@dataclass(slots=True)
class WallTime:
    """The wall time of a rank by row; the rows add up to the total."""

    rows: dict[Row, int]
    """The time of each row, ns."""

    @property
    def total_ns(self) -> int:
        """The total, ns."""
        return sum(self.rows.values())

    def share(self, row: Row) -> float:
        """Return the share of a row, 0 to 1."""
        return self.rows[row] / max(self.total_ns, 1)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows with their shares."""
        return [{"name": row, "ns": self.rows[row], "share": self.share(row)} for row in ROWS]


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
    """The time in backward passes in which activation checkpointing recomputes activations, ns."""

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
        steps = self.steps.steady.times
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
