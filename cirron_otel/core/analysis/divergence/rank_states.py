"""The digests of a quantity of all ranks of a run, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from .observed_steps import Observation
from .recorded_steps import RecordedSteps

MAX_RANKS: Final = 1000
"""The most ranks that are compared."""
Rank = int | None
Values = tuple[str | None, ...]
"""The digests of a quantity in a step as text, in order."""


class RankState(NamedTuple):
    """The digests of a quantity of one rank in one step."""

    rank: Rank
    step: int
    observations: tuple[Observation, ...]

    @property
    def values(self) -> Values:
        """The digests as text."""
        return tuple(each.value for each in self.observations)


class StepState(NamedTuple):
    """The digests of a quantity of all ranks in one step."""

    epoch: str | None
    number: str | None
    ranks: list[RankState]


def step_states(steps: RecordedSteps, quantity: str) -> Iterator[StepState]:
    """Yield the steps in which several ranks have complete digests of a quantity, in order.

    A step that a restarted job repeated counts in its last attempt.
    """
    by_number = groupby(steps.across_ranks(), key=lambda step: step.key[2:])
    for _, group in by_number:
        states = []
        for step in group:
            observations = tuple(step.of(quantity))
            if observations and not any(each.is_failed for each in observations):
                states.append(RankState(step.rank, step.step, observations))
        if len(states) > 1:
            yield StepState(step.epoch, step.number, states[:MAX_RANKS])


def equal_ranks(values: Iterable[tuple[Rank, object]]) -> list[set[Rank]]:
    """Return the sets of several ranks that have equal values."""
    by_value: dict[object, set[Rank]] = {}
    for rank, value in values:
        by_value.setdefault(value, set()).add(rank)
    return [ranks for ranks in by_value.values() if len(ranks) > 1]


def rank_order(rank: Rank) -> int:
    """Return a key that puts ranks in order; a process without a rank comes first."""
    return -1 if rank is None else rank
