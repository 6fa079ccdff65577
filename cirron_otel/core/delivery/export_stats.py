"""The statistics of a delivery whose results a command reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..placement.batch_outline import read_outline
from ..records.findings import Finding
from .batch_target import Receipt, SealedBatch
from .delivery_stats import DeliveryStats

_MOST_FINDINGS = 10_000


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
    """Requests that the target accepted."""
    written_bytes: int = 0
    """The size of these requests, uncompressed."""
    message: str = ""
    """The latest message of the target about batches that it accepted."""
    skipped: list[Finding] = field(default_factory=list)
    """The first 10,000 findings."""
    skipped_count: int = 0

    def sent(self, batches: Sequence[SealedBatch], receipt: Receipt) -> None:
        """Count batches that the target accepted, and their records."""
        self.rejected_spans += receipt.rejected_spans
        self.message = receipt.message or self.message
        for batch in batches:
            outline = read_outline(batch.data)
            self.sent_batches += 1
            self.sent_bytes += len(batch.data)
            self.spans += len(outline.spans)
            self.marks += len(outline.marks)
            self.snapshots += len(outline.snapshots)

    def skip(self, finding: Finding) -> None:
        """Keep a finding about a batch or a snapshot file that is never sent."""
        self.skipped_count += 1
        if len(self.skipped) < _MOST_FINDINGS:
            self.skipped.append(finding)

    def lose_blob(self, name: str, error: Exception) -> None:
        """Keep a finding about a snapshot file that is never sent."""
        code = "evicted" if isinstance(error, FileNotFoundError) else "refused"
        self.skip(Finding(name, code, str(error)))

    def failed(self, error: BaseException) -> None:
        """Do nothing: errors are not logged."""
