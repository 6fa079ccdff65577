"""The delivery engine: claim batches, group them, send each group, and acknowledge or retry it.

The spool is the queue. Sealed batches are read from it in order, and recorded in a cursor once the
target has accepted them. So an unavailable target costs no memory, and another process can send the
batches that this process could not send. Delivery is at least once: if a response is lost, the
request is sent again with the same ids.

The engine has two drivers: `Delivery` has its own thread, and `ForegroundDelivery` works while its
caller waits. Only the driver's thread uses the queues, the schedule and the cursors. If the target
allows several requests in flight, other threads send them, and the driver's thread handles their
answers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

from ...errors import CirronOtelError, TargetError
from ..records.problems import ReadingProblem
from ..spool.blobs import BlobKey
from ..spool.dead_letters import DeadLetters
from ..spool.paths import SpoolPaths
from .attempts import Attempt, Senders, outcome_of, reason_of
from .backlog import MOST_NAMES, Backlog
from .batch_queue import BatchQueue
from .batch_target import (
    BatchTarget,
    SealedBatch,
    forget_of,
    lanes_of,
    most_in_flight_of,
)
from .blobs import BlobGates, named_blobs
from .delivery_stats import DeliveryStats
from .errors import RefusedError, StoppedError, WithheldError
from .resubmission import Resubmission
from .retry_policy import RetryPolicy
from .schedule import Schedule


class DeliveryEngine:
    """Sends the batches of a spool to one target; it claims a lease for each owner's batches.

    A driver decides which owners to claim and which batches to queue, and calls `send_group` and
    `upload_part` until nothing is left. Only one thread may use the engine.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        target: BatchTarget,
        stats: DeliveryStats,
        *,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        most_names: int = MOST_NAMES,
        letters: DeadLetters | None = None,
    ) -> None:
        """Prepare the engine, without claiming anything.

        `clock` returns seconds and never goes back. At most `most_names` batches per owner are
        queued by name. `letters` are the target's dead letters.
        """
        self.backlogs: dict[str, Backlog] = {}
        """The claimed backlogs, by owner. Other threads may copy the dict."""
        self._paths, self._target, self._stats = paths, target, stats
        self._policy, self._clock, self._most_names = policy or RetryPolicy(), clock, most_names
        most = most_in_flight_of(target)
        self._schedule = Schedule(self._policy, clock, most)
        self._requests = Senders(f"cirron-otel-send-{target.shown[:40]}", self._answered)
        """The requests in flight."""
        self._is_parallel = most > 1
        self._letters = letters or DeadLetters(paths, target.key, target.shown)
        self._resubmission = Resubmission(paths, target, self._schedule, self._letters, stats)
        self._forget = forget_of(target)
        self._blob_gates = BlobGates(self._policy, clock)

    # --- the decisions of the driver ------------------------------------------------------------

    def _failed(self, _name: str, error: Exception) -> None:
        """Handle a failed attempt to send a batch or a snapshot file, which will be retried."""
        self._stats.failed(error)

    def _had_trouble(self, error: Exception) -> None:
        """Handle a local error that delays one batch, or a damaged state file (now set aside)."""
        self._stats.failed(error)

    def _could_not_keep(self, error: TargetError) -> None:
        """Handle an error that prevents keeping a refused batch as a dead letter."""
        raise error

    def _was_answered(self, *, is_accepted: bool) -> None:
        """Handle the target's final answer to a group: acceptance or permanent refusal."""

    def _lost(self, backlog: Backlog) -> None:
        """Handle a backlog whose lease another process has taken."""

    def _answered(self) -> None:
        """Handle the end of a request in flight, on the thread that sent it."""

    # --- claim ----------------------------------------------------------------------------------

    def claim(self, owner: str) -> Backlog | None:
        """Claim the backlog of an owner; return None if another process has claimed it.

        Raises TargetError if `state/` cannot be written.
        """
        backlog = self.backlogs.get(owner)
        if backlog is not None and self._is_held(backlog):
            return backlog
        backlog = Backlog.claim(
            self._paths,
            self._target.key,
            owner,
            self._had_trouble,
            BatchQueue(self._schedule, lanes_of(self._target)),
            most_names=self._most_names,
            letters=self._letters,
        )
        if backlog is not None:
            self.backlogs[owner] = backlog
        return backlog

    def release(self, owner: str) -> None:
        """Let other processes send the batches of an owner."""
        backlog = self.backlogs.pop(owner, None)
        if backlog is not None:
            backlog.release()

    def _is_held(self, backlog: Backlog) -> bool:
        """Return whether the lease of a backlog is still held; if not, drop the backlog."""
        if backlog.is_held():
            return True
        self.backlogs.pop(backlog.owner, None)
        for name in backlog.queue.names():  # the other process gets and counts all answers
            self._forget(name)
        self._lost(backlog)
        backlog.release()
        return False

    # --- group, send, acknowledge or retry ------------------------------------------------------

    def request_room(self) -> None:
        """Request room in the spool, from any thread; see `Schedule.request_room`."""
        self._schedule.request_room()

    def send_group(self, backlog: Backlog) -> bool:
        """Send the next group of a backlog, or start to send it (see `take_answers`).

        Returns False if no batch may be tried now, and True otherwise, even if the lease was lost.
        Raises StoppedError, TargetError if the result cannot be saved, and the driver's errors.
        """
        if not self._is_held(backlog):
            return True
        group = backlog.group(self._target.request_bytes)
        for name in backlog.evicted:
            self._stats.skip(ReadingProblem(name, "evicted", "gone before it could be sent"))
        for name in backlog.unreadable:
            self._stats.skip(
                ReadingProblem(name, "unreadable", "given up: its file cannot be read")
            )
        for name in (*backlog.evicted, *backlog.unreadable):
            self._stats.reject(self._forget(name))
        backlog.evicted.clear()
        backlog.unreadable.clear()
        if not group:
            return False
        attempt = Attempt(backlog.queue.lane(group[0].name), group, self._clock(), backlog)
        try:
            self._start(attempt)
        except BaseException:
            backlog.put_back(group)
            raise
        if not attempt.is_in_flight:
            self._finish(attempt)
        return True

    def _start(self, attempt: Attempt) -> None:
        """Send the batches of an attempt, or let another thread send them."""
        if not self._is_parallel:
            attempt.run(partial(self._target.send, attempt.batches))
            return
        try:
            send = self._target.prepared(attempt.batches)  # type: ignore[attr-defined]
        except Exception as error:  # for example, a batch is not valid
            attempt.error = error
            return
        self._requests.start(attempt, send)
        self._schedule.started(attempt.lane)

    def take_answers(self, timeout: float = 0.0) -> bool:
        """Handle the answers to requests in flight, after waiting for one for at most `timeout`.

        Returns whether there was any. Raises the errors of `send_group`.
        """
        has_any = False
        while (attempt := self._requests.next(0.0 if has_any else timeout)) is not None:
            has_any = True
            self._schedule.ended(attempt.lane, attempt.started)
            self._finish(attempt)
        return has_any

    def _abandon_requests(self, timeout: float) -> None:
        """Wait for the answers to requests in flight; requests without one count as not sent."""
        end = time.monotonic() + timeout
        while len(self._requests) and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(CirronOtelError):  # later calls handle the other answers
                self.take_answers(left)
        self._requests.close()

    def _finish(self, attempt: Attempt) -> None:
        """Acknowledge the batches of an attempt, put them back, or keep them as dead letters."""
        backlog, group = attempt.backlog, attempt.batches
        if backlog is None or self.backlogs.get(backlog.owner) is not backlog:
            for batch in group:  # the process that has the lease sends them again
                self._forget(batch.name)
            return
        if isinstance(attempt.error, WithheldError) and backlog.queue.move(
            batch.name for batch in group
        ):  # the failure of a lane that does not contain the batch any more
            backlog.put_back(group)
            return
        try:
            result = outcome_of(self._schedule, attempt)
        except BaseException:
            backlog.put_back(group)
            raise
        if result.receipt is None and result.refusal is None:
            backlog.put_back(group, singly=result.failure is None)
        if result.failure is not None:
            self._failed(group[0].name, result.failure)
        elif result.refusal is not None:
            self._was_answered(is_accepted=False)
            self._refuse(backlog, group[0], result.refusal)
        elif result.receipt is not None:
            self._was_answered(is_accepted=True)
            self._stats.sent(group, result.receipt)
            self._acknowledge(backlog, group)

    def _acknowledge(self, backlog: Backlog, group: Sequence[SealedBatch]) -> None:
        sink = self._target.blobs
        blobs_of = named_blobs if sink is None else sink.keys_of
        backlog.acknowledge(group, with_blobs=sink is not None, blobs_of=blobs_of)

    def _refuse(self, backlog: Backlog, batch: SealedBatch, refusal: Exception) -> None:
        """Keep a refused batch as a dead letter; if that fails, it waits for another attempt."""
        reason = reason_of(refusal)
        self._stats.failed(refusal)
        try:
            backlog.refuse(batch, reason)
        except TargetError as error:
            self._could_not_keep(error)
        finally:
            if batch.name not in backlog.queue:
                self._stats.skip(ReadingProblem(batch.name, "refused", reason))
                self._stats.reject(self._forget(batch.name))

    # --- snapshot files -------------------------------------------------------------------------

    def upload_part(self, backlog: Backlog) -> bool:
        """Send the next part of a snapshot file; return False if no file may be tried now."""
        sink = self._target.blobs
        key = None if sink is None else self._blob_gates.first(backlog.blobs)
        if sink is None or key is None:
            return False
        if not self._is_held(backlog):
            return True
        name = f"{key.directory}/{key.file}"
        try:
            is_done = sink.upload(self._paths.snapshots, key)
        except (FileNotFoundError, RefusedError) as error:
            if sink.awaits_files and isinstance(error, FileNotFoundError):
                self._await_file(backlog, key)
                return True
            self._stats.lose_blob(name, error)
            is_done = True
        except StoppedError:
            raise
        except Exception as error:  # other files and batches are still sent
            self._blob_gates.failed(key, error)
            backlog.blobs.put_back(key)
            self._failed(name, error)
            return True
        else:
            self._stats.succeeded()
            self._stats.sent_blobs += is_done
        self._blob_gates.passed(key)
        if is_done:
            backlog.finish_blob(key)
        return True

    def _await_file(self, backlog: Backlog, key: BlobKey) -> None:
        """Wait for a file that another client may still upload to the spool."""
        given_up = backlog.blobs.await_file(key, self._clock())
        if given_up is not None:
            name = f"{given_up.directory}/{given_up.file}"
            text = f"{name} is given up: too many files never came"
            self._stats.lose_blob(name, FileNotFoundError(text))
            backlog.finish_blob(given_up)
