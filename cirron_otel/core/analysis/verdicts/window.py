"""The input of the rules: a window of steps that all ranks have, as means by rank."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ...run.stall import Stall
from ...run.utilization import Utilization
from .thresholds import Policy

Clock = Literal["host", "device"]


@dataclass(frozen=True, slots=True)
class StepMeans:
    """The mean times of a rank's steps, ns. `forward` includes the loss."""

    step: float
    """The step without its input."""
    input: float
    h2d: float
    forward: float
    backward: float
    optimizer: float
    others: dict[str, float] = field(default_factory=dict)
    """Scopes that are neither compute nor wait, by name: the user's, evaluations, checkpoints."""
    outside: float = 0.0
    """The time after the step until the next one, if a recording shows it; no part of the step."""

    @property
    def compute(self) -> float:
        """Forward, backward and optimizer."""
        return self.forward + self.backward + self.optimizer

    @property
    def wait(self) -> float:
        """The part of the step that no phase and no other scope covers."""
        return max(0.0, self.step - self.h2d - self.compute - sum(self.others.values()))


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The peaks of a rank's device memory over the steps of the window, in bytes."""

    rank: int | None
    steps: int
    """The number of steps with a peak."""
    peak: int
    capacity: int | None
    course: tuple[float, float, float] | None
    """The mean peaks of 15-25 %, 45-55 % and 90-100 % of the window; None if one has no peak."""


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The mean times of a rank over the window."""

    rank: int | None
    """None for a process without a rank."""
    means: StepMeans
    typical: StepMeans | None = None
    """The same without the few slow steps; None if no step is slow."""


class NonFinite(NamedTuple):
    """The marks of one name and rank with a value that is not a finite number."""

    name: str
    rank: int | None
    times: int


class OutsideSteps(NamedTuple):
    """A rank's time between the steps of the window, without pauses between sessions, ns."""

    rank: int | None
    total_ns: int
    """The time from the first step's start to the last step's end."""
    outside_ns: int


class StepNumber(NamedTuple):
    """The epoch and the number of a step, as text; None for a step without one."""

    epoch: str | None
    step: str | None


@dataclass(slots=True)
class StepWindow:
    """A window of steps that are aligned over the ranks by epoch and step number."""

    policy: Policy
    steps: int
    """The number of aligned steps in the window."""
    ranks: list[RankSteps]
    """In order of rank; empty if no steps are aligned."""
    clock: Clock = "host"
    first: StepNumber | None = None
    last: StepNumber | None = None
    slow_steps: int = 0
    """The number of slow steps, which `RankSteps.typical` leaves out."""
    summarised: int = 0
    """The number of steps of all ranks that an export budget sent as summaries."""
    missing_ranks: list[int] = field(default_factory=list)
    """Ranks of the job's world size without a step."""
    memory: list[RankMemory] = field(default_factory=list)
    cpu: list[Utilization] = field(default_factory=list)
    gpu: list[Utilization] = field(default_factory=list)
    """The mean utilisation of each device."""
    temperature: list[Utilization] = field(default_factory=list)
    """The highest temperature of each device, °C."""
    non_finite: list[NonFinite] = field(default_factory=list)
    outside: list[OutsideSteps] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)


def median_of(ranks: Iterable[StepMeans], value: Callable[[StepMeans], float]) -> float:
    """Return the median of a value over the ranks."""
    return statistics.median(value(each) for each in ranks)


def skew_of(values: Sequence[float]) -> float:
    """Return max / median - 1; infinite if only the median is 0."""
    middle, highest = statistics.median(values), max(values)
    if middle <= 0:
        return 0.0 if highest <= 0 else float("inf")
    return (highest - middle) / middle
