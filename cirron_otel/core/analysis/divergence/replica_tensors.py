"""Replicas that have buffers of their own, such as the statistics of BatchNorm with DDP.

Their weights are never equal as a whole. Ranks with equal gradients in the first step are replicas
in the tensors that are equal then. A difference of weights lasts, so bisection finds its step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...records.digest_marks import WEIGHTS
from .comparing import Divergence
from .observed_steps import Observation
from .tensors import RunDigests

_STEPS: Final = """
SELECT min(no), count(*), max(no) - min(no) + 1, max(attempts) FROM digest_step
WHERE source = 0 AND rank IS ?
"""
_MARKS: Final = """
SELECT epoch, idx, step, mark.value, mark.file, mark.position FROM digest_step
CROSS JOIN mark ON mark.span = digest_step.span
WHERE digest_step.no = ? AND mark.name = 'digest.weights' ORDER BY mark.ts_ns, mark.no
"""
Row = tuple[Any, ...]
Name = tuple[int, str]
"""The occurrence of the weights in the step, and the name of a tensor."""


class TensorReplicas:
    """Two ranks, `usual` and `odd`, that are compared tensor by tensor."""

    def __init__(self, digests: RunDigests, usual: int | None, odd: int | None) -> None:
        self._digests, self._ranks = digests, (usual, odd)
        rows = [next(digests.index.rows(_STEPS, rank)) for rank in self._ranks]
        self._first = [row[0] for row in rows]
        is_simple = all(row[1] == row[2] and row[3] == 1 for row in rows)
        self.steps: int = rows[0][1] if is_simple and rows[0][1] == rows[1][1] else 0
        """The number of steps; 0 if the ranks have different numbers of steps, or repeat some."""
        self._shared = self._equal(0) if self.steps else set()

    @property
    def are_replicas(self) -> bool:
        """Whether tensors of the ranks are equal in the first step."""
        return bool(self._shared)

    def divergence(self) -> Divergence | None:
        """Return the first step in which a tensor differs that was equal in the first step."""
        low, high = 0, self.steps - 1
        if self._shared <= self._equal(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self._shared <= self._equal(middle):
                low = middle
            else:
                high = middle
        return self._divergence_at(high)

    def _divergence_at(self, place: int) -> Divergence | None:
        usual, odd = (list(self._rows(side, place)) for side in (0, 1))
        for occurrence, (one, other) in enumerate(zip(usual, odd, strict=False)):
            equal = self._equal_tensors(one, other)
            shared = {name for number, name in self._shared if number == occurrence}
            if shared - equal:
                epoch, number, step, *_ = other
                sides = _observation(one), _observation(other)
                return Divergence(
                    self._ranks[1], step, epoch, number, WEIGHTS, a=sides[0].value,
                    b=sides[1].value, sides=sides, only=frozenset(shared),
                )  # fmt: skip
        return None

    def _equal(self, place: int) -> set[Name]:
        """Return the tensors that are equal in a step; all shared ones if it has no weights."""
        pairs = list(zip(self._rows(0, place), self._rows(1, place), strict=False))
        if not pairs and place:
            return self._shared
        return {
            (occurrence, name)
            for occurrence, pair in enumerate(pairs)
            for name in self._equal_tensors(*pair)
        }

    def _equal_tensors(self, one: Row, other: Row) -> set[str]:
        tensors = []
        for row in (one, other):
            mark = self._digests.mark(_observation(row))
            found = None if mark is None else self._digests.tensors(mark)
            tensors.append({each.name: each.digest for each in found or ()})
        first, second = tensors
        return {name for name, digest in first.items() if second.get(name) == digest}

    def _rows(self, side: int, place: int) -> Iterator[Row]:
        return self._digests.index.rows(_MARKS, self._first[side] + place)


def _observation(row: Row) -> Observation:
    return Observation(WEIGHTS, *row[3:6])
