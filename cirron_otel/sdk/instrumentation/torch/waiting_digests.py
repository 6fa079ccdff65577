"""The digests of a step that is not known yet, because its batch is fetched before it begins."""

from __future__ import annotations

from typing import Any

from ...tracing.state import state
from .pending import BatchTensors

_MOST = 256
"""Maximum number of digests that wait for their step."""


class _Waiting:
    """A digest that waits."""

    __slots__ = ("batch", "rng", "taken")

    def __init__(self, taken: Any, rng: Any, batch: Any) -> None:
        self.taken = taken
        self.rng = rng
        """The time, and the states of the generators, before the batch was fetched."""
        self.batch = None if batch is None else BatchTensors(batch)
        """The batch that was digested; None for another quantity."""


class WaitingDigests:
    """The digests of one thread that wait for their step."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, taken: Any, rng: Any = None, batch: Any = None) -> None:
        """Add a digest; that of a batch has the states of the generators before the fetch."""
        if len(self._waiting) < _MOST:
            self._waiting.append(_Waiting(taken, rng, batch))
        else:
            state.digests.discard(taken)

    @property
    def rng(self) -> Any:
        """The time, and the states of the generators, before the first fetch; None if unknown."""
        return next((each.rng for each in self._waiting if each.rng is not None), None)

    def take(self) -> list[Any]:
        """Return the digests, and forget them."""
        waiting, self._waiting = self._waiting, []
        return [each.taken for each in waiting]

    def discard(self) -> None:
        """Discard all digests."""
        for taken in self.take():
            state.digests.discard(taken)

    def discard_skipped(self, begun: int, *, is_decided: bool) -> None:
        """Discard the digests of batches that were fetched and not used; the last one is used.

        A batch was skipped if it was digested before `begun`, when the step begins, monotonic ns.
        Without `is_decided`, also if the program no longer references it.
        """
        fetched = [each for each in self._waiting if each.batch is not None]
        for each in fetched[:-1]:
            is_gone = each.batch is not None and not each.batch.is_alive
            if each.taken[1] < begun or (is_gone and not is_decided):
                self._waiting.remove(each)
                state.digests.discard(each.taken)
