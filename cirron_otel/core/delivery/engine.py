"""The delivery engine: claim batches, group them, send each group, and acknowledge or retry it.

The spool is the queue. Sealed batches are read from it in order, and recorded in a cursor once the
target has accepted them. So an unavailable target costs no memory, and another process can send the
batches that this process could not send. Delivery is at least once: if a response is lost, the
request is sent again with the same ids.

The engine has two drivers: `Delivery` has its own thread, and `ForegroundDelivery` works while its
caller waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...errors import TargetError
from ..records.problems import ReadingProblem
from ..spool.blobs import BlobKey
from ..spool.dead_letters import DeadLetters
from ..spool.lease import claim
from ..spool.ledger import owned, owners_with_cursor
from ..spool.owner import NONE, is_alive, owners
from ..spool.paths import SpoolPaths
from .backlog import MOST_NAMES, Backlog
from .batch_queue import BatchQueue
from .batch_target import BatchTarget, Receipt, SealedBatch, forget_of, lanes_of
from .blobs import BlobGates, named_blobs
from .delivery_stats import DeliveryStats
from .errors import PushError, RefusedError, StoppedError
from .retry_policy import FailureKind, RetryPolicy, kind_of
from .schedule import Schedule

_ABOUT_THE_REQUEST = (FailureKind.SERVER_FAULT, FailureKind.FINAL, FailureKind.UNAUTHORIZED)
_BUDGET_S = 0.5
"""How long to send dead letters, in seconds, before other batches are sent."""
_MOST_CLAIMED = 4
"""The maximum number of dead owners claimed at a time; each may queue MOST_NAMES batches."""


class _Result(NamedTuple):
    """The result of an attempt. If all fields are None, the batches will be tried one by one."""

    receipt: Receipt | None = None
    """The target's response, if it accepted the batches."""
    refusal: Exception | None = None
    """The error, if the attempt's only batch was permanently refused or given up."""
    failure: Exception | None = None
    """The error, if the batches will be tried again when the schedule allows it."""


def _attempt(
    target: BatchTarget, schedule: Schedule, lane: str, batches: list[SealedBatch]
) -> _Result:
    """Try to send batches of a lane, and record the result in the schedule. Raises StoppedError."""
    names = [batch.name for batch in batches]
    try:
        receipt = target.send(batches)
    except RefusedError as error:
        schedule.answered(lane, ())
        return _Result(refusal=error if len(batches) == 1 else None)
    except StoppedError:
        raise
    except Exception as error:
        # If a group is the lane's first failure, send it batch by batch to find the cause.
        is_first = len(batches) > 1 and not schedule.has_failed(lane)
        if is_first and kind_of(error) in _ABOUT_THE_REQUEST:
            return _Result()
        is_hopeless = schedule.failed(lane, names, error)
        return _Result(refusal=error) if is_hopeless else _Result(failure=error)
    schedule.passed(lane, names)
    return _Result(receipt=receipt)


def _reason(refusal: Exception) -> str:
    return refusal.reason if isinstance(refusal, PushError) else str(refusal)


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
        result = _attempt(self._target, self._schedule, lane, [batch])
        if result.receipt is not None:
            on_sent(batch, result.receipt)
            self._letters.remove(name)
        elif isinstance(result.refusal, RefusedError):
            self._letters.put(name, batch.data, _reason(result.refusal))
            self._stats.reject(forget_of(self._target)(name))
        else:
            self._schedule.forget([name])


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
        self._schedule = Schedule(self._policy, clock)
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
        """Send the next group of a backlog.

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
        try:
            result = _attempt(
                self._target, self._schedule, backlog.queue.lane(group[0].name), group
            )
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
        return True

    def _acknowledge(self, backlog: Backlog, group: Sequence[SealedBatch]) -> None:
        sink = self._target.blobs
        blobs_of = named_blobs if sink is None else sink.keys_of
        backlog.acknowledge(group, with_blobs=sink is not None, blobs_of=blobs_of)

    def _refuse(self, backlog: Backlog, batch: SealedBatch, refusal: Exception) -> None:
        """Keep a refused batch as a dead letter; if that fails, it waits for another attempt."""
        reason = _reason(refusal)
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


class OrphanedBacklogs:
    """The backlogs that a delivery has claimed from dead owners; the delivery sends them.

    Only the delivery's thread may use it, but any thread may set `are_more` and read `claimed`.
    """

    def __init__(self, paths: SpoolPaths, target: str, own: str, engine: DeliveryEngine) -> None:
        """`target` is the target's key; `own` is the owner whose batches `engine` sends anyway."""
        self._paths, self._target, self._own, self._engine = paths, target, own, engine
        self.settled: set[str] = set()
        """Dead owners that have nothing left to send."""
        self.are_more = False
        """Whether there may be more backlogs to claim."""

    @property
    def claimed(self) -> dict[str, Backlog]:
        """The claimed backlogs with something to send, by owner."""
        claimed = self._engine.backlogs.copy()
        claimed.pop(self._own, None)
        return claimed

    def sweep(self) -> None:
        """Claim the unsent batches of dead owners; remove the cursors of owners without batches.

        Raises the errors of `DeliveryEngine.claim`.
        """
        known, claimed = set(owners(self._paths)), self.claimed
        dead = {
            owner
            for owner in owners_with_cursor(self._paths, self._target)
            if owner not in (NONE, self._own, *claimed, *self.settled)
            and not (owner in known and is_alive(self._paths, owner))
        }
        names = owned(self._paths, dead) if dead else {}
        self.are_more = False
        for owner in sorted(dead):
            if len(self.claimed) >= _MOST_CLAIMED:
                self.are_more = True
                break
            backlog = self._engine.claim(owner)
            if backlog is None:
                continue
            left = backlog.take(sorted(names[owner]))
            self.are_more |= left > 0
            backlog.find_lost_blobs()
            if backlog.waiting or not backlog.blobs.is_empty:
                continue
            if owner not in known and not left:
                # No process will recover this owner, so it gets no further batches.
                self.settled.add(owner)
                if not names[owner]:
                    backlog.remove()
            self._engine.release(owner)

    def settle(self, backlog: Backlog) -> bool:
        """Release a backlog if all of it is sent; return whether to sweep for more backlogs."""
        if backlog.waiting or not backlog.blobs.is_empty:
            return False
        self._engine.release(backlog.owner)
        return self.are_more and not self.claimed
