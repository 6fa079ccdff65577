"""The time of training steps, broken down by phase."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ...semconv import MICRO_STEP

STEP = "step"
UNATTRIBUTED = "unattributed"
OPTIMIZER_STEP = "optimizer_step"

Component = Literal["input", "h2d", "forward", "backward", "optimizer"]
COMPONENTS: Final[dict[str, Component]] = {
    "data_load": "input", "h2d": "h2d", "forward": "forward", "loss": "forward",
    "train_step": "forward", "backward": "backward", "recompute": "backward",
    OPTIMIZER_STEP: "optimizer", "zero_grad": "optimizer", "clip_grad": "optimizer",
    "scheduler_step": "optimizer",
}  # fmt: skip
"""The part of a step to which each phase belongs; the loss counts as forward."""
COLLECTIVES: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all", "reduce",
    "gather", "scatter", "send", "recv", "collective",
)  # fmt: skip
"""The beginnings of the names of operations in which ranks wait for each other."""

CHECKPOINT: Final = "checkpoint"
_FEW = 4
"""The minimum number of steps for a warm-up to be detected."""
MOST_WARM_UP: Final = 50
"""The maximum number of warm-up steps."""
PHASES: Final = frozenset({
    "data_load", "h2d", "forward", "loss", "backward", OPTIMIZER_STEP, "zero_grad", "clip_grad",
    "scheduler_step", "collective",
})  # fmt: skip
CLOSED_SCOPES: Final = (PHASES - {OPTIMIZER_STEP}) | {
    "recompute", "eval", "epoch", STEP, MICRO_STEP,
}  # fmt: skip

CLOSURE_ENDS: Final = frozenset({"backward", "clip_grad", "collective"})


def is_phase(name: str | None) -> bool:
    """Return whether a scope is a phase of its step even if it is inside another scope."""
    return name in PHASES or is_checkpoint(name)


def is_checkpoint(name: str | None) -> bool:
    """Return whether a scope saves or loads a checkpoint."""
    return name is not None and CHECKPOINT in name.lower()


def is_collective(name: str) -> bool:
    """Return whether a scope is an operation in which ranks wait for each other."""
    return name.startswith(COLLECTIVES)


def holds_phases(name: str | None) -> bool:
    """Return whether phases inside a scope count as phases of their own.

    Phases count inside an optimizer's step, which runs the closure, and inside the user's own
    scopes. They do not count inside another phase: a gradient penalty's backward is part of the
    forward that contains it.
    """
    return name not in CLOSED_SCOPES and not is_checkpoint(name)


def ends_closure(name: str | None) -> bool:
    """Return whether a phase can be the last one in an optimizer's closure."""
    return name in CLOSURE_ENDS


