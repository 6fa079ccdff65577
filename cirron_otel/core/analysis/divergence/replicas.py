"""The ranks of one run that should have equal weights, and the step at which they differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ...records.digest_marks import WEIGHTS
from .comparing import Divergence
from .observed_steps import ObservedStep
from .rank_states import Rank, ReplicaDivergence, rank_order, step_states
from .replica_evidence import EqualWeights, ReplicaEvidence
from .replica_tensors import TensorReplicas
from .tensors import RunDigests, locate_tensor


@dataclass(slots=True)
class ReplicaComparison:
    """The comparison of the ranks of a run."""

    groups: list[list[Rank]] = field(default_factory=list)
    """The ranks that are replicas of each other."""
    steps: int = 0
    """The number of steps in which replicas were compared."""
    divergences: list[ReplicaDivergence] = field(default_factory=list)
    """The first difference of each group that has one, the earliest first."""

    @property
    def first(self) -> ReplicaDivergence | None:
        """The earliest difference."""
        return self.divergences[0] if self.divergences else None

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        return {
            "groups": self.groups,
            "compared": self.steps,
            "divergences": [each.to_json() for each in self.divergences],
        }


def compare_replicas(digests: RunDigests) -> ReplicaComparison | None:
    """Compare the weights of the ranks of a run, step by step; None if no ranks are replicas."""
    evidence = ReplicaEvidence(digests)
    if not evidence.first:
        return None
    comparison = ReplicaComparison()
    others = {each.rank for each in evidence.first}
    for ranks in evidence.averaging:
        if _compare_averaging(comparison, digests, evidence, sorted(ranks, key=rank_order)):
            others -= ranks
    _CompleteComparison(comparison).compare(digests, evidence.equal_weights(others))
    for each in comparison.divergences:
        locate_tensor(each.first, digests, digests)
    comparison.groups.sort(key=lambda group: rank_order(group[0]))
    comparison.divergences.sort(key=lambda each: each.first.step)
    return comparison if comparison.groups else None


def _compare_averaging(
    comparison: ReplicaComparison, digests: RunDigests, evidence: ReplicaEvidence, ranks: list[Rank]
) -> bool:
    """Compare ranks that average their gradients, if their weights differ in the first step.

    Buffers may differ by rank, so the tensors are compared. Return False if that is not possible.
    """
    states = [each for each in evidence.first if each.rank in ranks]
    if len({each.values for each in states}) == 1:
        return False
    tensors = TensorReplicas.create(digests, ranks)
    if tensors is not None:
        comparison.groups.append(ranks)
        comparison.steps = max(comparison.steps, tensors.steps)
        divergence = tensors.divergence()
        if divergence is not None:
            comparison.divergences.append(divergence)
        return True
    # Without digests of tensors, the parameters are only known to differ if buffers do not.
    if max(Counter(each.values for each in states).values()) < 2:
        return False
    difference = _divergence(states)
    if difference is None:
        return False
    difference.is_from_start = True
    comparison.groups.append(ranks)
    comparison.steps = max(comparison.steps, 1)
    comparison.divergences.append(difference)
    return True


class _CompleteComparison:
    """Compares the weights of ranks as a whole, in all steps."""

    def __init__(self, comparison: ReplicaComparison) -> None:
        self._comparison = comparison
        self._open: list[set[Rank]] = []
        self._uncertain: list[EqualWeights] = []

    def compare(self, digests: RunDigests, equal: list[EqualWeights]) -> None:
        """Compare ranks with equal weights in the first step."""
        self._uncertain = [each for each in equal if not each.is_certain]
        for each in equal:
            if each.is_certain:
                self._begin(each.ranks)
        steps = 0
        for state in step_states(digests.steps, WEIGHTS) if equal else ():
            steps += 1
            for uncertain in list(self._uncertain):
                self._decide(uncertain, state)
            for group in list(self._open):
                divergence = _divergence([each for each in state if each.rank in group])
                if divergence is not None:
                    self._open.remove(group)
                    self._comparison.divergences.append(divergence)
        for each in self._uncertain:
            self._begin(each.ranks)
        if self._open or self._comparison.groups:
            self._comparison.steps = max(self._comparison.steps, steps)

    def _begin(self, ranks: set[Rank]) -> None:
        self._open.append(ranks)
        self._comparison.groups.append(sorted(ranks, key=rank_order))

    def _decide(self, equal: EqualWeights, state: list[ObservedStep]) -> None:
        """Decide whether ranks are replicas, if this is the first step with other weights."""
        weights = [each.values for each in state if each.rank in equal.ranks]
        if all(values == equal.values for values in weights):
            return
        self._uncertain.remove(equal)
        for ranks in [equal.ranks] if len(set(weights)) == 1 else equal.averaging:
            self._begin(ranks)


def _divergence(replicas: list[ObservedStep]) -> ReplicaDivergence | None:
    counts = Counter(each.values for each in replicas)
    if len(counts) <= 1:
        return None
    most = max(counts.values())
    usual = next(each for each in replicas if counts[each.values] == most)
    odd = [each for each in replicas if each.values != usual.values]
    sides = next(
        (
            pair
            for pair in zip(usual.observations, odd[0].observations, strict=False)
            if pair[0].value != pair[1].value
        ),
        (usual.observations[-1], odd[0].observations[-1]),
    )
    first = Divergence(
        odd[0].rank, odd[0].step, odd[0].epoch, odd[0].number, WEIGHTS,
        a=sides[0].value, b=sides[1].value, sides=sides,
    )  # fmt: skip
    return ReplicaDivergence(first, [each.rank for each in replicas], [each.rank for each in odd])
