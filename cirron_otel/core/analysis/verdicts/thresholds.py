"""The thresholds of all verdicts, by name. docs/verdicts.md lists the same table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ....errors import UsageError

Policy = Literal["live", "run"]
"""`live` for the last steps of a running job, `run` for a complete recording."""
GIB: Final = 1024**3
MAX_STEPS: Final = 10**9
"""The greatest value of a threshold in steps."""


class Threshold(NamedTuple):
    """A threshold's values for a live window and for a complete run."""

    live: float
    run: float
    meaning: str


THRESHOLDS: Final[Mapping[str, Threshold]] = {
    "window.steps": Threshold(100, 10_000, "aligned steps in the window, the last ones"),
    "warmup.steps": Threshold(20, 50, "aligned steps below which the verdict is WARMUP"),
    "straggler.warn": Threshold(0.10, 0.10, "score of a straggler"),
    "straggler.crit": Threshold(0.20, 0.18, "score of a straggler"),
    "straggler.dominance": Threshold(
        1.25, 1.25, "largest excess of the straggler / its second largest, to name its phase"
    ),
    "input.warn": Threshold(0.25, 0.30, "share of the input"),
    "input.crit": Threshold(0.35, 0.40, "share of the input"),
    "input.skew": Threshold(0.06, 0.05, "greatest skew of the input over several ranks"),
    "wait.warn": Threshold(0.15, 0.18, "share of the wait"),
    "wait.crit": Threshold(0.25, 0.28, "share of the wait"),
    "compute.warn": Threshold(0.85, 0.88, "share of forward, backward and optimizer"),
    "compute.crit": Threshold(0.92, 0.94, "share of forward, backward and optimizer"),
    "compute.skew": Threshold(0.06, 0.05, "greatest skew of the clean compute"),
    "memory.steps": Threshold(50, 50, "aligned steps that the verdicts on memory need"),
    "pressure.warn": Threshold(0.92, 0.92, "worst peak / capacity"),
    "pressure.crit": Threshold(0.97, 0.97, "worst peak / capacity"),
    "imbalance.warn": Threshold(0.20, 0.20, "skew of the ranks' peaks"),
    "imbalance.warn_pressure": Threshold(0.30, 0.30, "least pressure for a warning"),
    "imbalance.crit": Threshold(0.30, 0.30, "skew of the ranks' peaks"),
    "imbalance.crit_pressure": Threshold(0.50, 0.50, "least pressure for `crit`"),
    "creep.bytes": Threshold(GIB, GIB, "growth of the worst rank that confirms creep, in bytes"),
    "stalled.factor": Threshold(10, 10, "time without a step / median step (live only)"),
    "stalled.seconds": Threshold(
        3, 3, "least time without a step, because batches arrive late (live only)"
    ),
    "outside.warn": Threshold(0.20, 0.20, "share of the time between steps"),
    "outside.crit": Threshold(0.40, 0.40, "share of the time between steps"),
    "cpu.warn": Threshold(0.80, 0.80, "mean CPU utilisation"),
    "gpu_utilization.warn": Threshold(0.30, 0.30, "mean GPU utilisation below which it is low"),
    "gpu_temperature.warn": Threshold(85, 85, "highest temperature of a GPU, in °C"),
    "diff.moderate": Threshold(0.03, 0.03, "change of the wall time per unit in `diff`: `warn`"),
    "diff.material": Threshold(0.08, 0.08, "change of the wall time per unit in `diff`: `crit`"),
    "few_steps.share": Threshold(
        0.05, 0.05, "largest share of slow steps that count as a few (compilation)"
    ),
    "few_steps.factor": Threshold(2, 2, "duration / median step from which a step is slow"),
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The values of all thresholds for one policy, with the changes that the user made."""

    policy: Policy
    changes: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        """Return the value of a threshold. Raises KeyError for an unknown name."""
        if name in self.changes:
            return self.changes[name]
        threshold = THRESHOLDS[name]
        return threshold.live if self.policy == "live" else threshold.run


def thresholds_of(policy: Policy, assignments: Iterable[str] = ()) -> Thresholds:
    """Return the thresholds with changes given as `NAME=VALUE`. Raises UsageError."""
    limits = Thresholds(policy, dict(_assignment(text) for text in assignments))
    for crit in (name for name in THRESHOLDS if name.endswith(".crit")):
        warn = crit.removesuffix("crit") + "warn"
        if limits.changes.keys() & {warn, crit} and limits[warn] > limits[crit]:
            raise UsageError(
                f"{warn} is {limits[warn]:g}, which is above {crit}, {limits[crit]:g}: set both"
            )
    return limits


def _assignment(text: str) -> tuple[str, float]:
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"{text!a} is not a setting: expected NAME=VALUE, as in input.warn=0.2")
    if name not in THRESHOLDS:
        raise UsageError(
            f"no threshold has the name {name!a}: docs/verdicts.md lists them, for example"
            f" {', '.join(list(THRESHOLDS)[:3])}"
        )
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UsageError(f"{name}={value!a}: expected a number of 0 or more")
    if name.endswith(".steps") and not (1 <= number <= MAX_STEPS and number == int(number)):
        raise UsageError(
            f"{name}={value!a}: expected a whole number of steps from 1 to {MAX_STEPS:,}"
        )
    return name, number