def place_of_95(count: int) -> int:
    """Return the place of the duration that 95 of 100 do not exceed, among `count` in order."""
    return -(-95 * count // 100) - 1


@dataclass(slots=True)
class PhaseTimes:
    """The durations of one phase over all steps, or of the parts of steps that no phase covers."""

    name: str
    durations: list[int] = field(default_factory=list)
    """One entry per scope, ns; for the part that no phase covers, one per step."""

    @property
    def times(self) -> int:
        """The number of scopes; for the part that no phase covers, the number of steps."""
        return len(self.durations)

    @property
    def total_ns(self) -> int:
        """The sum over all steps, ns."""
        return sum(self.durations)

    @property
    def median_ns(self) -> int:
        """The median duration of a scope, ns."""
        return round(statistics.median(self.durations)) if self.durations else 0

    @property
    def p95_ns(self) -> int:
        """The duration that 95 of 100 scopes do not exceed, ns."""
        ordered = sorted(self.durations)
        return ordered[place_of_95(len(ordered))] if ordered else 0

    @property
    def max_ns(self) -> int:
        """The duration of the longest scope, ns."""
        return max(self.durations, default=0)

    def figures(self) -> PhaseFigures:
        """Return the same figures without the durations."""
        ordered = sorted(self.durations)
        count = len(ordered)
        middle = (ordered[(count - 1) // 2], ordered[count // 2]) if ordered else (0, 0)
        return PhaseFigures(
            self.name, count, sum(ordered), middle, self.p95_ns, ordered[-1] if ordered else 0
        )


class PhaseFigures(PhaseTimes):
    """The figures of one phase without its durations."""

    __slots__ = ("_figures",)

    def __init__(
        self,
        name: str,
        times: int,
        total_ns: int,
        middle: tuple[int, int],
        p95_ns: int,
        max_ns: int,
    ) -> None:
        """`middle` has the two middle durations, which are equal for an odd number of scopes."""
        super().__init__(name)
        low, high = middle
        median = low if low == high else round(statistics.median(middle))
        self._figures = times, total_ns, median, p95_ns, max_ns

    @property
    def times(self) -> int:
        """The number of scopes."""
        return self._figures[0]

    @property
    def total_ns(self) -> int:
        """The sum over all steps, ns."""
        return self._figures[1]

    @property
    def median_ns(self) -> int:
        """The median duration of a scope, ns."""
        return self._figures[2]

    @property
    def p95_ns(self) -> int:
        """The duration that 95 of 100 scopes do not exceed, ns."""
        return self._figures[3]

    @property
    def max_ns(self) -> int:
        """The duration of the longest scope, ns."""
        return self._figures[4]

    def figures(self) -> PhaseFigures:
        """Return these figures."""
        return self


@dataclass(slots=True)
class Breakdown:
    """The time of all steps of some trees. Phases and unattributed time add up to the total."""

    steps: PhaseTimes
    phases: list[PhaseTimes]
    """In the order of their first occurrence."""
    unattributed: PhaseTimes
    _warm_up: int | None = field(default=None, repr=False, compare=False)
    _steady: PhaseTimes | None = field(default=None, repr=False, compare=False)

    @property
    def warm_up(self) -> int:
        """The number of warm-up steps: the leading steps that take more than twice the median."""
        if self._warm_up is None:
            self._warm_up = self._count_warm_up()
        return self._warm_up

    def _count_warm_up(self) -> int:
        return warm_up_of(self.steps, self.steps.durations)

    @property
    def steady(self) -> PhaseTimes:
        """The steps after the warm-up."""
        if self._steady is None:
            self._steady = PhaseTimes(STEP, self.steps.durations[self.warm_up :])
        return self._steady

    def figures(self) -> Breakdown:
        """Return the breakdown without the durations, so that its size is constant."""
        phases = [each.figures() for each in self.phases]
        return Breakdown(
            self.steps.figures(), list(phases), self.unattributed.figures(), self.warm_up,
            self.steady.figures(),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return steps, warm-up, phases and unattributed time, with their shares of the total."""
        return {
            "steps": self._row(self.steps),
            "warm_up": {
                "times": self.warm_up,
                "total_ns": self.steps.total_ns - self.steady.total_ns,
            },
            "steady": self._row(self.steady),
            "phases": [{"name": each.name, **self._row(each)} for each in self.phases],
            "unattributed": self._row(self.unattributed),
        }

    def _row(self, phase: PhaseTimes) -> dict[str, Any]:
        return {
            "times": phase.times,
            "total_ns": phase.total_ns,
            "share": self.share(phase),
            "median_ns": phase.median_ns,
            "p95_ns": phase.p95_ns,
            "max_ns": phase.max_ns,
        }

    def share(self, phase: PhaseTimes) -> float:
        """Return the share of a phase in the steps' time, 0 to 1."""
        return phase.total_ns / max(self.steps.total_ns, 1)


def warm_up_of(steps: PhaseTimes, first: Sequence[int]) -> int:
    """Return the number of warm-up steps. `first` has at least the durations of the first 50."""
    if steps.times < _FEW:
        return 0
    limit = 2 * steps.median_ns
    max_count = min(steps.times // 4, MOST_WARM_UP)
    slow = itertools.takewhile(lambda ns: ns > limit, first[:max_count])
    return sum(1 for _ in slow)
