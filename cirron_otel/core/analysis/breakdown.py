"""The time of training steps, broken down by phase."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...semconv import MICRO_STEP

STEP = "step"
UNATTRIBUTED = "unattributed"
OPTIMIZER_STEP = "optimizer_step"
FORWARD = "forward"

CHECKPOINT: Final = "checkpoint"
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


PERCENTILES: Final[Mapping[str, int]] = {"p95": 95, "p99": 99}
"""The percentiles of a report by name, apart from the median. Their fields end with `_ns`."""


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """The figures of one phase over all steps, or of the parts of steps that no phase covers."""

    name: str
    times: int = 0
    """The number of scopes; for the part that no phase covers, the number of steps."""
    total_ns: int = 0
    """The sum over all steps, ns."""
    median_ns: int = 0
    """The median duration of a scope, ns."""
    percentiles: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(PERCENTILES, 0))
    """By the name of each percentile: the duration that so many scopes do not exceed, ns."""
    max_ns: int = 0
    """The duration of the longest scope, ns."""

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def places(times: int) -> Sequence[int]:
        """Return the places in the order of some durations of those that the figures need."""
        percentiles = (-(-percent * times // 100) - 1 for percent in PERCENTILES.values())
        return (times - 1) // 2, times // 2, *percentiles, times - 1

    @classmethod
    def at(cls, name: str, times: int, total_ns: int, durations: Sequence[int]) -> PhaseFigures:
        """Return the figures of some durations from those at `places`."""
        low, high, *percentiles, most = durations
        median = low if low == high else round((low + high) / 2)
        named = dict(zip(PERCENTILES, percentiles, strict=True))
        return cls(name, times, total_ns, median, named, most)

    @classmethod
    def of(cls, name: str, times: int, total_ns: int, nth: Callable[[int], int]) -> PhaseFigures:
        """Return the figures of some durations. `nth` returns the one at a place in their order."""
        if not times:
            return cls(name)
        return cls.at(name, times, total_ns, list(map(nth, cls.places(times))))

    def spread(self) -> dict[str, int]:
        """Return the median, the percentiles and the maximum by the heads of their columns, ns."""
        return {"p50": self.median_ns, **self.percentiles, "max": self.max_ns}

    def to_json(self, **more: float) -> dict[str, Any]:
        """Return the figures, with `more` of them after the total."""
        return {
            "times": self.times,
            "total_ns": self.total_ns,
            **more,
            "median_ns": self.median_ns,
            **{f"{name}_ns": ns for name, ns in self.percentiles.items()},
            "max_ns": self.max_ns,
        }


@dataclass(slots=True)
class Breakdown:
    """The time of all steps of some trees. Phases and unattributed time add up to the total."""

    steps: PhaseFigures
    phases: list[PhaseFigures]
    """In the order of their first occurrence."""
    unattributed: PhaseFigures

    @classmethod
    def empty(cls) -> Breakdown:
        """Return the breakdown of no steps."""
        return cls(PhaseFigures(STEP), [], PhaseFigures(UNATTRIBUTED))

    def to_json(self) -> dict[str, Any]:
        """Return steps, phases and unattributed time, with their shares of the total."""
        return {
            "steps": self._row(self.steps),
            "phases": [{"name": each.name, **self._row(each)} for each in self.phases],
            "unattributed": self._row(self.unattributed),
        }

    def _row(self, phase: PhaseFigures) -> dict[str, Any]:
        return phase.to_json(share=self.share(phase))

    def share(self, phase: PhaseFigures) -> float:
        """Return the share of a phase in the steps' time, 0 to 1."""
        return phase.total_ns / max(self.steps.total_ns, 1)
