"""The schedule of attempts at one target, in which a failing batch does not delay other batches.

A batch belongs to a lane, which consists of batches that the target treats equally, such as the
batches of one tenant. A failure holds back only the batch that failed; the next batch is tried
immediately. Only several failures in a row close the lane, and only failures in several lanes close
the target. If a batch fails repeatedly, only its first failure counts for this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .errors import PushError
from .places import Places
from .retry_policy import OF_TARGET, FailureKind, RetryPolicy, kind_of, wait_after

_LANE_PROBES = 3
"""The number of consecutive failing batches after which their lane is closed."""
_TARGET_PROBES = 8
"""The number of consecutive failing lanes after which the target is closed."""
_MOST_TRIES = 20
"""A batch is given up after this many failures, if other batches of its lane were accepted."""
_MOST_FINAL_TRIES = 5
"""The limit instead of `_MOST_TRIES` for an answer that only the client can change, such as 404."""
_MOST_GROUP_TRIES = 2
"""After this many failures, a group is sent batch by batch, to find the batch that fails."""
_MOST_LANES = 10_000
"""The maximum number of lanes to remember that have no waiting batches."""
_PRESSED_S = 10.0
"""How long a request for room lasts, in seconds."""
_PATIENCE_S = {FailureKind.UNAUTHORIZED: 600.0, FailureKind.FINAL: 60.0}
"""After this many seconds of such failures, a lane is given up, if other lanes are accepted."""
_ANY_LATER_TIME = float("-inf")


class _Level:
    """The state that determines when attempts may be made at a lane, or at the target."""

    def __init__(self, policy: RetryPolicy, probes: int) -> None:
        self._policy, self._probes = policy, probes
        self._streak = 0
        """The number of consecutive failures of batches or lanes that had not failed before."""
        self._closings = 0
        """How often this level was closed since the last success; repeated failures do not count.
        """
        self._has_probed = False
        """Whether the first attempt after the latest closing has been made."""
        self.opens = self._asked_until = self._closed_at = _ANY_LATER_TIME

    @property
    def is_closed(self) -> bool:
        """Whether this level has been closed since the last success."""
        return self._closings > 0

    @property
    def has_failed(self) -> bool:
        """Whether the latest attempt failed."""
        return self._streak > 0 or self.is_closed

    @property
    def wants_head(self) -> bool:
        """Whether the next attempt takes the first batch in order, even one that failed before."""
        return self.is_closed and not self._has_probed

    def passed(self) -> None:
        self._streak = self._closings = 0
        self._has_probed = False
        self.opens = self._asked_until = _ANY_LATER_TIME

    def failed(
        self, now: float, error: Exception, *, is_new: bool, closes: bool, started: float
    ) -> None:
        retry_after = error.retry_after if isinstance(error, PushError) else None
        if self.is_closed and started < self._closed_at and retry_after is None:
            return  # it was in flight when this level was closed, and shows nothing new
        if self.is_closed and not self._has_probed and not closes and retry_after is None:
            self._has_probed = True
            return
        self._streak += is_new
        if not (
            self.is_closed or closes or retry_after is not None or self._streak >= self._probes
        ):
            return
        self._closings += is_new or closes or not self.is_closed
        self._has_probed, self._closed_at = False, now
        wait = wait_after(self._policy, self._closings - 1, error)
        if retry_after is not None:
            # Add jitter, since other clients may have been asked to wait for the same time.
            wait = max(wait, retry_after + min(self._policy.backoff.wait(0), 1.0))
            self._asked_until = now + retry_after
        self.opens = now + wait

    def shorten_waits(self) -> None:
        self._streak = 0
        self._closings = min(self._closings, 1)
        self.opens = min(self.opens, self._asked_until)


@dataclass(slots=True)
class _Tries:
    """The failures of a batch."""

    lane: str
    count: int
    """The number of failures."""
    opens: float
    """The time of the batch's next attempt."""
    lane_passes: int
    """The number of the lane's requests that were accepted before the batch's latest failure."""
    blamed: int = 0
    """The number of failures after other batches of the lane had been accepted."""
    is_alone: bool = True
    """Whether requests with this batch contain no other batch."""


class _Lane(_Level):
    def __init__(self, policy: RetryPolicy) -> None:
        super().__init__(policy, _LANE_PROBES)
        self.passes = 0
        """The number of requests that were accepted since this object was created."""
        self.waiting = 0
        """The number of batches that failed and remain to be sent."""
        self.grouped = 0
        """The number of waiting batches that failed in a group and are not sent alone yet."""
        self.kind = FailureKind.NO_ANSWER
        """The kind of the latest failure."""
        self.failing_since: float | None = None
        """The time of the first failure since the last success."""
        self.target_passes = 0
        """The number of requests that the target had accepted by `failing_since`."""


