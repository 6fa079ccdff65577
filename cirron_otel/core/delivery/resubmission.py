"""Another attempt at a target's dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ..spool.dead_letters import DeadLetters
from ..spool.lease import claim
from ..spool.paths import SpoolPaths
from .attempts import Attempt, outcome_of, reason_of
from .batch_target import BatchTarget, Receipt, SealedBatch, forget_of, lanes_of
from .delivery_stats import DeliveryStats
from .errors import RefusedError
from .schedule import Schedule

_BUDGET_S = 0.5
"""How long to send dead letters, in seconds, before other batches are sent."""

OnSent = Callable[[SealedBatch, Receipt], None]
"""Receives a dead letter that the target accepted, and the target's receipt."""


class Resubmission:
    """Resends a target's dead letters when `spool dead-letters retry` requests it.

    Only one thread may use it.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        target: BatchTarget,
        schedule: Schedule,
        letters: DeadLetters,
        stats: DeliveryStats,
    ) -> None:
        """`letters` are the target's dead letters; `schedule` also applies to its other batches."""
        self._paths, self._target, self._stats = paths, target, stats
        self._schedule, self._letters = schedule, letters
        self.every_s = 5.0
        """The time between two checks for requests, in seconds."""
        self.due_at = float("-inf")
        """The time of the next check, measured by `time.monotonic`."""
        self._last = ""
        """The last name that the current round has reached; empty between rounds."""

    def run(self, on_sent: OnSent) -> bool:
        """Try each requested dead letter once; call `on_sent` for each one that the target accepts.

        Returns whether some of them are left for the next call, so that other batches can be sent
        first.
        A later call retries dead letters that failed. Raises StoppedError and TargetError.
        """
        now = time.monotonic()
        if now < self.due_at:
            return False
        self.due_at = now + self.every_s
        names = [name for name in self._letters.requested() if name > self._last]
        self._last = ""
        if not names or (lease := claim(self._paths, f"dead letters {self._target.key}")) is None:
            return False
        with lease:
            for name in names:
                if self._last and time.monotonic() >= now + _BUDGET_S:
                    self.due_at = now
                    return True
                self._last = name
                lane = lanes_of(self._target)(name)
                if self._schedule.opens(lane) <= self._schedule.clock():
                    self._try(name, lane, on_sent)
        self._last = ""
        return False

    def _try(self, name: str, lane: str, on_sent: OnSent) -> None:
        try:
            batch = SealedBatch(name, self._letters.read(name))
        except FileNotFoundError:
            self._letters.remove(name)
            self._stats.reject(forget_of(self._target)(name))
            return
        except OSError:
            return
        attempt = Attempt(lane, [batch], self._schedule.clock())
        attempt.run(partial(self._target.send, [batch]))
        result = outcome_of(self._schedule, attempt)
        if result.receipt is not None:
            on_sent(batch, result.receipt)
            self._letters.remove(name)
        elif isinstance(result.refusal, RefusedError):
            self._letters.put(name, batch.data, reason_of(result.refusal))
            self._stats.reject(forget_of(self._target)(name))
        else:
            self._schedule.forget([name])
