"""The ranks of a run that are replicas of each other (docs/digests.md, "The ranks of one run").

Stages of a pipeline and shards can have equal names, shapes and, by chance or before the first
update, equal weights. So one equal step is not enough: either the weights and the gradients of a
step are equal, or one of them in two steps with different values.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...records.digest_marks import GRADS, WEIGHTS
from .rank_states import Rank, equal_ranks, step_states
from .tensors import RunDigests

Digests = tuple[str | None, ...]
"""The digests of a quantity in a step as text, in order."""


@dataclass(slots=True)
class EqualWeights:
    """Ranks with equal weights in the first step."""

    ranks: set[Rank]
    values: Digests
    """Their weights in the first step."""
    is_certain: bool
    """Whether they are replicas; otherwise the first step with other weights decides."""
    averaging: list[set[Rank]]
    """The ranks among them whose gradients are equal in the first step, which are replicas even if
    the others are not."""


class ReplicaEvidence:
    """The evidence of the first steps of a run."""

    def __init__(self, digests: RunDigests) -> None:
        self._digests = digests
        self.first = next(step_states(digests.steps, WEIGHTS), [])
        """The weights of the first step that several ranks have; empty without such a step."""
        self._sharded: dict[Rank, bool] = {}
        self._gradients: dict[Rank, Digests] = {}
        """The gradients in the first step."""
        self.averaging = self._ranks_with_equal_gradients()
        """The sets of ranks that have equal gradients in two steps with different gradients."""

    def equal_weights(self, among: set[Rank]) -> list[EqualWeights]:
        """Return the sets of ranks, of those in `among`, with equal weights in the first step."""
        states = {each.rank: each.values for each in self.first}
        sets = []
        for ranks in equal_ranks((rank, states[rank]) for rank in states if rank in among):
            are_sharded = any(map(self._is_sharded, ranks))
            gradients = {self._gradients.get(rank) for rank in ranks}
            is_certain = len(gradients) == 1 and not are_sharded
            known = [(rank, self._gradients[rank]) for rank in ranks if rank in self._gradients]
            averaging = [] if are_sharded else equal_ranks(known)
            sets.append(EqualWeights(ranks, states[next(iter(ranks))], is_certain, averaging))
        return sets

    def _is_sharded(self, rank: Rank) -> bool:
        """Return whether the weights of a rank are parts of sharded tensors."""
        if rank not in self._sharded:
            states = [each for each in self.first if each.rank == rank]
            marks = [self._digests.mark(each) for state in states for each in state.observations]
            self._sharded[rank] = any(mark is not None and mark.is_sharded for mark in marks)
        return self._sharded[rank]

    def _ranks_with_equal_gradients(self) -> list[set[Rank]]:
        sets: list[set[Rank]] = []
        waiting: list[tuple[set[Rank], Digests]] = []
        for state in step_states(self._digests.steps, GRADS):
            values = {each.rank: each.values for each in state}
            if not self._gradients:
                self._gradients = values
                waiting = [
                    (ranks, values[next(iter(ranks))]) for ranks in equal_ranks(values.items())
                ]
                continue
            still: list[tuple[set[Rank], Digests]] = []
            for ranks, first in waiting:
                present = [(rank, values[rank]) for rank in ranks if rank in values]
                for equal in equal_ranks(present):
                    if values[next(iter(equal))] == first:
                        still.append((equal, first))
                    else:
                        sets.append(equal)
            waiting = still
            if not waiting:
                break
        return [ranks for ranks in sets if not any(map(self._is_sharded, ranks))]
