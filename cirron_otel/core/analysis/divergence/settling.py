"""The choice of a rank's first difference, which need not be the first digest that differs.

A generator of random numbers that no program seeds differs in every run, mostly Python's own, and
has no effect on a program that does not use it. A training that is resumed in the middle of an
epoch may restore its generators only when it has fetched a batch.
"""

from __future__ import annotations

from ...records.digest_marks import RNG, TensorDigest
from .comparing import Divergence, ObservedPair, RankComparison
from .tensors import DigestMarks, locate_tensor


def settle(rank: RankComparison, a: DigestMarks, b: DigestMarks) -> None:
    """Set the first difference of a rank, with its tensor and its distance."""
    rank.first = _first(rank, a, b)
    if rank.first is not None:
        locate_tensor(rank.first, a, b)


def _first(rank: RankComparison, a: DigestMarks, b: DigestMarks) -> Divergence | None:
    generators, results = rank.generators, rank.results
    if generators is None or (results is not None and results.step < generators.step):
        return results
    if generators.step != rank.start or (results is not None and results.step == rank.start):
        return generators
    # The generators differ from the start, and the results only later, or not at all.
    before = _states(generators.sides, a, b)
    after = _states(rank.at_end, a, b)
    if before is None or after is None:
        return results
    idle = {
        name for name in _differing(before) if all(x.get(name) == y.get(name) for x, y in
        zip(before, after, strict=True))
    }  # fmt: skip
    restored = _differing(before) - _differing(after)
    if _differing(before) - idle - restored:
        return generators
    rank.idle = sorted(idle | restored)
    if results is not None:
        now = _states(rank.at_results, a, b)
        if now is not None and _differing(now) - idle:
            return Divergence(
                results.rank, results.step, results.epoch, results.index, RNG,
                sides=rank.at_results, ignored=frozenset(idle),
            )  # fmt: skip
    return results


_States = tuple[dict[str, str], dict[str, str]]


def _states(pair: ObservedPair, a: DigestMarks, b: DigestMarks) -> _States | None:
    """Return the digests of the generators of both runs by name; None if some are not known."""
    sides = []
    for observation, source in zip(pair, (a, b), strict=True):
        mark = None if observation is None else source.mark(observation)
        tensors: list[TensorDigest] | None = None if mark is None else source.tensors(mark)
        if tensors is None or (mark is not None and mark.failed is not None):
            return None
        sides.append({each.name: each.digest for each in tensors})
    return sides[0], sides[1]


def _differing(states: _States) -> set[str]:
    one, other = states
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
