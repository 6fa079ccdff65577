"""The truth about a simulated run: the causes that were planted, and their prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

THRESHOLDS: Final[Mapping[str, tuple[float, float]]] = {
    "INPUT_BOUND": (0.05, 0.20), "H2D_BOUND": (0.05, 0.20),
    "SLOW_FIRST_BATCH": (0.05, 0.20), "SPIKES": (0.05, 0.20), "INPUT_SPIKES": (0.05, 0.20),
    "SLOW_INTERVAL": (0.05, 0.20), "SLOWING_DOWN": (0.05, 0.20),
    "INPUT_STRAGGLER": (0.05, 0.20), "COMPUTE_STRAGGLER": (0.05, 0.20),
    "H2D_STRAGGLER": (0.05, 0.20), "WAIT_STRAGGLER": (0.05, 0.20), "STRAGGLER": (0.05, 0.20),
    "UNEVEN": (0.05, 0.20),
    "WAIT_HEAVY": (0.10, 0.25), "BETWEEN_UNITS": (0.10, 0.25),
    "OPTIMIZER_HEAVY": (0.10, 0.25), "LOSS_HEAVY": (0.10, 0.25),
    "EVALUATION_HEAVY": (0.15, 0.30),
    "CHECKPOINT_HEAVY": (0.05, 0.20), "LOGGING_HEAVY": (0.05, 0.20), "TRACING": (0.05, 0.20),
    "GARBAGE_COLLECTION": (0.05, 0.20), "COMMUNICATION_BOUND": (0.05, 0.20),
    "START_UP": (0.10, 0.25), "WARM_UP": (0.10, 0.25), "COMPILATION": (0.10, 0.25),
    "RESTARTED": (0.05, 0.20),
}  # fmt: skip
"""The shares from which a finding is a warning, and critical."""
NOT_IN_SHORT_RUNS: Final = ("START_UP", "WARM_UP", "COMPILATION")
"""The kinds that are notices in a run of less than `SHORT_NS`."""
SHORT_NS: Final = 60 * 10**9
MARGIN: Final = (0.8, 1.25)
"""A price between these multiples of a threshold is not scored."""
FAILURES: Final = ("FAILED", "KILLED", "OUT_OF_MEMORY", "STALLED", "RANK_MISSING")
CRITICAL: Final = ("NON_FINITE", "DIVERGING")
"""Kinds without a price that are critical."""
NOTICE: Final = "notice"


@dataclass(frozen=True, slots=True)
class Expected:
    """A finding that a case expects."""

    kinds: tuple[str, ...]
    """The kinds that are right; several if the rules allow more than one."""
    price: float | None = None
    """The cost as a share of ranks × extent; None for a finding without a price."""
    weight: float | None = None
    """The cost as a share of the time that severities refer to."""
    phase: str | None = None
    """The recorded name of the phase or scope; None if it is not checked."""
    ranks: tuple[int, ...] | None = None
    """The ranks that cause it; None if they are not checked."""
    units: tuple[tuple[int, int], ...] | None = None
    """The first and the last number of each interval of units; None if it concerns all units."""
    every: int | None = None
    moving: bool = False

    @property
    def severity(self) -> int:
        """The severity as a number, the most severe first: 0 to 3."""
        return severity(self.kinds[0], self.weight)

    def to_json(self) -> dict[str, Any]:
        """Return the expected finding for display, without the fields that are not set."""
        fields = {
            "kind": "|".join(self.kinds), "price": self.price and round(self.price, 4),
            "phase": self.phase, "ranks": self.ranks, "units": self.units, "every": self.every,
            "moving": self.moving or None,
        }  # fmt: skip
        return {name: value for name, value in fields.items() if value is not None}


def severity(kind: str, weight: float | None) -> int:
    """Return the severity of a kind with a cost as a number: 0 is a failure, 3 a notice."""
    if kind == NOTICE:
        return 3
    if kind in FAILURES:
        return 0
    if kind in CRITICAL:
        return 1
    if weight is None:
        return 2
    warning, critical = THRESHOLDS[kind]
    return 1 if weight >= critical else 2 if weight >= warning else 3


def is_near_threshold(kind: str, weight: float) -> bool:
    """Return whether a cost is so near to the threshold of a warning that it is not scored."""
    low, high = (factor * THRESHOLDS[kind][0] for factor in MARGIN)
    return low < weight < high
