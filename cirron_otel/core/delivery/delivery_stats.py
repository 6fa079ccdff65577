"""The statistics of deliveries, for sessions and collectors (DeliveryStats) and for commands."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from ...errors import CirronOtelError
from ..placement.batch_outline import read_outline
from ..records.problems import ReadingProblem
from .batch_target import Receipt, SealedBatch
from .errors import MisconfiguredError

_MOST_CAUSES = 100
_MOST_FINDINGS = 10_000
_VARYING = re.compile(r"[0-9a-f]{8,}|\d+")

_logger = logging.getLogger(__name__)


def _uncounted(_spans: int) -> None:
    """Do nothing: no other counter counts rejected spans."""


@dataclass(slots=True)
class DeliveryStats:
    """Counts the results of one delivery, and logs each cause of an error once, at WARNING."""

    _target: str
    """The target's address as shown in messages."""
    sent_batches: int = 0
    sent_bytes: int = 0
    """The size in the spool of the batches that were sent, in bytes."""
    refused: int = 0
    """The number of batches that the target will never accept or that cannot be read."""
    rejected_spans: int = 0
    """The number of spans that the target rejected although it accepted their requests."""
    evicted: int = 0
    """The number of batches that left the spool before they were sent."""
    sent_blobs: int = 0
    lost_blobs: int = 0
    """The number of snapshot files that no longer exist or that the target will never accept."""
    errors: int = 0
    """The number of unexpected exceptions."""
    last_error: str = ""
    last_error_ns: int = 0
    """The time of the latest error in Unix ns; 0 if there was no error."""
    last_success_ns: int = 0
    is_misconfigured: bool = False
    """Whether the latest error suggests a wrong key, URL or certificate."""
    on_rejected: InitVar[Callable[[int], None]] = field(default=_uncounted, kw_only=True)
    """Called with each number that is added to `rejected_spans`."""
    _causes: set[str] = field(default_factory=set)
    _on_rejected: Callable[[int], None] = field(init=False)

    def __post_init__(self, on_rejected: Callable[[int], None]) -> None:
        """Complete the construction."""
        self._on_rejected = on_rejected

    def sent(self, batches: Sequence[SealedBatch], receipt: Receipt) -> None:
        """Count batches that the target accepted, and log the target's message about them."""
        self.succeeded()
        self.sent_batches += len(batches)
        self.sent_bytes += sum(len(batch.data) for batch in batches)
        self._receive(receipt)

    def reject(self, receipt: Receipt) -> None:
        """Count the rejected spans of a batch that is not counted as sent, and log the message.

        The target accepted other parts of the batch, or accepted the batch as a dead letter.
        """
        self._receive(receipt)

    def _receive(self, receipt: Receipt) -> None:
        if receipt.rejected_spans:
            self.rejected_spans += receipt.rejected_spans
            self._on_rejected(receipt.rejected_spans)
        self._show(receipt)

    def _show(self, receipt: Receipt) -> None:
        """Show the user what a receipt reports."""
        if receipt.notice:
            self._log(receipt.notice, None)

    def skip(self, finding: ReadingProblem) -> None:
        """Count a batch or a snapshot file that is never sent."""
        if finding.code == "evicted":
            self.evicted += 1
        else:
            self.refused += 1

    def lose_blob(self, _name: str, error: Exception) -> None:
        """Count a snapshot file that is never sent."""
        self.lost_blobs += 1
        self.failed(error)

    def succeeded(self) -> None:
        """Record that the target accepted something."""
        self.last_success_ns = time.time_ns()
        self.is_misconfigured = False

    def failed(self, error: BaseException) -> None:
        """Record an error, and log it if it is the first error with this cause."""
        is_expected = isinstance(error, CirronOtelError | OSError)
        if not is_expected:
            self.errors += 1
        text = (
            str(error) if isinstance(error, CirronOtelError) else f"{type(error).__name__}: {error}"
        )
        self.last_error, self.last_error_ns = text, time.time_ns()
        self.is_misconfigured = isinstance(error, MisconfiguredError)
        self._log(text, error if not is_expected else None)

    def _log(self, text: str, error: BaseException | None) -> None:
        cause = _VARYING.sub("#", text)
        if cause not in self._causes and len(self._causes) < _MOST_CAUSES:
            self._causes.add(cause)
            # Without this, a collector's log would treat the errors of all targets as repetitions
            # of one error.
            extra = {"cause": f"export to {self._target}: {cause}"}
            _logger.warning(
                "cirron-otel: export to %s: %s", self._target, text, exc_info=error, extra=extra
            )

    def counts(self) -> dict[str, Any]:
        """Return all statistics by name."""
        names = (each.name for each in dataclasses.fields(self))
        return {name: getattr(self, name) for name in names if not name.startswith("_")}


@dataclass(slots=True)
class ExportStats(DeliveryStats):
    """Also counts the sent records, and keeps a finding for each batch that was not sent.

    Errors are not logged: the driver of the delivery raises or reports them.
    """

    spans: int = 0
    marks: int = 0
    snapshots: int = 0
    accepted_spans: int = 0
    messages: int = 0
    """The number of requests that the target accepted."""
    written_bytes: int = 0
    """The uncompressed size in bytes of the accepted requests."""
    message: str = ""
    """The latest message of the target about batches that it accepted."""
    unsent_rejected_spans: int = 0
    """Those of `rejected_spans` whose batches were not sent completely, so that `spans` does not
    include them.
    """
    skipped: list[ReadingProblem] = field(default_factory=list)
    """The first 10,000 findings."""
    skipped_count: int = 0

    def sent(self, batches: Sequence[SealedBatch], receipt: Receipt) -> None:
        """Count batches that the target accepted, and their records."""
        self._receive(receipt)
        for batch in batches:
            outline = read_outline(batch.data)
            self.sent_batches += 1
            self.sent_bytes += len(batch.data)
            self.spans += len(outline.spans)
            self.marks += len(outline.marks)
            self.snapshots += len(outline.snapshots)

    def reject(self, receipt: Receipt) -> None:
        """Count the rejected spans of a batch that is not counted as sent."""
        self.unsent_rejected_spans += receipt.rejected_spans
        self._receive(receipt)

    def _show(self, receipt: Receipt) -> None:
        self.message = receipt.message or self.message

    def skip(self, finding: ReadingProblem) -> None:
        """Keep a finding about a batch or a snapshot file that is never sent."""
        self.skipped_count += 1
        if len(self.skipped) < _MOST_FINDINGS:
            self.skipped.append(finding)

    def lose_blob(self, name: str, error: Exception) -> None:
        """Keep a finding about a snapshot file that is never sent."""
        code = "evicted" if isinstance(error, FileNotFoundError) else "refused"
        self.skip(ReadingProblem(name, code, str(error)))

    def failed(self, error: BaseException) -> None:
        """Do nothing, since errors are not logged."""
