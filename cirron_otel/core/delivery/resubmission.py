"""New attempts to send dead letters, on request (`spool dead-letters retry`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..spool.dead_letters import DeadLetters
from ..spool.lease import claim
from ..spool.paths import SpoolPaths
from .batch_target import SealedBatch, Sender, lanes_of
from .errors import RefusedError, StoppedError
from .schedule import Schedule

_BUDGET_S = 0.5
"""The time, in seconds, after which other batches are sent."""


class Resubmission:
    """Sends the dead letters of one target for which a retry was requested; for one thread."""

    def __init__(
        self, paths: SpoolPaths, target: Sender, schedule: Schedule, letters: DeadLetters
    ) -> None:
        """`letters` are the dead letters of `target`; `schedule` is that of its other batches."""
        self._paths, self._target = paths, target
        self._schedule, self._letters = schedule, letters
        self.every_s = 5.0
        """The time between two checks for requests, seconds."""
        self.due_at = float("-inf")
        """The time of the next check, by `time.monotonic`."""
        self._last = ""
        """The last name that the current round has reached; empty between rounds."""

    def run(self, on_sent: Callable[[SealedBatch], None]) -> bool:
        """Try each requested dead letter once; call `on_sent` with each that the target accepts.

        Returns whether some are left for the next call, so that other batches are sent in between.
        A later call retries those that failed. Raises StoppedError and TargetError.
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

    def _try(self, name: str, lane: str, on_sent: Callable[[SealedBatch], None]) -> None:
        try:
            batch = SealedBatch(name, self._letters.read(name))
        except FileNotFoundError:
            self._letters.remove(name)
            return
        except OSError:
            return
        try:
            self._target.send([batch])
        except RefusedError as error:
            self._schedule.answered(lane, ())
            self._letters.put(name, batch.data, str(error))
        except StoppedError:
            raise
        except Exception as error:
            self._schedule.failed(lane, [name], error)
            self._schedule.forget([name])
        else:
            self._schedule.passed(lane, [name])
            on_sent(batch)
            self._letters.remove(name)
