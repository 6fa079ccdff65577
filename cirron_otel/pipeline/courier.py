"""Sending batches to one target until it has them, those of each owner under its lease.

What the target has stands in the cursors that recording processes use as well: so nothing is sent
by two, and nothing twice but what was in a request whose answer was lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from ..exporter.backlog import Backlog
from ..exporter.batch_target import (
    BlobSink,
    MisconfiguredError,
    Receipt,
    RefusedError,
    SealedBatch,
    StoppedError,
    UnreachableError,
)
from ..exporter.otlp import Backoff
from ..spool.findings import Finding
from ..spool.paths import SpoolPaths
from .export_report import ExportReport
from .light import light

T = TypeVar("T")

CHUNK = 1000
"""Batches that are taken up at once."""


class Sink(Protocol):
    """What a courier needs of a BatchTarget."""

    @property
    def key(self) -> str:
        """What tells it from other targets."""

    @property
    def shown(self) -> str:
        """The target as people may see it."""

    @property
    def request_bytes(self) -> int:
        """How many bytes of batches `send` takes at once."""

    def send(self, batches: list[SealedBatch]) -> Receipt:
        """Send batches, all or none of them, once."""


class Courier:
    """Sends batches to `target`, and tells `report` what becomes of them."""

    def __init__(
        self,
        paths: SpoolPaths,
        target: Sink,
        report: ExportReport,
        *,
        stop: threading.Event,
        patience: float | None,
        say: Callable[[str], None],
        with_blobs: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        """Nothing is claimed yet.

        `patience` is how long, in seconds, the target may not be ready; None: for ever. `say` is
        given what people should know. `with_blobs`: the snapshot files are to be sent as well.
        """
        self.backlogs: dict[str, Backlog] = {}
        """By owner: what is ours to send."""
        self._paths, self._target, self._report = paths, target, report
        self._stop = stop
        self._patience = float("inf") if patience is None else patience
        self._say = say
        self._with_blobs = with_blobs
        self._is_said = False
        self._backoff = backoff or Backoff()

    def claim(self, owner: str) -> Backlog | None:
        """The backlog of an owner, if its lease is to be had. Raises TargetError."""
        backlog = self.backlogs.get(owner)
        if backlog is not None and backlog.is_held():
            return backlog
        self.release(owner)
        backlog = Backlog.claim(
            self._paths, self._target.key, owner, lambda error: self._say(str(error))
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

    def close(self) -> None:
        """Release everything."""
        for owner in list(self.backlogs):
            self.release(owner)

    def send(self, backlog: Backlog, names: Iterable[str]) -> None:
        """Send an owner's batches, in order, but those that the target has.

        Raises UnreachableError where the target is not ready for too long, MisconfiguredError, and
        StoppedError: what was acknowledged until then is in the cursor.
        """
        waiting = sorted(names)
        for start in range(0, len(waiting), CHUNK):
            chunk = waiting[start : start + CHUNK]
            backlog.take(chunk)
            self._drain(backlog)
            for name in chunk:
                if name not in backlog.cursor:
                    self.skip(Finding(name, "evicted", "gone before it could be sent"))

    def skip(self, finding: Finding) -> None:
        """Tell the report what is not sent."""
        self._report.skip(finding)

    def upload(self, backlog: Backlog, sink: BlobSink) -> int:
        """Send the snapshot files that acknowledged batches name; gives how many. Raises as `send`.

        One that is gone, or that the target refuses, is reported.
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

    def _drain(self, backlog: Backlog) -> None:
        while group := backlog.group(self._target.request_bytes):
            try:
                receipt = self.retried(lambda: self._target.send(group))
            except RefusedError as error:
                if len(group) > 1:
                    backlog.put_back(group, singly=True)
                    continue
                backlog.refuse(group[0], str(error))
                self.skip(Finding(group[0].name, "refused", str(error)))
            except BaseException:
                backlog.put_back(group)
                raise
            else:
                backlog.acknowledge(group, with_blobs=self._with_blobs)
                self._count(group, receipt)

    def retried(self, attempt: Callable[[], T]) -> T:
        """What an attempt gives, made until the target is ready; the errors are those of `send`."""
        give_up = time.monotonic() + self._patience
        number = 0
        while True:
            if self._stop.is_set():
                raise StoppedError(f"stopped before {self._target.shown} accepted everything")
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
