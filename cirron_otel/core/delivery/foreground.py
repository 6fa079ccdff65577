"""The delivery engine driven by its caller: `export --follow`, `spool flush` and OTLP exporters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from ...errors import CirronOtelError, EndpointError, TargetError
from ..spool.dead_letters import DeadLetters
from ..spool.paths import SpoolPaths
from .backlog import Backlog
from .batch_target import BatchTarget, Receipt, SealedBatch
from .delivery_stats import DeliveryStats
from .engine import DeliveryEngine
from .errors import MisconfiguredError, StoppedError, UnreachableError
from .retry_policy import Backoff, RetryPolicy

logger = logging.getLogger(__name__)

_MOST_NAMES = 10_000_000
"""The maximum number of batches in the queue by name. It exceeds the size of a spool: if the target
refuses the batches of some tenants, they stay in the queue, and any batch above the limit would
have to wait for them.
"""
_FOREVER = float("inf")
_POLL_S = 0.2
"""How long to wait for an answer, in seconds, before looking for other work."""


class ForegroundDelivery(DeliveryEngine):
    """Sends batches while its caller waits, in `send` or `finish`."""

    def __init__(
        self,
        paths: SpoolPaths,
        target: BatchTarget,
        stats: DeliveryStats,
        *,
        stop: threading.Event,
        patience: float | None,
        say: Callable[[str], None],
        backoff: Backoff | None = None,
        on_failure: Callable[[CirronOtelError], None] = lambda _: None,
        letters: DeadLetters | None = None,
    ) -> None:
        """Prepare the delivery, without claiming anything.

        `patience` is how long the target may be unavailable, in seconds; None means no limit. `say`
        receives messages for the user, and `on_failure` the failures that are retried. `letters`
        are the target's dead letters.
        """
        policy = RetryPolicy(backoff or Backoff())
        super().__init__(
            paths, target, stats, policy=policy, most_names=_MOST_NAMES, letters=letters
        )
        self.lost: set[str] = set()
        """Batches that were queued when another process took their lease; the caller clears it."""
        self._stop, self._say, self._on_failure = stop, say, on_failure
        self._patience = _FOREVER if patience is None else patience
        self._failure: EndpointError | None = None
        """The latest temporary failure."""
        self._give_up = _FOREVER
        """The time after which the target has been unavailable for too long."""
        self._keeps_trying = True
        """Whether to retry even if the target refuses everything, as it does for a wrong key."""
        self._has_named_others = False

    def claim(self, owner: str) -> Backlog | None:
        """Claim the backlog of an owner; return None if another process holds its lease.

        Raises TargetError if `state/` cannot be written.
        """
        backlog = super().claim(owner)
        if backlog is None and not self._has_named_others:
            self._has_named_others = True
            self._say("some batches are left to the processes that send them already")
        return backlog

    def close(self) -> None:
        """Release all backlogs, after the requests in flight have ended.

        The target limits the duration of each request. If a lease were released earlier, its next
        holder would send the batches of these requests a second time.
        """
        self._abandon_requests(threading.TIMEOUT_MAX)
        for owner in list(self.backlogs):
            self.release(owner)

    def take(self, backlog: Backlog, names: Iterable[str], *, are_first: bool = False) -> None:
        """Queue the batches of an owner, except batches that the target has already received.

        With `are_first`, they are placed ahead of the batches that are already queued.
        """
        if left := backlog.take(sorted(names), are_first=are_first):
            self._say(f"{left} batches are not queued until others are sent")

    def names(self) -> set[str]:
        """Return the names of the queued batches, from any thread."""
        return set().union(*(backlog.queue.names() for backlog in list(self.backlogs.values())))

    def send(self, seconds: float, *, tries_on: bool) -> bool:
        """Send the queued batches that are due, for about `seconds`.

        Returns whether more batches may be due. Requests may still be in flight then; see `wait`.
        Raises StoppedError and, without `tries_on`, MisconfiguredError if the target accepts
        nothing at all.
        """
        until = time.monotonic() + seconds
        self._keeps_trying, self._give_up = tries_on, _FOREVER
        self._schedule.relieve()
        self._resubmission.run(self._sent_again)
        while self._send_groups() or self.take_answers(_POLL_S):
            if time.monotonic() >= until:
                return True
        return False

    def wait(self, seconds: float) -> None:
        """Wait until a request in flight is answered or a stop is requested. Raises as `send`."""
        if len(self._requests):
            self.take_answers(seconds)
        else:
            self._stop.wait(seconds)

    def finish(self) -> None:
        """Send all queued batches, and retry as often as necessary.

        Raises UnreachableError if the target has accepted nothing for too long, MisconfiguredError
        if that is the latest failure and every remaining batch has failed, and StoppedError. In all
        cases, the cursors record the batches that the target has acknowledged.
        """
        while self._resubmission.run(self._sent_again):
            pass
        self._keeps_trying = True
        self._has_patience()
        while True:
            answers = self._schedule.answers
            if self._send_groups() or self.take_answers(_POLL_S):
                if self._schedule.answers > answers:
                    self._has_patience()
                self._check_misconfigured()
                continue
            if len(self._requests):
                continue
            opens = min((each.queue.opens() for each in self.backlogs.values()), default=_FOREVER)
            if opens == _FOREVER:
                return
            self._wait_until(opens)

    def upload(self, backlog: Backlog) -> int:
        """Send the snapshot files that acknowledged batches name, and return their number.

        Raises the errors of `finish`.
        """
        backlog.find_lost_blobs()
        before = self._stats.sent_blobs
        self._has_patience()
        while len(backlog.blobs):
            self._check_stop()
            failure, self._failure = self._failure, None
            if not self.upload_part(backlog):
                self._failure = failure
                self._wait_until(self._blob_gates.opens([backlog.blobs]))
            elif isinstance(self._failure, MisconfiguredError):
                raise self._failure
            elif self._failure is None:
                self._has_patience()
        return self._stats.sent_blobs - before

    def _send_groups(self) -> bool:
        """Send one group of each owner; return whether there was a group, or an answer."""
        was_any = self.take_answers()
        for backlog in list(self.backlogs.values()):
            self._check_stop()
            was_any |= self.send_group(backlog)
        return was_any

    def _has_patience(self) -> None:
        """Restart the period during which the target may be unavailable."""
        self._give_up = time.monotonic() + self._patience

    def _wait_until(self, opens: float) -> None:
        """Wait for the next attempt; raise the latest failure if that attempt would be too late."""
        if self._failure is not None and opens >= self._give_up:
            raise self._failure
        self._stop.wait(min(max(opens - time.monotonic(), 0.0), threading.TIMEOUT_MAX))

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedError(f"stopped before {self._target.shown} accepted everything")

    def _check_misconfigured(self) -> None:
        """Raise the latest MisconfiguredError if every remaining batch has failed."""
        waiting = sum(backlog.waiting for backlog in self.backlogs.values())
        if isinstance(self._failure, MisconfiguredError) and self._schedule.failing >= waiting:
            raise self._failure

    # --- the decisions of the driver ------------------------------------------------------------

    def _failed(self, name: str, error: Exception) -> None:
        """Raise an error that a retry cannot resolve; pass any other error to `on_failure`."""
        if not isinstance(error, EndpointError):
            if not isinstance(error, CirronOtelError):
                logger.error("the export to %s failed", self._target.shown, exc_info=error)
            error = UnreachableError(f"{self._target.shown} cannot be served: {error}")
        self._failure = error
        is_misconfigured = isinstance(error, MisconfiguredError)
        if is_misconfigured and not self._keeps_trying and not self._schedule.has_passed:
            raise error
        if not is_misconfigured and self._schedule.held_until(name) >= self._give_up:
            raise error
        self._on_failure(error)

    def _had_trouble(self, error: Exception) -> None:
        self._say(str(error))

    def _could_not_keep(self, error: TargetError) -> None:
        if not self._keeps_trying:
            raise error
        self._on_failure(error)

    def _was_answered(self, *, is_accepted: bool) -> None:
        if is_accepted:
            self._failure = None

    def _lost(self, backlog: Backlog) -> None:
        self.lost |= backlog.queue.names()

    def _sent_again(self, batch: SealedBatch, receipt: Receipt) -> None:
        """Count a dead letter that the target accepted."""
        self._stats.sent([batch], receipt)
