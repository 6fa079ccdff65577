"""The reports of conversions and exports: counts, findings and losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...core.delivery.delivery_stats import ExportStats
from ...core.records.problems import ReadingProblem

_MAX_KEPT = 10_000
_OTHER_LOSSES = "other losses"


class BackendReport(Protocol):
    """The report about a backend that traces were read from."""

    @property
    def backend(self) -> str:
        """The name of the backend in messages."""

    @property
    def missing(self) -> list[str]:
        """The known missing items, one line each."""

    @property
    def missing_count(self) -> int:
        """The number of all missing items, which may exceed the length of the list."""

    @property
    def not_kept(self) -> tuple[str, ...]:
        """The data that such a backend never returns."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""


@dataclass(slots=True)
class Report:
    """Counts of a conversion. Lists and `losses` have at most 10,000 entries; counts are exact."""

    target: str = ""
    batches: int = 0
    """Batches that were converted."""
    spans: int = 0
    marks: int = 0
    snapshots: int = 0
    points: int | None = None
    """Metric points written; None if the signal is not metrics."""
    messages: int = 0
    """OTLP messages read or written."""
    bytes_read: int = 0
    bytes_written: int = 0
    written: int = 0
    """Files or messages written."""
    unchanged: int = 0
    """Batches that the target already contained."""
    duplicates: int = 0
    """Records that arrived more than once, and were stored once."""
    skipped: list[ReadingProblem] = field(default_factory=list)
    skipped_count: int = 0
    incomplete: list[str] = field(default_factory=list)
    """Batches that are incomplete in the source; the parts that exist are stored."""
    losses: dict[str, int] = field(default_factory=dict)
    """Values that the target's format cannot express, with their counts."""
    backend: BackendReport | None = None
    """The report about the trace backend, if that is the source."""

    def skip(self, finding: ReadingProblem) -> None:
        """Add a finding about something that was skipped or refused."""
        self.skipped_count += 1
        if len(self.skipped) < _MAX_KEPT:
            self.skipped.append(finding)

    def lose(self, warnings: Iterable[str]) -> None:
        """Count values that the target's format cannot express."""
        for warning in warnings:
            self._lose(warning, 1)

    def lose_many(self, losses: dict[str, int]) -> None:
        """Add losses that were counted already."""
        for text, count in losses.items():
            self._lose(text, count)

    def _lose(self, warning: str, count: int) -> None:
        if warning not in self.losses and len(self.losses) >= _MAX_KEPT:
            warning = _OTHER_LOSSES
        self.losses[warning] = self.losses.get(warning, 0) + count

    def add_problems(self, other: Report) -> None:
        """Add the skipped, incomplete, duplicate and inexpressible items of another report."""
        for finding in other.skipped:
            self.skip(finding)
        self.skipped_count += other.skipped_count - len(other.skipped)
        self.incomplete += other.incomplete
        self.duplicates += other.duplicates
        self.lose_many(other.losses)

    @property
    def exit_code(self) -> int:
        """0 if everything was converted; 1 if something was skipped, incomplete or missing."""
        missing = self.backend is not None and self.backend.missing_count
        return 1 if self.skipped_count or self.incomplete or self.losses or missing else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "target": self.target,
            "batches": self.batches,
            "spans": self.spans,
            "marks": self.marks,
            "snapshots": self.snapshots,
            **({"points": self.points} if self.points is not None else {}),
            "messages": self.messages,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "written": self.written,
            "unchanged": self.unchanged,
            "duplicates": self.duplicates,
            "skipped_count": self.skipped_count,
            "skipped": [finding.to_json() for finding in self.skipped],
            "incomplete": self.incomplete,
            "losses": self.losses,
            **({"backend": self.backend.to_json()} if self.backend is not None else {}),
        }


@dataclass(slots=True)
class ExportReport(Report):
    """The report of an export; `bytes_written` is the size of the requests, uncompressed."""

    accepted: int = 0
    """Spans, or metric points, that the endpoint accepted."""
    rejected: int = 0
    """Spans, or metric points, that the endpoint rejected in a partial success, or as too large."""
    unsent_rejected: int = 0
    """Those of `rejected` whose batches were not sent completely: `spans` does not include them."""
    derived_ids: int = 0
    """Spans that were sent with derived ids, because theirs are missing, zero or too short or long:
    backends refuse a request with such an id."""
    message: str = ""
    """The endpoint's message about the sent spans."""
    oldest_ns: int | None = None
    """The earliest time (Unix ns) at which a sent batch was sealed, or a sent OTLP span ended."""
    hint: str = ""
    """A reason why the backend's search may not find the spans that it accepted."""
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
        self.unsent_rejected += stats.unsent_rejected_spans
        self.messages += stats.messages
        self.bytes_written += stats.written_bytes
        self.message = stats.message or self.message
        self.skipped += stats.skipped
        self.skipped_count += stats.skipped_count

    def sent_of(self, time_ns: int | None) -> None:
        """Record that data of this time (Unix ns) was sent."""
        if time_ns and (self.oldest_ns is None or time_ns < self.oldest_ns):
            self.oldest_ns = time_ns

    @property
    def exit_code(self) -> int:
        """0 if everything was accepted unchanged; 1 if something was skipped, lost or rejected."""
        missing = self.backend is not None and self.backend.missing_count
        lost = self.losses and self.is_translated
        changed = self.rejected or self.derived_ids
        return 1 if self.skipped_count or self.incomplete or changed or missing or lost else 0

    @property
    def synthetic(self) -> int:
        """The number of sent spans without a record, which the mapping adds for backends."""
        if not self.is_translated or self.points is not None:
            return 0
        return max(self.accepted + self.rejected - self.unsent_rejected - self.spans, 0)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        details = {
            "accepted": self.accepted,
            "rejected": self.rejected,
            "synthetic": self.synthetic,
            "derived_ids": self.derived_ids,
            "message": self.message,
            "hint": self.hint,
        }
        return Report.to_json(self) | details
