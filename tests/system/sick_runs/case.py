"""A case of the benchmark: a simulated run, and the truth about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .plan import Plan, Times
from .truth import Expected


class Memory(NamedTuple):
    """The memory of a run."""

    used: np.ndarray
    """By rank and unit: the peak of the unit, bytes."""
    capacity: int
    is_device: bool


@dataclass(slots=True)
class Death:
    """The end of a process by an error or a signal."""

    at: int
    """The time, ns since the start of the run."""
    error: str
    """The status of its open scopes."""
    is_out_of_memory: bool = False


@dataclass(slots=True)
class Case:
    """A case: its run, and what is expected of the findings."""

    family: str
    seed: int
    producer: str
    plan: Plan
    times: Times
    twin: Plan | None = None
    """The same plan without the planted causes; None if no time was added."""
    planted: list[Expected] = field(default_factory=list)
    """All causes that were planted, also those below the threshold of a warning."""
    expected: list[Expected] = field(default_factory=list)
    """In order of severity and price; empty if nothing is wrong."""
    values: dict[str, np.ndarray] = field(default_factory=dict)
    """By the name of a mark: its value of each rank and unit."""
    memory: Memory | None = None
    deaths: dict[int, Death] = field(default_factory=dict)
    """By rank: the death of its last process."""
    first_death: str | None = None
    """The status of the scopes of all first processes of a run that was restarted."""
    world_size: int | None = None
    session_attributes: Mapping[str, Any] = field(default_factory=dict)
    has_ddp_times: bool = False
    """Whether DistributedDataParallel's own times of some units are recorded."""
    overhead: str | None = None
    """The segment whose time is recorded as the overhead of tracing."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.expected

    @property
    def parameters(self) -> dict[str, Any]:
        """The drawn parameters, for display."""
        plan = self.plan
        return {
            "seed": self.seed, "producer": self.producer, "ranks": plan.ranks, "units": plan.units,
            "noise": round(plan.noise, 3), "unit_ms": round(plan.unit_ns / 1e6, 1),
            "synchronised": list(plan.synchronised),
        }  # fmt: skip
