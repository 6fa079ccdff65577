"""What an export or a flush did at one target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .export_stats import ExportStats
from .report import Report


@dataclass(slots=True)
class ExportReport(Report):
    """What an export did; `bytes_written` are those of the requests, uncompressed."""

    accepted: int = 0
    """Spans that the endpoint took."""
    rejected: int = 0
    """Spans that it refused by a partial success."""
    message: str = ""
    """What it said about them."""
    oldest_ns: int | None = None
    """When the oldest batch was sealed, or the oldest span of an OTLP file ended."""
    hint: str = ""
    """Why a backend that accepted everything may not show it."""
    is_translated: bool = True
    """Whether the spans were made from batches, and not read from an OTLP file."""

    def add(self, stats: ExportStats) -> None:
        """Add the statistics of a delivery."""
        self.batches += stats.sent_batches
        self.written += stats.sent_batches
        self.spans += stats.spans
        self.marks += stats.marks
        self.snapshots += stats.snapshots
        self.bytes_read += stats.sent_bytes
        self.accepted += stats.accepted_spans
        self.rejected += stats.rejected_spans
        self.messages += stats.messages
        self.bytes_written += stats.written_bytes
        self.message = stats.message or self.message
        self.skipped += stats.skipped
        self.skipped_count += stats.skipped_count

    def sent_of(self, time_ns: int | None) -> None:
        """Record that something of this time was sent."""
        if time_ns and (self.oldest_ns is None or time_ns < self.oldest_ns):
            self.oldest_ns = time_ns

    @property
    def exit_code(self) -> int:
        """0 if everything was accepted; 1 if something was skipped, lost, missing or rejected."""
        missing = self.backend is not None and self.backend.missing_count
        lost = self.losses and self.is_translated
        return 1 if self.skipped_count or self.incomplete or self.rejected or missing or lost else 0

    @property
    def synthetic(self) -> int:
        """How many of the sent spans stand for no record: the mapping adds them for backends."""
        return max(self.accepted + self.rejected - self.spans, 0) if self.is_translated else 0

    def to_json(self) -> dict[str, Any]:
        """The report for machines."""
        own = {
            "accepted": self.accepted,
            "rejected": self.rejected,
            "synthetic": self.synthetic,
            "message": self.message,
            "hint": self.hint,
        }
        return Report.to_json(self) | own
