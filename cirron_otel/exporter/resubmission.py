"""Trying dead letters once more, when that was asked for (`spool dead-letters retry`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ..spool.dead_letters import DeadLetters
from ..spool.lease import claim
from ..spool.paths import SpoolPaths
from .batch_target import Receipt, RefusedError, SealedBatch, StoppedError, lanes_of
from .schedule import Schedule


class Sender(Protocol):
    """What is needed of a BatchTarget."""

    @property
    def key(self) -> str:
        """What tells it from other targets."""

    def send(self, batches: list[SealedBatch]) -> Receipt:
        """Send batches, all or none of them, once."""


class Resubmission:
    """Looks now and then for what is to be tried once more at one target; for one thread."""

    def __init__(
        self, paths: SpoolPaths, target: Sender, schedule: Schedule, letters: DeadLetters
    ) -> None:
        """Nothing is looked for yet."""
        self._paths, self._target = paths, target
        self._schedule, self._letters = schedule, letters
        self.every_s = 5.0
        """How often it looks."""
        self.due_at = float("-inf")
        """When it looks next, by `time.monotonic`."""

    def run(self, on_sent: Callable[[SealedBatch], None]) -> None:
        """Try what was asked for, each once; `on_sent` is given what the target took.

        What fails for now is tried again by a later call. Raises StoppedError and TargetError.
        """
        now = time.monotonic()
        if now < self.due_at:
            return
        self.due_at = now + self.every_s
        names = self._letters.requested()
        if not names or (lease := claim(self._paths, f"dead letters {self._target.key}")) is None:
            return
        with lease:
            for name in names:
                lane = lanes_of(self._target)(name)
                if self._schedule.opens(lane) <= self._schedule.clock():
                    self._try(name, lane, on_sent)

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
