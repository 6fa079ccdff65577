"""The queue of batches for one target, by name and in lanes (see `schedule`)."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .schedule import Schedule

_HELD_EVERY = 8
"""Every turn whose number is a multiple of this goes to a batch that failed, if one is due."""


@dataclass(slots=True)
class _Queue:
    """The batches of one lane."""

    fresh: list[tuple[bool, str]] = field(default_factory=list)
    """A heap of (is not first, name) for batches that may be tried whenever the lane is open."""
    held: list[str] = field(default_factory=list)
    """Batches that failed, sorted by name; each waits for the time of its next attempt."""


class BatchQueue:
    """A queue of batches in lanes, which take turns. Within a lane, batches are ordered by name.

    Batches that failed come after batches that have not been tried. Only one thread may use it.
    """

    def __init__(self, schedule: Schedule, lane_of: Callable[[str], str]) -> None:
        """`lane_of` takes a batch's name and returns its lane."""
        self._schedule, self._lane_of = schedule, lane_of
        self._queues: OrderedDict[str, _Queue] = OrderedDict()
        self._lanes: dict[str, str] = {}
        """The lane of each batch, including batches that are being sent, by the batch's name."""
        self._taken: set[str] = set()
        """Batches that were taken and have been neither put back nor forgotten."""
        self._single: set[str] = set()
        """Batches that are sent alone, because a request with several batches was refused."""
        self._releases = schedule.releases
        self._turn = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def __contains__(self, name: str) -> bool:
        return name in self._lanes

    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    def names(self) -> set[str]:
        """Return all batches, including those that are being sent."""
        return set(self._lanes)

    def add(self, name: str, *, is_first: bool = False) -> None:
        """Add a batch; `is_first` puts it ahead of the batches that its lane already contains."""
        lane = self._lanes[name] = self._lane_of(name)
        heapq.heappush(self._queues.setdefault(lane, _Queue()).fresh, (not is_first, name))

    def move(self, names: Iterable[str]) -> bool:
        """If the lane of one of `names` has changed, move all batches to their present lanes.

        A batch that moves loses its failures. Returns whether any batch moved.
        """
        if all(self._lane_of(name) == self._lanes[name] for name in names):
            return False
        lanes = {name: self._lane_of(name) for name in self._lanes}
        self._schedule.forget([name for name, lane in lanes.items() if lane != self._lanes[name]])
        self._lanes = lanes
        queues, self._queues = self._queues, OrderedDict()
        for queue in queues.values():
            for is_late, name in queue.fresh:
                fresh = self._queues.setdefault(lanes[name], _Queue()).fresh
                heapq.heappush(fresh, (is_late, name))
            for name in queue.held:
                self.put_back(name)
        return True

    def tries(self, name: str) -> int:
        """Return how often a batch has failed."""
        return self._schedule.tries(name)

    def lane(self, name: str) -> str:
        """Return the lane of a batch in this queue."""
        return self._lanes[name]

    def take(self) -> str | None:
        """Take the next batch; None if no batch may be tried now."""
        self._release()
        self._turn += 1
        name = None
        if self._turn % _HELD_EVERY == 0:
            name = self._due()
        if name is None:
            name = self._first()
        if name is None:
            name = self._due()
        if name is not None:
            lane = self._lanes[name]
            self._remove(lane, name)
            self._taken.add(name)
            if lane in self._queues:
                self._queues.move_to_end(lane)
        return name

    def take_with(self, name: str) -> str | None:
        """Take another batch for the same request as `name`; None if there is no such batch."""
        lane = self._lanes[name]
        queue = self._queues.get(lane)
        if queue is None or self._is_alone(name):
            return None
        now = self._schedule.clock()
        held = (each for each in queue.held if self._schedule.held_until(each) <= now)
        late = ((True, each) for each in held)
        nearest = min([*queue.fresh[:1], *itertools.islice(late, 1)], default=None)
        if nearest is None or self._is_alone(nearest[1]):
            return None
        self._remove(lane, nearest[1])
        self._taken.add(nearest[1])
        return nearest[1]

    def put_back(self, name: str, *, alone: bool = False) -> None:
        """Put back a batch that was taken. If it has failed, it waits for its next attempt.

        With `alone`, later requests contain only this batch.
        """
        if alone:
            self._single.add(name)
        self._taken.discard(name)
        queue = self._queues.setdefault(self._lanes[name], _Queue())
        if self._schedule.tries(name):
            bisect.insort(queue.held, name)
        else:
            heapq.heappush(queue.fresh, (True, name))

    def failed(self, name: str, error: Exception) -> bool:
        """Put back a batch after a local error, so that only this batch waits.

        Returns whether to give up the batch.
        """
        is_hopeless = self._schedule.held(self._lanes[name], name, error)
        self.put_back(name)
        return is_hopeless

    def forget(self, name: str) -> None:
        """Forget a batch that needs no further attempt, whether it was taken or not."""
        lane = self._lanes.pop(name, None)
        if lane is not None and name not in self._taken:
            self._remove(lane, name)
        self._taken.discard(name)
        self._single.discard(name)
        self._schedule.forget([name])

    def opens(self) -> float:
        """Return the time of the next possible attempt, measured by the schedule's clock."""
        self._release()
        times = []
        for lane, queue in self._queues.items():
            opens = self._schedule.opens(lane)
            if not queue.fresh and not self._schedule.wants_head(lane):
                opens = max(opens, min(map(self._schedule.held_until, queue.held)))
            times.append(opens)
        return min(times, default=float("inf"))

    def _is_alone(self, name: str) -> bool:
        return name in self._single or self._schedule.is_alone(name)

    def _first(self) -> str | None:
        """Return the first batch of the next open lane; None if no open lane has a batch."""
        now = self._schedule.clock()
        for lane, queue in self._queues.items():
            if self._schedule.opens(lane) > now:
                continue
            if self._schedule.wants_head(lane):
                return min([name for _, name in queue.fresh[:1]] + queue.held[:1])
            if queue.fresh:
                return queue.fresh[0][1]
        return None

    def _due(self) -> str | None:
        """Return a batch that failed and may be tried again now; None if there is no such batch."""
        now = self._schedule.clock()
        for lane, queue in self._queues.items():
            if queue.held and self._schedule.opens(lane) <= now:
                for name in queue.held:
                    if self._schedule.held_until(name) <= now:
                        return name
        return None

    def _release(self) -> None:
        """After the schedule released batches, move held ones that are due back to `fresh`."""
        if self._releases == self._schedule.releases:
            return
        self._releases = self._schedule.releases
        now = self._schedule.clock()
        for queue in self._queues.values():
            held, queue.held = queue.held, []
            for name in held:
                if self._schedule.held_until(name) <= now:
                    heapq.heappush(queue.fresh, (True, name))
                else:
                    queue.held.append(name)

    def _remove(self, lane: str, name: str) -> None:
        queue = self._queues[lane]
        if queue.fresh and queue.fresh[0][1] == name:
            heapq.heappop(queue.fresh)
        elif name in queue.held:
            queue.held.remove(name)
        else:  # not at the top of the heap: it is a dead letter that was sent again
            queue.fresh = [each for each in queue.fresh if each[1] != name]
            heapq.heapify(queue.fresh)
        if not (queue.fresh or queue.held):
            del self._queues[lane]
