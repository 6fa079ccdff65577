"""Send batches to one target until it has them, the batches of each owner under its lease.

The cursors, which recording processes use as well, record what the target has. So no two processes
send the same batch, and a batch is sent twice only if the response to its request was lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from ..errors import CirronOtelError, EndpointError, TargetError
from ..exporter.attempt import attempt
from ..exporter.backlog import Backlog
from ..exporter.batch_queue import BatchQueue
from ..exporter.batch_target import BlobSink, Receipt, SealedBatch, Sender, lanes_of
from ..exporter.errors import MisconfiguredError, RefusedError, StoppedError, UnreachableError
from ..exporter.pace import Backoff, Pace
from ..exporter.resubmission import Resubmission
from ..exporter.schedule import Schedule
from ..spool.dead_letters import DeadLetters
from ..spool.findings import Finding
from ..spool.paths import SpoolPaths
from .export_report import ExportReport
from .light import light

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MOST_NAMES = 10_000_000
"""The most batches in the queue by name. It exceeds a spool: a batch above the limit would wait
until batches of tenants that the target refuses leave the queue."""


class Courier:
    """Sends batches to `target`, and counts the results in `report`."""

    def __init__(
        self,
        paths: SpoolPaths,
        target: Sender,
        report: ExportReport,
        *,
        stop: threading.Event,
        patience: float | None,
        say: Callable[[str], None],
        with_blobs: bool = False,
        backoff: Backoff | None = None,
        on_failure: Callable[[CirronOtelError], None] = lambda _: None,
        letters: DeadLetters | None = None,
    ) -> None:
        """Prepare to send; this claims no backlog.

        `patience` is how many seconds the target may be unavailable; None means forever. `say`
        receives messages for the user. With `with_blobs`, snapshot files are sent as well.
        `on_failure` receives the failures that are retried; `letters` are the dead letters of the
        target.
        """
        self.backlogs: dict[str, Backlog] = {}
        """By owner: the backlog that this process sends."""
        self.lost: set[str] = set()
        """Batches that were queued when another process took their lease; the caller clears it."""
        self._paths, self._target, self._report = paths, target, report
        self._stop = stop
        self._patience = float("inf") if patience is None else patience
        self._schedule = Schedule(Pace(backoff or Backoff()), time.monotonic)
        self._lanes = lanes_of(target)
        self._letters = letters or DeadLetters(paths, target.key, target.shown)
        self._resubmission = Resubmission(paths, target, self._schedule, self._letters)
        self._failure: EndpointError | None = None
        """The latest temporary failure."""
        self._say = say
        self._with_blobs = with_blobs
        self._is_said = False
        self._backoff = backoff or Backoff()
        self._on_failure = on_failure

    def claim(self, owner: str) -> Backlog | None:
        """Return the backlog of an owner, or None if its lease is taken. Raises TargetError."""
        backlog = self.backlogs.get(owner)
        if backlog is not None and backlog.is_held():
            return backlog
        if backlog is not None:
            self._lose(owner, backlog)
        backlog = Backlog.claim(
            self._paths,
            self._target.key,
            owner,
            lambda error: self._say(str(error)),
            BatchQueue(self._schedule, self._lanes),
            most_names=_MOST_NAMES,
            letters=self._letters,
        )
        if backlog is not None:
            self.backlogs[owner] = backlog
        elif not self._is_said:
            self._is_said = True
            self._say("some batches are left to the processes that send them already")
        return backlog

    def release(self, owner: str) -> None:
        """Let others send an owner's batches."""
        backlog = self.backlogs.pop(owner, None)
        if backlog is not None:
            backlog.release()

    def _lose(self, owner: str, backlog: Backlog) -> None:
        self.lost |= backlog.names()
        self.release(owner)

    def close(self) -> None:
        """Release everything."""
        for owner in list(self.backlogs):
            self.release(owner)

    def take(self, backlog: Backlog, names: Iterable[str], *, are_first: bool = False) -> None:
        """Queue the batches of an owner, except those that the target has.

        With `are_first`, they precede the batches that are already queued.
        """
        if left := backlog.take(sorted(names), are_first=are_first):
            self._say(f"{left} batches are not queued until others are sent")

    def names(self) -> set[str]:
        """Return the names of the queued batches."""
        return set().union(*(backlog.names() for backlog in list(self.backlogs.values())))

    def press(self) -> None:
        """Request space in the spool, from any thread; see Schedule."""
        self._schedule.press()

    def send(self, seconds: float, *, tries_on: bool) -> bool:
        """Send the queued batches that are due, for about `seconds`.

        Returns whether there may be more. Raises StoppedError, and without `tries_on`
        MisconfiguredError if the target accepts nothing at all.
        """
        until = time.monotonic() + seconds
        self._schedule.relieve()
        self._resubmission.run(self._sent_again)
        while self._turn(tries_on=tries_on):
            if time.monotonic() >= until:
                return True
        return False

    def finish(self) -> None:
        """Send all queued batches, and retry as often as necessary.

        Raises UnreachableError if the target accepted nothing for too long, MisconfiguredError if
        every batch that is left has met it, and StoppedError. The cursors contain what the target
        has acknowledged by then.
        """
        while self._resubmission.run(self._sent_again):
            pass
        give_up = time.monotonic() + self._patience
        while True:
            before = self._schedule.answers
            if self._turn(tries_on=True, give_up=give_up):
                if self._schedule.answers > before:
                    give_up = time.monotonic() + self._patience
                self._check_misconfigured()
                continue
            opens = min((each.opens for each in self.backlogs.values()), default=float("inf"))
            if opens == float("inf"):
                return
            if self._failure is not None and opens >= give_up:
                raise self._failure
            self._stop.wait(min(max(opens - time.monotonic(), 0.0), threading.TIMEOUT_MAX))

    def _sent_again(self, batch: SealedBatch) -> None:
        self._count([batch], Receipt())

    def _check_misconfigured(self) -> None:
        """Raise the latest MisconfiguredError if every batch that is left has met one."""
        waiting = sum(backlog.waiting for backlog in self.backlogs.values())
        if isinstance(self._failure, MisconfiguredError) and self._schedule.failing >= waiting:
            raise self._failure

    def _turn(self, *, tries_on: bool, give_up: float = float("inf")) -> bool:
        """Send one group of each owner; return whether there was a group."""
        was_any = False
        for owner, backlog in list(self.backlogs.items()):
            self._check_stop()
            if not backlog.is_held():
                self._lose(owner, backlog)
                continue
            group = backlog.group(self._target.request_bytes)
            self._report_lost(backlog)
            if group:
                was_any = True
                self._try(backlog, group, tries_on, give_up)
        return was_any

    def _report_lost(self, backlog: Backlog) -> None:
        for name in backlog.evicted:
            self.skip(Finding(name, "evicted", "gone before it could be sent"))
        for name in backlog.unreadable:
            self.skip(Finding(name, "unreadable", "given up: its file cannot be read"))
        backlog.evicted.clear()
        backlog.unreadable.clear()

    def skip(self, finding: Finding) -> None:
        """Report a batch or a file that is not sent."""
        self._report.skip(finding)

    def upload(self, backlog: Backlog, sink: BlobSink) -> int:
        """Send the snapshot files that acknowledged batches name, and return their number.

        A file that is gone, or that the target refuses, is reported. Raises the errors of `send`.
        """
        backlog.find_lost_blobs()
        sent = 0
        while len(backlog.blobs):
            key = backlog.blobs.first()
            try:
                is_done = self.retried(lambda: sink.upload(self._paths.snapshots, key))  # noqa: B023
                sent += is_done
            except (FileNotFoundError, RefusedError) as error:
                why = "evicted" if isinstance(error, FileNotFoundError) else "refused"
                self.skip(Finding(f"{key.directory}/{key.file}", why, str(error)))
                is_done = True
            if is_done:
                backlog.blobs.finish(key)
                backlog.blobs.save()
        return sent

    def _try(
        self, backlog: Backlog, group: list[SealedBatch], tries_on: bool, give_up: float
    ) -> None:
        result = attempt(self._target, self._schedule, backlog, group)
        if result.failure is not None:
            self._failed(group[0].name, result.failure, tries_on, give_up)
        elif result.refusal is not None:
            try:
                backlog.refuse(group[0], str(result.refusal))
            except TargetError as error:
                if not tries_on:
                    raise
                self._on_failure(error)
                if group[0].name in backlog.names():  # it waits, and others go first
                    return
            self.skip(Finding(group[0].name, "refused", str(result.refusal)))
        elif result.receipt is not None:
            self._failure = None
            backlog.acknowledge(group, with_blobs=self._with_blobs)
            self._count(group, result.receipt)

    def _failed(self, name: str, error: Exception, tries_on: bool, give_up: float) -> None:
        """Raise an error that no wait can clear; report any other, each cause once."""
        if not isinstance(error, EndpointError):
            if not isinstance(error, CirronOtelError):
                logger.error("the export to %s failed", self._target.shown, exc_info=error)
            error = UnreachableError(f"{self._target.shown} cannot be served: {error}")
        self._failure = error
        is_misconfigured = isinstance(error, MisconfiguredError)
        if is_misconfigured and not tries_on and not self._schedule.has_passed:
            raise error
        if not is_misconfigured and self._schedule.held_until(name) >= give_up:
            raise error
        self._on_failure(error)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedError(f"stopped before {self._target.shown} accepted everything")

    def retried(self, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` until the target is ready. Raises the errors of `send`."""
        give_up = time.monotonic() + self._patience
        number = 0
        while True:
            self._check_stop()
            try:
                return attempt()
            except MisconfiguredError:
                raise
            except UnreachableError as error:
                wait = max(self._backoff.wait(number), error.retry_after or 0.0)
                if time.monotonic() + wait >= give_up:
                    raise
                self._stop.wait(min(wait, threading.TIMEOUT_MAX))
                number += 1

    def _count(self, group: list[SealedBatch], receipt: Receipt) -> None:
        report = self._report
        report.rejected += receipt.rejected_spans
        report.message = receipt.message or report.message
        for batch in group:
            seen = light(batch.data)
            report.batches += 1
            report.written += 1
            report.spans += len(seen.spans)
            report.marks += len(seen.marks)
            report.snapshots += len(seen.snapshots)
            report.bytes_read += len(batch.data)
