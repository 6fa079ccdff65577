"""The ranks of one run that should have equal weights, and the step at which they differ.

The ranks with equal weights at the first step are replicas of each other, as with DDP. Ranks with
shards of a model never have equal weights, and are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

from ...records.digest_marks import GRADS, WEIGHTS
from .comparing import Divergence
from .observed_steps import Observation
from .replica_tensors import TensorReplicas
from .tensors import RunDigests, locate_tensor

MAX_RANKS: Final = 1000
"""The most ranks that are compared."""
# A step that a restarted job repeated counts in its last attempt.
_WEIGHTS: Final = """
SELECT length(epoch), epoch, length(idx), idx, turn, rank, step, mark.value, mark.file,
    mark.position
FROM digest_step CROSS JOIN mark ON mark.span = digest_step.span
WHERE source = 0 AND attempt = attempts AND mark.name = ?
ORDER BY 1, 2, 3, 4, 5, 6, mark.ts_ns, mark.no
"""


class _RankState(NamedTuple):
    """The digests of a quantity of one rank in one step."""

    rank: int | None
    step: int
    observations: tuple[Observation, ...]

    @property
    def values(self) -> tuple[str | None, ...]:
        """The digests as text."""
        return tuple(each.value for each in self.observations)


class _StepState(NamedTuple):
    """The digests of a quantity of all ranks in one step."""

    epoch: str | None
    number: str | None
    ranks: list[_RankState]


@dataclass(slots=True)
class ReplicaDivergence:
    """The first step at which the weights of replicas differ."""

    first: Divergence
    """The difference of the first rank of `odd` from a rank that is not odd; A is the latter."""
    ranks: list[int | None] = field(default_factory=list)
    """The replicas."""
    odd: list[int | None] = field(default_factory=list)
    """The ranks that differ from most; if there are as many on both sides, those that do not have
    the weights of the lowest rank."""

    def to_json(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        return {**self.first.to_json(), "ranks": self.ranks, "odd": self.odd}


@dataclass(slots=True)
class ReplicaComparison:
    """The comparison of the ranks of a run."""

    groups: list[list[int | None]] = field(default_factory=list)
    """The ranks that are replicas of each other, for each set of weights that several have."""
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
    """Compare the weights of the ranks of a run, step by step; None if no ranks are replicas.

    `create_digest_tables` must have been applied to the index.
    """
    comparison = ReplicaComparison()
    open_groups: list[set[int | None]] = []
    is_first = True
    for state in _states(digests, WEIGHTS):
        if len(state.ranks) < 2:
            continue
        if is_first:
            is_first = False
            open_groups = _equal_ranks(state.ranks)
            comparison.groups = [sorted(group, key=_rank_order) for group in open_groups]
            if not open_groups:
                return _by_tensors(digests)
        comparison.steps += 1
        for group in list(open_groups):
            found = _divergence(state, [each for each in state.ranks if each.rank in group])
            if found is not None:
                open_groups.remove(group)
                comparison.divergences.append(found)
    for each in comparison.divergences:
        locate_tensor(each.first, digests, digests)
    return comparison if comparison.groups else None


def _by_tensors(digests: RunDigests) -> ReplicaComparison | None:
    """Compare ranks of which no two have equal weights as a whole; None if none are replicas."""
    comparison = ReplicaComparison()
    first = next((each for each in _states(digests, GRADS) if len(each.ranks) > 1), None)
    for group in _equal_ranks([] if first is None else first.ranks):
        usual, *others = sorted(group, key=_rank_order)
        replicas = [(rank, TensorReplicas(digests, usual, rank)) for rank in others]
        found = {rank: each for rank, each in replicas if each.are_replicas}
        if not found:
            continue
        ranks = [usual, *found]
        comparison.groups.append(ranks)
        comparison.steps = max(each.steps for each in found.values())
        differences = {rank: each.divergence() for rank, each in found.items()}
        known = {rank: each for rank, each in differences.items() if each is not None}
        if known:
            step = min(each.step for each in known.values())
            odd = [rank for rank, each in known.items() if each.step == step]
            is_usual_odd = len(odd) == len(found) > 1
            first_of = ReplicaDivergence(known[odd[0]], ranks, [usual] if is_usual_odd else odd)
            comparison.divergences.append(first_of)
    for divergence in comparison.divergences:
        locate_tensor(divergence.first, digests, digests)
    return comparison if comparison.groups else None


def _states(digests: RunDigests, quantity: str) -> Iterator[_StepState]:
    rows = digests.index.rows(_WEIGHTS, f"digest.{quantity}")
    for key, group in groupby(rows, key=lambda row: row[:5]):
        ranks = [
            _rank_state(rank, list(some)) for rank, some in groupby(group, key=lambda row: row[5])
        ][:MAX_RANKS]
        yield _StepState(key[1], key[3], ranks)


def _rank_state(rank: int | None, rows: list[tuple[Any, ...]]) -> _RankState:
    observations = [Observation(WEIGHTS, value, file, place) for *_, value, file, place in rows]
    return _RankState(rank, rows[0][6], tuple(observations))


def _equal_ranks(ranks: Iterable[_RankState]) -> list[set[int | None]]:
    """Return the sets of several ranks that have equal digests."""
    by_values: dict[tuple[str | None, ...], set[int | None]] = {}
    for each in ranks:
        by_values.setdefault(each.values, set()).add(each.rank)
    return [group for group in by_values.values() if len(group) > 1]


def _divergence(state: _StepState, replicas: list[_RankState]) -> ReplicaDivergence | None:
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
        odd[0].rank, odd[0].step, state.epoch, state.number, WEIGHTS,
        a=sides[0].value, b=sides[1].value, sides=sides,
    )  # fmt: skip
    return ReplicaDivergence(first, [each.rank for each in replicas], [each.rank for each in odd])


def _rank_order(rank: int | None) -> int:
    return -1 if rank is None else rank
