"""The delivery engine on its own thread, in a recording process or a collector.

The thread sends the batches of one owner. Afterwards, it claims and sends the batches for the same
target that dead owners left behind.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value

from ..spool.dead_letters import DeadLetters
from ..spool.owner import Owner
from ..spool.paths import SpoolPaths
from .backlog import MOST_NAMES, Backlog
from .batch_target import BatchTarget, Receipt, SealedBatch
from .delivery_stats import DeliveryStats
from .engine import DeliveryEngine
from .errors import StoppedError
from .orphaned import OrphanedBacklogs
from .retry_policy import RetryGate, RetryPolicy

_GRACE_S = 0.5
"""How long to wait, in seconds, for requests that were cancelled."""
_MOST_TAKEN = 1_000
"""The maximum number of announced batches that are queued at once: `notify` and `stats` wait for
this."""


class Delivery(DeliveryEngine):
    """Sends the batches of `owner` in the spool at `paths` to `target`; see `start` and `finish`.

    It holds the lease of (target, owner) while it runs. Its thread never raises. After an error, it
    retries the operation; the error is counted and, once per cause, logged at WARNING.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        owner: Owner,
        target: BatchTarget,
        *,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        most_names: int = MOST_NAMES,
        most_noted: int | None = None,
        letters: DeadLetters | None = None,
        stats: DeliveryStats | None = None,
    ) -> None:
        """Prepare the delivery; `start` starts it. For the other arguments, see DeliveryEngine.

        Up to `most_noted` announced batches, by default `most_names`, are remembered by name until
        the queue has room for them. A scan of the directory finds the rest.
        """
        super().__init__(
            paths,
            target,
            stats or DeliveryStats(target.shown),
            policy=policy,
            clock=clock,
            most_names=most_names,
            letters=letters,
        )
        self._prefix = owner.prefix
        self._pid = os.getpid()
        # Re-entrant: a signal handler that ends the process may run in a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._noted: deque[str] = deque()
        self._most_noted = most_names if most_noted is None else most_noted
        self._unnoted = 0
        """The number of the owner's batches that were announced while `_noted` was full."""
        self._is_scan_due = False
        self._sealed = self._settled = 0
        """The number of the owner's batches that were announced, and the number that were settled
        before their lease was lost.
        """
        self._evicted = 0
        """The number of the owner's batches that left the spool before they were queued."""
        self._is_idle = False
        """Whether the thread is waiting, so that a new batch must wake it."""
        self._is_flushing = False
        self._is_stopped = False
        self._deadline: float | None = None
        """When to give up the flush; None until it is requested."""
        self._leftovers = OrphanedBacklogs(paths, target.key, owner.prefix, self)
        self._own_gate = RetryGate(self._policy, clock)
        """The gate of the owner's batches, closed after a local error such as a full disk."""
        self._sweep_at = clock()
        self._thread = threading.Thread(
            target=self._run, name=f"cirron-otel-export-{target.shown[:40]}", daemon=True
        )

    def start(self) -> None:
        """Take the lease and start the thread. Call this once, before the first batch is sealed.

        Raises RuntimeError if the thread cannot be started.
        """
        self._guarded(self._claim_own)
        self._thread.start()

    def notify(self, name: str) -> None:
        """Announce a batch that the owner sealed. Call this once per batch, from any thread."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._sealed += 1
            # Once a name has been skipped, skip all later ones too, to preserve order.
            if len(self._noted) < self._most_noted and not self._unnoted:
                self._noted.append(name)
            else:
                self._unnoted += 1
            if self._is_idle:
                self._changed.notify_all()

    def rescan(self) -> None:
        """Look for batches of dead owners now, because a recovery has written new ones."""
        with self._changed:
            self._leftovers.are_more = True
            self._sweep_at = self._clock()
            self._changed.notify_all()

    def request_room(self) -> None:
        """Request room in the spool, from any thread; see `Schedule.request_room`."""
        super().request_room()
        with self._changed:
            self._changed.notify_all()

    def request_flush(self, timeout: float) -> None:
        """Start the flush that `finish` completes, for `timeout` seconds. Returns immediately."""
        if os.getpid() == self._pid:
            with self._changed:
                self._deadline = self._clock() + timeout
                self._changed.notify_all()

    def finish(self, timeout: float) -> bool:
        """Send the remaining batches for at most `timeout` seconds; return whether all are sent.

        The thread ends, and the next process sends any unsent batches. At the deadline, a request
        in flight is cancelled if possible, and abandoned otherwise. The method returns early if the
        target asked for a wait beyond the deadline.
        """
        if os.getpid() != self._pid:
            return False
        self.request_flush(timeout)
        if self._thread.is_alive():
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._is_stopped = True
                self._target.interrupt()
                self._thread.join(_GRACE_S)
        return self._is_own_done()

    def abandon(self) -> None:
        """In a forked child: drop the parent's leases and connections, and send nothing."""
        self._is_stopped = True
        for backlog in self._held():
            backlog.abandon()
        self._target.abandon()

    def stats(self) -> dict[str, Any]:
        """Return `target`, the counts of DeliveryStats, `waiting` batches and `waiting_blobs`.

        `waiting` includes the claimed batches of dead owners, and announced batches while they move
        to the queue. During a scan of the directory, some may be counted twice. The result contains
        no secrets. While the thread works, the other counts may be from different moments.
        """
        counts = self._stats.counts()
        counts["evicted"] += self._evicted
        # The thread moves announced batches to the queue while it holds this lock. In a forked
        # child, a thread that does not exist there may hold it.
        is_own = os.getpid() == self._pid
        with self._changed if is_own else contextlib.nullcontext():
            backlogs = self._held()
            waiting = len(self._noted) + self._unnoted + sum(each.waiting for each in backlogs)
        return {
            "target": self._target.shown,
            **counts,
            "waiting": waiting,
            "waiting_blobs": sum(len(backlog.blobs) for backlog in backlogs),
            "is_running": self._thread.is_alive(),
        }

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        # Without this, an instrumented HTTP client would record each request as a span of the
        # program, whose batch would have to be sent as well.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        while not self._is_stopped:
            try:
                if self._is_over():
                    break
                has_more = self._guarded(self._turn)
                self._count_evicted()
                if not has_more and not self._is_over():
                    self._pause()
            except Exception as error:  # a bug: continue slowly, and report it
                self._stats.failed(error)
                if self._deadline is not None:
                    break
                time.sleep(_GRACE_S)
        if len(self._requests):
            self._target.interrupt()
        self._guarded(lambda: self._abandon_requests(_GRACE_S))
        for backlog in self._held():  # the backlogs stay in `backlogs`, for `finish` and `stats`
            self._guarded(backlog.release)
        self._guarded(self._target.close)

    def _guarded(self, action: Callable[[], object]) -> bool:
        """Run an action; return whether its result is true. Errors are recorded, not raised."""
        try:
            return bool(action())
        except StoppedError:
            return False
        except Exception as error:  # the thread must continue; no caller would see the error
            self._stats.failed(error)
            self._own_gate.failed(error)
            return False

    def _turn(self) -> bool:
        """Perform the next action; return False if there is nothing to do at the moment."""
        if self.take_answers():
            for backlog in self._held():
                self._settle(backlog)
            return True
        if self._clock() >= self._sweep_at and (self._deadline is None or self._own is None):
            self._sweep_at = self._clock() + self._policy.sweep
            if self._own is None:
                self._claim_own()
            if self._deadline is None:
                self._leftovers.sweep()
        if self._own is not None and self._deadline is None:
            self._resubmission.run(self._sent_again)
        self._take_noted()
        self._schedule.relieve()
        if self._own_gate.is_open:
            for backlog in self._backlogs():
                if backlog.queue.opens() <= self._clock():
                    self.send_group(backlog)
                    self._settle(backlog)
                    return True
        if self._target.blobs is not None:
            for backlog in self._backlogs():
                if self._deadline is None:
                    backlog.blobs.rescan(self._clock())
                if self.upload_part(backlog):
                    self._settle(backlog)
                    return True
        return False

    def _settle(self, backlog: Backlog) -> None:
        """Release the backlog of a dead owner if all of it has been sent."""
        is_orphaned = backlog.owner != self._prefix and backlog.owner in self.backlogs
        if is_orphaned and self._leftovers.settle(backlog):
            self._sweep_at = self._clock()

    def _sent_again(self, batch: SealedBatch, receipt: Receipt) -> None:
        """Acknowledge a dead letter that the target accepted: the backlog may contain it too."""
        self._stats.reject(receipt)
        if self._own is not None:
            self._acknowledge(self._own, [batch])

    # --- the owner's batches --------------------------------------------------------------------

    @property
    def _own(self) -> Backlog | None:
        return self.backlogs.get(self._prefix)

    def _claim_own(self) -> None:
        backlog = self.claim(self._prefix)
        if backlog is not None and self._thread.ident is not None:
            self._is_scan_due = True  # another process had the lease and may have left batches

    def _take_noted(self) -> None:
        """Queue the noted batches; scan the directory if some batches did not fit in `_noted`."""
        own_backlog = self._own
        if own_backlog is None:
            return
        with self._changed:
            room = min(self._most_names - own_backlog.waiting, len(self._noted), _MOST_TAKEN)
            names = [self._noted.popleft() for _ in range(room)]
            own_backlog.take(names)
            if own_backlog.waiting or self._noted or not (self._unnoted or self._is_scan_due):
                return
            unnoted, self._is_scan_due = self._unnoted, False
        left = own_backlog.scan()
        with self._changed:
            self._unnoted += left - unnoted

    def _count_evicted(self) -> None:
        """Update `_evicted`: the announced batches that are neither settled nor waiting.

        Only the delivery's thread calls this, between two turns. Within a turn, a batch may
        temporarily be neither noted, waiting nor settled.
        """
        own_backlog = self._own
        with self._changed:
            waiting = len(self._noted) + self._unnoted + (own_backlog.waiting if own_backlog else 0)
            settled = self._settled + (own_backlog.settled if own_backlog else 0)
            self._evicted = max(self._evicted, self._sealed - settled - waiting)

    def _is_own_done(self) -> bool:
        own_backlog = self._own
        return own_backlog is not None and not (
            own_backlog.waiting
            or len(own_backlog.blobs)
            or self._noted
            or self._unnoted
            or self._is_scan_due
        )

    # --- when to do the next thing --------------------------------------------------------------

    def _held(self) -> list[Backlog]:
        """Return the owner's backlog, followed by the backlogs claimed from dead owners."""
        own_backlog, claimed = self._own, self._leftovers.claimed.values()
        return [*claimed] if own_backlog is None else [own_backlog, *claimed]

    def _backlogs(self) -> list[Backlog]:
        """Return the backlogs to send, in order; after `request_flush`, only the owner's."""
        held = self._held()
        return held if self._deadline is None else [b for b in held if b.owner == self._prefix]

    def _is_over(self) -> bool:
        """Return whether the thread should end; shorten the waits once a flush is requested."""
        if self._is_stopped or self._deadline is None:
            return self._is_stopped
        if not self._is_flushing:
            self._is_flushing = self._is_scan_due = True  # some batches may not have been announced
            self._own_gate.shorten_waits()
            self._schedule.shorten_waits()
            self._blob_gates.shorten_waits()
            for backlog in self._backlogs():
                backlog.blobs.rescan(float("inf"))
        if self._is_own_done() or self._clock() >= self._deadline:
            return True
        if len(self._requests):
            return False
        return self._next() > self._deadline

    def _has_noted(self) -> bool:
        """Return whether `_take_noted` has something to do."""
        own_backlog = self._own
        if own_backlog is None:
            return False
        if self._noted:
            return own_backlog.waiting < self._most_names
        return not own_backlog.waiting and bool(self._unnoted or self._is_scan_due)

    def _next(self) -> float:
        """Return the time of the next known action."""
        if self._requests.has_answers:
            return float("-inf")
        backlogs, own_backlog = self._backlogs(), self._own
        times = [max(backlog.queue.opens(), self._own_gate.opens) for backlog in backlogs]
        if self._has_noted():
            times.append(self._own_gate.opens)
        if self._target.blobs:
            queues = [backlog.blobs for backlog in backlogs]
            times.append(self._blob_gates.opens(queues))
            if self._deadline is None:
                times += [queue.rescan_at() for queue in queues]
        if own_backlog is None or self._deadline is None:
            times.append(self._sweep_at)
        if own_backlog is not None and self._deadline is None:
            times.append(self._resubmission.due_at)
        return min(times, default=float("inf"))

    def _pause(self) -> None:
        """Wait until there is something to do."""
        with self._changed:
            was_finishing = self._deadline is not None
            while not self._is_stopped and was_finishing == (self._deadline is not None):
                until = self._next() if self._deadline is None else self._deadline
                left = min(until, self._next()) - self._clock()
                if left <= 0:
                    return
                self._is_idle = True
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
                self._is_idle = False

    # --- the decisions of the driver ------------------------------------------------------------

    def _answered(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _was_answered(self, *, is_accepted: bool) -> None:
        del is_accepted
        self._own_gate.passed()

    def _lost(self, backlog: Backlog) -> None:
        self._settled += backlog.settled if backlog.owner == self._prefix else 0