class Schedule:
    """The state of a target's lanes and of the batches that failed. For one thread.

    Its size is bounded by the number of batches that failed and remain to be sent.
    """

    def __init__(
        self, policy: RetryPolicy, clock: Callable[[], float], most_in_flight: int = 1
    ) -> None:
        """Create a schedule with all lanes open. `clock` returns monotonic seconds.

        At most `most_in_flight` requests may be in flight, one per lane.
        """
        self._policy, self.clock = policy, clock
        self._places = Places(most_in_flight)
        self._target = _Level(policy, _TARGET_PROBES)
        self._lanes: dict[str, _Lane] = {}
        self._tries: dict[str, _Tries] = {}
        self._passes = 0
        self._accepted_last = ""
        """The lane of the request that was accepted last."""
        self.answers = 0
        """The number of requests that the target accepted or permanently refused."""
        self._pressed_at = _ANY_LATER_TIME
        self._is_relieved = True
        self.releases = 0
        """A counter, incremented whenever batches that were held back may be tried immediately."""

    def request_room(self) -> None:
        """Request room in the spool, from any thread.

        For `_PRESSED_S` seconds, a lane that fails while other lanes are accepted is given up,
        because a full spool would stop all lanes.
        """
        self._pressed_at, self._is_relieved = self.clock(), False

    def relieve(self) -> None:
        """Open the lanes that can be given up, so that the next attempt gives up their batches."""
        if self._is_relieved:
            return
        self._is_relieved = True
        now = self.clock()
        for lane, state in self._lanes.items():
            if self._is_given_up(state, now):
                state.opens = _ANY_LATER_TIME
                self._release(lane)

    @property
    def has_passed(self) -> bool:
        """Whether the target has accepted a request."""
        return self._passes > 0

    @property
    def failing(self) -> int:
        """The number of batches that failed and remain to be sent."""
        return len(self._tries)

    def opens(self, lane: str) -> float:
        """Return when the batches of a lane that have not failed may be tried next.

        It is infinite if a request in flight must end first.
        """
        state = self._lanes.get(lane)
        is_failing = state is not None and state.has_failed
        if not self._places.is_free(
            lane, is_failing=is_failing, is_target_closed=self._target.is_closed
        ):
            return float("inf")
        return self._target.opens if state is None else max(self._target.opens, state.opens)

    def started(self, lane: str) -> None:
        """Record that a request of a lane is in flight."""
        self._places.occupy(lane, is_failing=self.has_failed(lane))

    def ended(self, lane: str, started: float) -> None:
        """Record that the request of a lane, in flight since `started`, has ended."""
        self._places.leave(lane, self.clock() - started)

    def wants_head(self, lane: str) -> bool:
        """Whether the lane's first batch is tried next, even if it failed before.

        This is the case when a closed lane opens again, so that an outage hardly affects the order.
        """
        state = self._lanes.get(lane)
        return state is not None and state.wants_head

    def has_failed(self, lane: str) -> bool:
        """Whether the latest attempt at a lane failed."""
        state = self._lanes.get(lane)
        return state is not None and state.has_failed

    def held_until(self, name: str) -> float:
        """Return the time of a batch's next attempt, regardless of its lane."""
        tries = self._tries.get(name)
        return _ANY_LATER_TIME if tries is None else tries.opens

    def is_alone(self, name: str) -> bool:
        """Whether to send a batch in a separate request, because it may be at fault."""
        tries = self._tries.get(name)
        return tries is not None and tries.is_alone

    def tries(self, name: str) -> int:
        """Return how often a batch has failed."""
        tries = self._tries.get(name)
        return 0 if tries is None else tries.count

    # --- the results of attempts ----------------------------------------------------------------

    def passed(self, lane: str, names: Sequence[str]) -> None:
        """Record that the target accepted batches."""
        self._passes += 1
        self._accepted_last = lane
        state = self._lanes.get(lane)
        if state is not None:
            state.passes += 1
        self.answered(lane, names)

    def answered(self, lane: str, names: Sequence[str]) -> None:
        """Record the target's final answer to batches: acceptance or permanent refusal."""
        self.answers += 1
        self.forget(names)
        if self._target.is_closed:
            for other, each in self._lanes.items():
                if each.kind in OF_TARGET:
                    self._open(other, each)
        self._target.passed()
        state = self._lanes.get(lane)
        if state is not None:
            self._open(lane, state)
            self._drop(lane, state)

    def _open(self, lane: str, found: _Lane) -> None:
        if found.is_closed or found.grouped:
            self._release(lane, only_grouped=not found.is_closed)
        found.passed()
        found.failing_since = None
        found.grouped = 0

    def _release(self, lane: str, *, only_grouped: bool = False) -> None:
        """Allow failed batches of a lane to be tried immediately.

        By default, this applies to all of them: in an outage, no batch was at fault.
        With `only_grouped`, it applies only to batches that failed in a group; each is then sent
        alone.
        """
        self.releases += 1
        for tries in self._tries.values():
            if tries.lane == lane and not (only_grouped and tries.is_alone):
                tries.opens = _ANY_LATER_TIME
                tries.is_alone |= only_grouped

    def failed(
        self, lane: str, names: Sequence[str], error: Exception, started: float | None = None
    ) -> bool:
        """Record a failed attempt; return whether to give up its only batch.

        `started` is the time at which the attempt started, by default now.
        """
        now, kind = self.clock(), kind_of(error)
        since = now if started is None else started
        state = self._lane(lane)
        state.kind = kind
        if state.failing_since is None:
            state.failing_since, state.target_passes = now, self._passes
        is_new = not any(name in self._tries for name in names)
        is_new_lane = not state.has_failed
        most = max(self.tries(name) for name in names)
        opens = now + wait_after(self._policy, most, error)
        for name in names:
            self._note(name, lane, state, opens, is_group=len(names) > 1)
        if len(names) == 1 and self._is_hopeless(names[0], state, now):
            return True
        is_limit = kind is FailureKind.RATE_LIMIT
        state.failed(now, error, is_new=is_new, closes=is_limit, started=since)
        if kind in OF_TARGET and (is_new_lane or self._target.is_closed):
            self._target.failed(now, error, is_new=is_new_lane, closes=False, started=since)
        return False

    def held(self, lane: str, name: str, error: Exception) -> bool:
        """Record that a local error prevents sending a batch; return whether to give it up."""
        opens = self.clock() + wait_after(self._policy, self.tries(name), error)
        self._note(name, lane, self._lane(lane), opens, is_group=False)
        return self._tries[name].count >= _MOST_TRIES

    def _lane(self, lane: str) -> _Lane:
        state = self._lanes.get(lane)
        if state is None:
            state = self._lanes[lane] = _Lane(self._policy)
            self._forget_lanes()
        return state

    def _note(self, name: str, lane: str, found: _Lane, opens: float, *, is_group: bool) -> None:
        tries = self._tries.get(name)
        if tries is None:
            tries = self._tries[name] = _Tries(lane, 0, 0.0, found.passes)
            found.waiting += 1
        tries.blamed += found.passes > tries.lane_passes
        tries.lane_passes = found.passes
        tries.opens = opens
        tries.count += 1
        tries.is_alone = not is_group or bool(tries.blamed) or tries.count >= _MOST_GROUP_TRIES
        found.grouped += not tries.is_alone

    def _is_hopeless(self, name: str, found: _Lane, now: float) -> bool:
        if self._is_given_up(found, now):
            return True
        most = _MOST_FINAL_TRIES if found.kind is FailureKind.FINAL else _MOST_TRIES
        return found.kind is not FailureKind.RATE_LIMIT and self._tries[name].blamed >= most

    def _is_given_up(self, found: _Lane, now: float) -> bool:
        """Return whether to give up a lane, because it fails while other lanes are accepted.

        An earlier acceptance does not count once its lane, or the target, fails as well. Otherwise,
        the lane that happened to fail first would lose its batches in an outage.
        """
        if found.failing_since is None or found.target_passes == self._passes:
            return False
        if self._target.has_failed or self.has_failed(self._accepted_last):
            return False
        if now - self._pressed_at < _PRESSED_S:
            return True
        return now - found.failing_since > _PATIENCE_S.get(found.kind, float("inf"))

    def forget(self, names: Sequence[str]) -> None:
        """Forget batches that need no further attempt."""
        for name in names:
            tries = self._tries.pop(name, None)
            if tries is not None:
                state = self._lanes[tries.lane]
                state.waiting -= 1
                self._drop(tries.lane, state)

    def _drop(self, lane: str, found: _Lane) -> None:
        if not found.waiting and not found.has_failed:
            self._lanes.pop(lane, None)

    def _forget_lanes(self) -> None:
        if len(self._lanes) > 2 * _MOST_LANES:
            idle = [lane for lane, state in self._lanes.items() if not state.waiting]
            for lane in idle[:-_MOST_LANES]:
                del self._lanes[lane]

    def shorten_waits(self) -> None:
        """Shorten all waits to what the target asked for, and restart with short waits."""
        self._target.shorten_waits()
        for state in self._lanes.values():
            state.shorten_waits()
        for tries in self._tries.values():
            tries.opens = _ANY_LATER_TIME
        self.releases += 1
