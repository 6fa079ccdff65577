"""The last batches of a run that is being recorded: enough for a window of every rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

MAX_BATCHES: Final = 5000
"""The most batches, unless two for each rank are more."""
_WINDOWS: Final = 2
"""The batches of this many windows are kept: phases are in earlier batches than their step."""
_LEAST_BATCHES: Final = 4
"""The batches with steps that each rank keeps: those of one rank may arrive before another's."""
_LEAST_OF_MANY: Final = 2
"""The batches for each rank of a job with so many ranks that `MAX_BATCHES` are too few."""


class _Kept(NamedTuple):
    """The steps of a rank in the kept batches, and the batches with steps of this rank."""

    steps: int
    batches: int


class RecentBatches:
    """The names of the last batches; adding one takes the same time for any number of ranks."""

    def __init__(self, window: int) -> None:
        """Keep the batches of `window` steps of each rank, and as many again."""
        self._need = _WINDOWS * window
        self._batches: deque[tuple[str, Mapping[int | None, int]]] = deque()
        self._ranks: dict[int | None, _Kept] = {}
        self._short: set[int | None] = set()
        """The ranks that no batch can be dropped for."""
        self._released: frozenset[int | None] = frozenset()
        """The ranks for which no batch has to be kept."""
        self.dropped: dict[int | None, int] = {}
        """The number of steps in the dropped batches, by rank."""
        self.has_all = True
        """Whether no batch was dropped."""

    def names(self) -> frozenset[str]:
        """Return the names of the kept batches."""
        return frozenset(name for name, _ in self._batches)

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()
        self._ranks.clear()
        self._short.clear()
        self._released = frozenset()
        self.dropped.clear()
        self.has_all = True

    def release(self, ranks: Iterable[int | None]) -> None:
        """Keep no batch for the sake of these ranks, which have ended, from now on.

        If no other rank has steps, all batches are kept.
        """
        self._released = frozenset(ranks)
        self._short -= self._released

    def add(self, name: str, steps: Mapping[int | None, int]) -> None:
        """Add a batch with the number of its steps by rank; drop those that no window needs."""
        self._batches.append((name, steps))
        self._count(steps, 1)
        while len(self._batches) > 1:
            oldest = self._batches[0][1]
            most = max(MAX_BATCHES, _LEAST_OF_MANY * len(self._ranks))
            if not self._is_enough_without(oldest) and len(self._batches) <= most:
                return
            self._batches.popleft()
            self._count(oldest, -1)
            self.has_all = False
            for rank, count in oldest.items():
                self.dropped[rank] = self.dropped.get(rank, 0) + count

    def _is_enough_without(self, batch: Mapping[int | None, int]) -> bool:
        if self._short or self._ranks.keys() <= self._released:
            return False
        left = (
            _Kept(self._ranks[rank].steps - count, self._ranks[rank].batches - 1)
            for rank, count in batch.items()
            if rank not in self._released
        )
        return not any(map(self._is_short, left))

    def _count(self, batch: Mapping[int | None, int], sign: int) -> None:
        for rank, count in batch.items():
            steps, batches = self._ranks.get(rank, _Kept(0, 0))
            kept = _Kept(steps + sign * count, batches + sign)
            if not kept.batches:
                del self._ranks[rank]
                self._short.discard(rank)
                continue
            self._ranks[rank] = kept
            if self._is_short(kept) and rank not in self._released:
                self._short.add(rank)
            else:
                self._short.discard(rank)

    def _is_short(self, kept: _Kept) -> bool:
        return kept.steps < self._need or kept.batches < _LEAST_BATCHES
