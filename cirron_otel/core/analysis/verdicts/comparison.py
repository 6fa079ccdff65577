"""The verdict on the difference of two runs: whether the steps became slower or faster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ...durations import duration
from .thresholds import Thresholds
from .verdict import Severity

BLOCKS: Final = 10
"""The parts of a run of which the medians are compared with each other, to measure its noise."""
MIN_STEPS: Final = 2 * BLOCKS


@dataclass(frozen=True, slots=True)
class StepChange:
    """The difference of the steps of two runs."""

    kind: Literal["SLOWER", "FASTER", "INCONCLUSIVE"]
    severity: Severity
    """`warn` for moderately slower steps, `crit` for materially slower ones, else `info`."""
    change: float | None
    """(B - A) / A of the median step; None if a run has too few steps."""
    noise: float | None
    """The change that the noise of both runs explains."""
    why: str

    @property
    def is_failure(self) -> bool:
        """Whether the second run is slower."""
        return self.severity != "info"

    def to_json(self) -> dict[str, Any]:
        """Return the change as a JSON object."""
        return asdict(self)


def compare_steps(
    a: Sequence[float] | None, b: Sequence[float] | None, limits: Thresholds
) -> StepChange:
    """Compare the steps after the warm-up of two runs, of which these are the `block_medians`."""
    if a is None or b is None:
        name = "A" if a is None else "B"
        why = f"{name} has too few steps: {MIN_STEPS} after the warm-up are needed in each rank"
        return StepChange("INCONCLUSIVE", "info", None, None, why)
    before, after = statistics.median(a), statistics.median(b)
    if before <= 0:
        return StepChange("INCONCLUSIVE", "info", None, None, "the steps of A take no time")
    change = (after - before) / before
    noise = math.hypot(statistics.stdev(a), statistics.stdev(b)) / before
    figures = (
        f"a step takes {duration(round(before))} in A and {duration(round(after))} in B,"
        f" {100 * change:+.1f} %; the noise of both runs is {100 * noise:.1f} %"
    )
    if abs(change) < limits["diff.moderate"] or abs(change) <= noise:
        return StepChange("INCONCLUSIVE", "info", change, noise, figures)
    is_material = abs(change) >= limits["diff.material"]
    figures += f": a {'material' if is_material else 'moderate'} difference"
    if change < 0:
        return StepChange("FASTER", "info", change, noise, figures)
    return StepChange("SLOWER", "crit" if is_material else "warn", change, noise, figures)


def block_medians(ranks: Iterable[Sequence[int]]) -> list[float] | None:
    """Return the median step of each tenth of a run, ns; None if a rank has too few steps.

    Each rank has the durations of its steps after the warm-up, ns; a rank without steps has none.
    """
    steps = [durations for durations in ranks if durations]
    if not steps or min(map(len, steps)) < MIN_STEPS:
        return None
    return [
        statistics.median(
            ns
            for durations in steps
            for ns in durations[
                len(durations) * block // BLOCKS : len(durations) * (block + 1) // BLOCKS
            ]
        )
        for block in range(BLOCKS)
    ]
