"""Breakdowns with all durations, from which the figures follow by the definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cirron_otel.core.analysis.breakdown import Breakdown, PhaseFigures


@dataclass(slots=True)
class PhaseTimes:
    """The durations of one phase, from which its figures follow."""

    name: str
    durations: list[int] = field(default_factory=list)
    """One entry per scope, ns; for the part that no phase covers, one per step."""

    def figures(self) -> PhaseFigures:
        """Return the figures of the durations."""
        ordered = sorted(self.durations)
        return PhaseFigures.of(self.name, len(ordered), sum(ordered), ordered.__getitem__)

    @property
    def times(self) -> int:
        """The number of durations."""
        return len(self.durations)

    @property
    def total_ns(self) -> int:
        """The sum of the durations, ns."""
        return sum(self.durations)

    @property
    def median_ns(self) -> int:
        """The median of the durations, ns."""
        return self.figures().median_ns

    @property
    def max_ns(self) -> int:
        """The longest duration, ns."""
        return self.figures().max_ns

    def to_json(self, **more: float) -> dict[str, Any]:
        """Return the figures as JSON."""
        return self.figures().to_json(**more)


class TimedBreakdown(Breakdown):
    """A breakdown whose phases have all durations."""

    steps: Any
    phases: Any
    unattributed: Any

    def __init__(
        self, steps: PhaseTimes, phases: Sequence[PhaseTimes], unattributed: PhaseTimes
    ) -> None:
        self.steps, self.phases, self.unattributed = steps, list(phases), unattributed

    def figures(self) -> Breakdown:
        """Return the breakdown without the durations."""
        return Breakdown(
            self.steps.figures(), [each.figures() for each in self.phases],
            self.unattributed.figures(),
        )  # fmt: skip
