"""The digests of a quantity of all ranks of a run, step by step, and the first difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from .comparing import Divergence
from .observed_steps import ObservedStep
from .recorded_steps import RecordedSteps

MAX_RANKS: Final = 1000
"""The maximum number of ranks that are compared."""
Rank = int | None


@dataclass(slots=True)
class ReplicaDivergence:
    """The first step at which the weights of replicas differ."""

    first: Divergence
    """The difference of the first rank of `odd` from a rank that is not odd; A is the latter."""
    ranks: list[Rank]
    """The replicas."""
    odd: list[Rank]
    """The ranks that differ from most; if there are as many on both sides, those that do not have
    the weights of the lowest rank."""
    is_from_start: bool = False
    """Whether the weights differ in the first step of the comparison already."""

    def to_json(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        return {**self.first.to_json(), "ranks": self.ranks, "odd": self.odd}


def step_states(steps: RecordedSteps, quantity: str) -> Iterator[list[ObservedStep]]:
    """Yield the steps in which several ranks have complete digests of a quantity, in order.

    Each is a step of every such rank, with this quantity only. A step that a restarted job repeated
    counts in its last attempt.
    """
    for _, group in groupby(steps.across_ranks(), key=lambda step: step.key[2:]):
        states = [step._replace(observations=step.of(quantity)) for step in group]
        complete = [
            state for state in states
            if state.observations and not any(each.is_failed for each in state.observations)
        ]  # fmt: skip
        if len(complete) > 1:
            yield complete[:MAX_RANKS]


def equal_ranks(values: Iterable[tuple[Rank, object]]) -> list[set[Rank]]:
    """Return the sets of several ranks that have equal values."""
    by_value: dict[object, set[Rank]] = {}
    for rank, value in values:
        by_value.setdefault(value, set()).add(rank)
    return [ranks for ranks in by_value.values() if len(ranks) > 1]


def rank_order(rank: Rank) -> int:
    """Return a key that puts ranks in order; a process without a rank comes first."""
    return -1 if rank is None else rank
