"""Replicas of which the weights differ in the first step: compared tensor by tensor.

Buffers may differ by rank, such as the statistics of BatchNorm with DDP. The parameters, and the
tensors that are equal in the first step, should be equal. A difference lasts, so bisection finds
its step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from ...records.digest_marks import GRADS, WEIGHTS
from .comparing import Divergence
from .observed_steps import Observation, ObservedStep
from .rank_states import Rank, ReplicaDivergence
from .tensors import RunDigests

Name = tuple[int, str]
"""The occurrence of the weights in the step, and the name of a tensor."""


class TensorReplicas:
    """Ranks that are compared tensor by tensor."""

    def __init__(self, digests: RunDigests, ranks: list[Rank]) -> None:
        self._digests, self._ranks = digests, ranks
        self._places = {rank: self._places_of(rank) for rank in ranks}
        self.steps = min(map(len, self._places.values()))
        """The number of steps that all ranks have; 1 if ranks have repeated steps."""
        if any((digests.steps.attempts[places] > 1).any() for places in self._places.values()):
            self.steps = 1
        self._parameters = set[Name]()
        """The tensors that have gradients."""

    def _places_of(self, rank: Rank) -> np.ndarray:
        """Return the places of a rank's steps, from the first one with weights on."""
        steps = self._digests.steps
        places = steps.places_of(rank)
        each = enumerate(steps.at(places))
        return places[next((at for at, step in each if step.of(WEIGHTS)), len(places)) :]

    @classmethod
    def create(cls, digests: RunDigests, ranks: list[Rank]) -> TensorReplicas | None:
        """Return the comparison of ranks with equal gradients.

        None without digests of tensors, and if the ranks do not begin with the same step.
        """
        tensors = cls(digests, ranks)
        if not all(map(len, tensors._places.values())):
            return None
        if len({tensors._step(rank, 0) for rank in ranks}) > 1:
            return None
        if len({tensors._step(rank, tensors.steps - 1) for rank in ranks}) > 1:
            tensors.steps = 1
        tensors._parameters = tensors._with_gradients(ranks[0])
        return tensors if tensors._parameters else None

    def divergence(self) -> ReplicaDivergence | None:
        """Return the first difference of the ranks; None if they are equal."""
        usual = self._usual()
        differing = [
            (place, rank)
            for rank in self._ranks
            if rank != usual and (place := self._first_difference(usual, rank)) is not None
        ]
        if not differing:
            return None
        place = min(at for at, _ in differing)
        odd = [rank for at, rank in differing if at == place]
        first = self._difference(usual, odd[0], place)
        if place and len(odd) == len(self._ranks) - 1 > 1:
            odd = [usual]  # the ranks that differ from it are equal to each other
        return None if first is None else ReplicaDivergence(first, self._ranks, odd, place == 0)

    def _usual(self) -> Rank:
        """Return the first of the ranks whose parameters most ranks have in the first step."""
        parameters = {}
        for rank in self._ranks:
            tensors = self._tensors(rank, 0)
            parameters[rank] = tuple(tensors.get(name) for name in sorted(self._parameters))
        counts = Counter(parameters.values())
        most = max(counts.values())
        return next(rank for rank in self._ranks if counts[parameters[rank]] == most)

    def _first_difference(self, usual: Rank, odd: Rank) -> int | None:
        """Return the place of the first step in which two ranks differ."""
        expected = self._parameters | self._equal(usual, odd, 0)
        low, high = -1, self.steps - 1
        while high > 0 and not (self._tensors(usual, high) and self._tensors(odd, high)):
            high -= 1  # the last step may lack digests
        if expected <= self._equal(usual, odd, high, expected):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if expected <= self._equal(usual, odd, middle, expected):
                low = middle
            else:
                high = middle
        return high

    def _difference(self, usual: Rank, odd: Rank, place: int) -> Divergence | None:
        expected = self._parameters | self._equal(usual, odd, 0)
        pairs = zip(self._rows(usual, place), self._rows(odd, place), strict=False)
        for occurrence, (one, other) in enumerate(pairs):
            first, second = self._tensors_of(one), self._tensors_of(other)
            names = {name for number, name in expected if number == occurrence}
            if any(first.get(name) != second.get(name) for name in names):
                step = self._at(odd, place)
                return Divergence(
                    odd, step.step, step.epoch, step.number, WEIGHTS, a=one.value, b=other.value,
                    sides=(one, other), only=frozenset(names),
                )  # fmt: skip
        return None

    def _with_gradients(self, rank: Rank) -> set[Name]:
        """Return the tensors that have gradients in the first step of a rank."""
        named = [set(self._tensors_of(row)) for row in self._rows(rank, 0, GRADS)]
        weights = [set(self._tensors_of(row)) for row in self._rows(rank, 0)]
        if len(named) != len(weights):  # several gradients for one update
            named = [set().union(*named)] * len(weights)
        return {
            (occurrence, name)
            for occurrence, (names, present) in enumerate(zip(named, weights, strict=True))
            for name in names & present
        }

    def _equal(
        self, usual: Rank, odd: Rank, place: int, otherwise: Iterable[Name] = ()
    ) -> set[Name]:
        """Return the tensors that are equal in a step.

        `otherwise` if a rank has no complete digests of its weights.
        """
        one, other = self._tensors(usual, place), self._tensors(odd, place)
        if not one or not other:
            return set(otherwise)
        return {name for name, digest in one.items() if other.get(name) == digest}

    def _tensors(self, rank: Rank, place: int) -> dict[Name, str]:
        rows = self._rows(rank, place)
        if any(row.is_failed for row in rows):
            return {}
        return {
            (occurrence, name): digest
            for occurrence, row in enumerate(rows)
            for name, digest in self._tensors_of(row).items()
        }

    def _tensors_of(self, observation: Observation) -> dict[str, str]:
        mark = self._digests.mark(observation)
        tensors = None if mark is None else self._digests.tensors(mark)
        return {each.name: each.digest for each in tensors or ()}

    def _step(self, rank: Rank, place: int) -> tuple[str | None, str | None] | None:
        """Return the numbers of a step; None if it has no weights."""
        step = self._at(rank, place)
        return (step.epoch, step.number) if step.of(WEIGHTS) else None

    def _at(self, rank: Rank, place: int) -> ObservedStep:
        return self._digests.steps[int(self._places[rank][place])]

    def _rows(self, rank: Rank, place: int, quantity: str = WEIGHTS) -> list[Observation]:
        return self._at(rank, place).of(quantity)
