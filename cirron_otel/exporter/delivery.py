"""Delivery of an owner's sealed batches to one target, on a thread of its own, from the spool.

The spool is the queue: what is sealed is read back from there, sent in order, and noted in the
cursor when the target has it. So a target that is away costs no memory, and what a process could
not send the next one does. Delivery is at least once: a request whose answer was lost is sent
again, with the same ids.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value

from ..spool.blobs import BlobKey
from ..spool.dead_letters import DeadLetters
from ..spool.owner import Owner
from ..spool.paths import SpoolPaths
from .attempt import attempt, attempt_upload
from .backlog import MOST_NAMES, Backlog
from .batch_queue import BatchQueue
from .batch_target import BatchTarget, BlobSink, SealedBatch, lanes_of
from .blob_gates import BlobGates
from .blobs import named_blobs
from .errors import StoppedError
from .leftovers import Leftovers
from .pace import Gate, Pace
from .resubmission import Resubmission
from .schedule import Schedule
from .tally import Tally

_GRACE_S = 0.5


class Delivery:
    """Sends the batches of `owner` in the spool at `paths` to `target`; start, notify, finish.

    It holds the lease of (target, owner) while it runs. What owners left that died, and that was to
    go to the same target, is claimed and sent behind its own. Nothing that it does raises out of
    its thread: what goes wrong is logged at WARNING, once a cause, counted, and tried again.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        owner: Owner,
        target: BatchTarget,
        *,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        most_names: int = MOST_NAMES,
        letters: DeadLetters | None = None,
    ) -> None:
        """Keep the arguments; `start` begins to send.

        `clock` returns seconds, and never goes back. Up to `most_names` batches are remembered by
        name. `letters` are the target's dead letters.
        """
        self._paths, self._prefix, self._target = paths, owner.prefix, target
        self._pace, self._clock, self._most_names = pace or Pace(), clock, most_names
        self._schedule = Schedule(self._pace, clock)
        self._letters = letters or DeadLetters(paths, target.key, target.shown)
        self._resubmission = Resubmission(paths, target, self._schedule, self._letters)
        self._pid = os.getpid()
        # Re-entrant: a signal handler that ends the process may hit a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._noted: deque[str] = deque()
        self._unnoted = 0
        """Own batches that there was no room to note; the directory has them."""
        self._is_scan_due = False
        self._sealed = self._done = 0
        """Own batches that were notified, and those that need nothing more."""
        self._evicted = 0
        """Own batches that left the spool before they were sent."""
        self._is_idle = False
        """Whether the thread waits, so that a new batch has to wake it."""
        self._is_hurried = False
        self._is_stopped = False
        self._deadline: float | None = None
        """When `finish` gives up; None before it is called."""
        self._own: Backlog | None = None
        self._leftovers = Leftovers(paths, target.key, owner.prefix, self._claim)
        self._own_gate = Gate(self._pace, clock)
        """Closed for a while after a local error, such as a full disk."""
        self._blob_gates = BlobGates(self._pace, clock)
        self._sweep_at = clock()
        self._tally = Tally()
        self._thread = threading.Thread(
            target=self._run, name=f"cirron-otel-export-{target.shown[:40]}", daemon=True
        )

    def start(self) -> None:
        """Take the lease and start the thread; to be called once, before a batch is sealed.

        Raises RuntimeError where no thread can be started.
        """
        self._attempt(self._claim_own)
        self._thread.start()

    def notify(self, name: str) -> None:
        """Say, once, that a batch of the owner was sealed; from any thread, and cheap."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._sealed += 1
            # Behind one that was not noted none is, so that the order is kept.
            if len(self._noted) < self._most_names and not self._unnoted:
                self._noted.append(name)
            else:
                self._unnoted += 1
            if self._is_idle:
                self._changed.notify_all()

    def look_again(self) -> None:
        """Look now for what dead owners left: a recovery has written some of it."""
        with self._changed:
            self._leftovers.are_more = True
            self._sweep_at = self._clock()
            self._changed.notify_all()

    def press(self) -> None:
        """Request room in the spool, from any thread; see `Schedule.press`."""
        self._schedule.press()
        with self._changed:
            self._changed.notify_all()

    def hurry(self, timeout: float) -> None:
        """Say that `finish` comes, and give up in `timeout` seconds; it does not wait."""
        if os.getpid() == self._pid:
            with self._changed:
                self._deadline = self._clock() + timeout
                self._changed.notify_all()

    def finish(self, timeout: float) -> bool:
        """Send what is left, for `timeout` seconds at most; whether the target has all of it.

        The thread ends: what is not sent by then stays for the next process. A request that is
        under way when the time is up is broken off where that can be done, else left alone. It
        returns early where the target asked to wait for longer than that.
        """
        if os.getpid() != self._pid:
            return False
        self.hurry(timeout)
        if self._thread.is_alive():
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._is_stopped = True
                self._target.interrupt()
                self._thread.join(_GRACE_S)
        return self._is_own_done()

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's, without a word to it or the server."""
        self._is_stopped = True
        for backlog in self._held():
            backlog.abandon()
        self._target.abandon()

    def stats(self) -> dict[str, Any]:
        """Where it stands: `target`, the counts of Tally, `waiting` batches and `waiting_blobs`.

        `waiting` holds what was claimed of dead owners, too. Nothing in it is secret. It takes no
        lock: while something goes on, the counts may be of different moments.
        """
        backlogs = self._held()
        counts = self._tally.counts()
        noted = len(self._noted) + self._unnoted
        counts["evicted"] += self._evicted
        return {
            "target": self._target.shown,
            **counts,
            "waiting": noted + sum(backlog.waiting for backlog in backlogs),
            "waiting_blobs": sum(len(backlog.blobs) for backlog in backlogs),
            "is_running": self._thread.is_alive(),
        }

    def _is_own_done(self) -> bool:
        own = self._own
        return own is not None and not (
            own.waiting or len(own.blobs) or self._noted or self._unnoted or self._is_scan_due
        )

    def _run(self) -> None:
        # Else an instrumented HTTP client would record each request here as a span of the program,
        # whose batch would be one more to send.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        while not self._is_stopped:
            try:
                if self._is_over():
                    break
                has_more = self._attempt(self._turn)
                self._count_evicted()
                if not has_more and not self._is_over():
                    self._pause()
            except Exception as error:  # a mistake of ours: slowly on, and not silently
                self._tally.failed(error, self._target.shown)
                if self._deadline is not None:
                    break
                time.sleep(_GRACE_S)
        for backlog in self._held():
            self._attempt(backlog.release)
        self._attempt(self._target.close)

    def _count_evicted(self) -> None:
        """Update `_evicted`: the notified batches that are neither done nor waiting.

        Only the delivery's thread calls this, and between two turns: within a turn, a batch may be
        counted in none of the three.
        """
        with self._changed:
            noted = len(self._noted) + self._unnoted
            waiting = noted + (self._own.waiting if self._own else 0)
            self._evicted = max(self._evicted, self._sealed - self._done - waiting)

    def _attempt(self, what: Callable[[], object]) -> bool:
        """Do something, whatever comes of it: what it gives, False where it failed."""
        try:
            return bool(what())
        except StoppedError:
            return False
        except Exception as error:  # the thread must go on, and nobody else would hear of it
            self._tally.failed(error, self._target.shown)
            self._own_gate.failed(error)
            return False

    def _is_over(self) -> bool:
        if self._is_stopped or self._deadline is None:
            return self._is_stopped
        if not self._is_hurried:
            self._is_hurried = self._is_scan_due = True  # some batch may never have been notified
            self._own_gate.hurry()
            self._schedule.hurry()
            self._blob_gates.hurry()
            for backlog in self._backlogs():
                backlog.blobs.look_again(float("inf"))
        if self._is_own_done() or self._clock() >= self._deadline:
            return True
        return self._next() > self._deadline

    def _held(self) -> list[Backlog]:
        """Its own backlog, and those that were claimed of dead owners."""
        own, claimed = self._own, list(self._leftovers.claimed.values())
        return claimed if own is None else [own, *claimed]

    def _backlogs(self) -> list[Backlog]:
        """Whose turn it is: its own first, and behind `finish` only that."""
        if self._deadline is None:
            return self._held()
        return [self._own] if self._own is not None else []

    def _has_noted(self) -> bool:
        """Whether `_take_noted` has something to do."""
        own = self._own
        if own is None:
            return False
        if self._noted:
            return own.waiting < self._most_names
        return not own.waiting and bool(self._unnoted or self._is_scan_due)

    def _next(self) -> float:
        """When the next thing is to be done, as far as that is known now."""
        times = [max(backlog.opens, self._own_gate.opens) for backlog in self._backlogs()]
        if self._has_noted():
            times.append(self._own_gate.opens)
        if self._target.blobs:
            queues = [backlog.blobs for backlog in self._backlogs()]
            times.append(self._blob_gates.opens(queues))
            if self._deadline is None:
                times += [queue.looks_again() for queue in queues]
        if self._own is None or self._deadline is None:
            times.append(self._sweep_at)
        if self._own is not None and self._deadline is None:
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

    def _turn(self) -> bool:
        """Do the next thing; False where there is nothing to be done now."""
        if self._clock() >= self._sweep_at and (self._deadline is None or self._own is None):
            self._sweep_at = self._clock() + self._pace.sweep
            if self._own is None:
                self._claim_own()
            if self._deadline is None:
                self._leftovers.sweep()
        if self._own is not None and self._deadline is None:
            self._resubmission.run(partial(self._resent, self._own))
        self._take_noted()
        self._schedule.relieve()
        if self._own_gate.is_open:
            for backlog in self._backlogs():
                if backlog.opens <= self._clock():
                    return self._send(backlog)
        if self._target.blobs is not None:
            for backlog in self._backlogs():
                if self._deadline is None:
                    backlog.blobs.look_again(self._clock())
                key = self._blob_gates.first(backlog.blobs)
                if key is not None:
                    return self._upload(backlog, self._target.blobs, key)
        return False

    def _claim(self, owner: str) -> Backlog | None:
        return Backlog.claim(
            self._paths,
            self._target.key,
            owner,
            lambda e: self._tally.failed(e, self._target.shown),
            BatchQueue(self._schedule, lanes_of(self._target)),
            most_names=self._most_names,
            letters=self._letters,
        )

    def _claim_own(self) -> None:
        backlog = self._claim(self._prefix)
        if backlog is not None and self._thread.ident is not None:
            self._is_scan_due = True  # somebody had the lease for a while: see what is left
        self._own = backlog

    def _take_noted(self) -> None:
        """Put what was noted into the backlog, or, where that was too much, what is there."""
        own = self._own
        if own is None:
            return
        with self._changed:
            room = min(self._most_names - own.waiting, len(self._noted))
            names = [self._noted.popleft() for _ in range(room)]
            own.take(names)
            if own.waiting or not (self._unnoted or self._is_scan_due):
                return
            seen, self._is_scan_due = self._unnoted, False
        left = own.scan()
        with self._changed:
            self._unnoted += left - seen

    def _send(self, backlog: Backlog) -> bool:
        if not self._is_held(backlog):
            return True
        group = backlog.group(self._target.request_bytes)
        if backlog is not self._own:
            self._tally.evicted += len(backlog.evicted)
        backlog.evicted.clear()
        self._tally.refused += len(backlog.unreadable)
        self._done += len(backlog.unreadable) if backlog is self._own else 0
        backlog.unreadable.clear()
        if group:
            self._try(backlog, group)
        self._settle(backlog)
        return True

    def _try(self, backlog: Backlog, group: list[SealedBatch]) -> None:
        shown = self._target.shown
        result = attempt(self._target, self._schedule, backlog, group)
        if result.failure is not None:
            self._tally.failed(result.failure, shown)
            return
        self._own_gate.passed()
        if result.refusal is not None:
            self._tally.failed(result.refusal, shown)
            self._refuse(backlog, group[0], str(result.refusal))
        elif result.receipt is not None:
            self._tally.succeeded()
            self._tally.sent_batches += len(group)
            self._tally.sent_bytes += sum(len(batch.data) for batch in group)
            self._tally.rejected_spans += result.receipt.rejected_spans
            self._tally.noted(result.receipt.message, shown)
            self._done += len(group) if backlog is self._own else 0
            self._acknowledge(backlog, *group)

    def _refuse(self, backlog: Backlog, batch: SealedBatch, reason: str) -> None:
        before = backlog.waiting
        try:
            backlog.refuse(batch, reason)
        finally:
            # A batch that cannot be kept as a dead letter still waits.
            refused = before - backlog.waiting
            self._tally.refused += refused
            self._done += refused if backlog is self._own else 0

    def _resent(self, own: Backlog, batch: SealedBatch) -> None:
        """Note that the target accepted a dead letter, which may wait in the backlog, too."""
        before = own.waiting
        try:
            self._acknowledge(own, batch)
        finally:
            self._done += before - own.waiting

    def _acknowledge(self, backlog: Backlog, *group: SealedBatch) -> None:
        sink = self._target.blobs
        blobs_of = named_blobs if sink is None else sink.keys_of
        backlog.acknowledge(group, with_blobs=sink is not None, blobs_of=blobs_of)

    def _upload(self, backlog: Backlog, sink: BlobSink, key: BlobKey) -> bool:
        if not self._is_held(backlog):
            return True
        result = attempt_upload(sink, self._paths.snapshots, key)
        if result.is_missing:
            return self._await_file(backlog, key)
        error = result.failure or result.refusal
        if error is not None:
            self._tally.failed(error, self._target.shown)
        if result.failure is not None:
            self._blob_gates.failed(key, result.failure)
            backlog.blobs.put_back(key)
            return True
        if result.refusal is not None:
            self._tally.lost_blobs += 1
        else:
            self._tally.succeeded()
            self._tally.sent_blobs += result.is_done
        self._blob_gates.passed(key)
        if result.is_done:
            backlog.finish_blob(key)
            self._settle(backlog)
        return True

    def _await_file(self, backlog: Backlog, key: BlobKey) -> bool:
        given_up = backlog.blobs.await_file(key, self._clock())
        if given_up is not None:
            text = f"{given_up.directory}/{given_up.file} is given up: too many files never came"
            self._tally.failed(FileNotFoundError(text), self._target.shown)
            self._tally.lost_blobs += 1
            backlog.finish_blob(given_up)
        return True

    def _is_held(self, backlog: Backlog) -> bool:
        """Whether a backlog still is ours to send; else it is let go of."""
        if backlog.is_held():
            return True
        backlog.abandon()
        if backlog is self._own:
            self._own = None
        else:
            self._leftovers.claimed.pop(backlog.owner, None)
        return False

    def _settle(self, backlog: Backlog) -> None:
        """Let go of what was claimed of a dead owner, once all of it is sent."""
        if backlog is not self._own and self._leftovers.settle(backlog):
            self._sweep_at = self._clock()
