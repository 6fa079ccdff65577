"""The report of a conversion or an export."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..query.fetched import Fetched
from ..spool.findings import Finding

_MAX_KEPT = 10_000
_OTHER_LOSSES = "other losses"


@dataclass(slots=True)
class Report:
    """Counts of one run. Lists and `losses` keep the first 10,000 entries; counts are complete."""

    target: str = ""
    batches: int = 0
    """Batches that came through."""
    spans: int = 0
    marks: int = 0
    snapshots: int = 0
    messages: int = 0
    """OTLP messages (TracesData) read or written."""
    bytes_read: int = 0
    bytes_written: int = 0
    written: int = 0
    """Files or messages written."""
    unchanged: int = 0
    """Batches that the target held already."""
    duplicates: int = 0
    """Records that came more than once and were taken once."""
    skipped: list[Finding] = field(default_factory=list)
    skipped_count: int = 0
    incomplete: list[str] = field(default_factory=list)
    """Batches of which a part never came, stored as far as they are there."""
    losses: dict[str, int] = field(default_factory=dict)
    """Values that the target's format cannot express, with their counts."""
    backend: Fetched | None = None
    """What a backend for traces gave, where that is the source."""

    def skip(self, finding: Finding) -> None:
        """Note what was skipped or refused."""
        self.skipped_count += 1
        if len(self.skipped) < _MAX_KEPT:
            self.skipped.append(finding)

    def lose(self, warnings: Iterable[str]) -> None:
        """Count values that the target's format cannot express."""
        for warning in warnings:
            self._lose(warning, 1)

    def _lose(self, warning: str, count: int) -> None:
        if warning not in self.losses and len(self.losses) >= _MAX_KEPT:
            warning = _OTHER_LOSSES
        self.losses[warning] = self.losses.get(warning, 0) + count

    def add_problems(self, other: Report) -> None:
        """Add the skipped, incomplete, duplicate and inexpressible items of another run."""
        for finding in other.skipped:
            self.skip(finding)
        self.skipped_count += other.skipped_count - len(other.skipped)
        self.incomplete += other.incomplete
        self.duplicates += other.duplicates
        for text, count in other.losses.items():
            self._lose(text, count)

    @property
    def exit_code(self) -> int:
        """0 if everything came through; 1 if something was skipped, incomplete or missing."""
        missing = self.backend is not None and self.backend.missing_count
        return 1 if self.skipped_count or self.incomplete or self.losses or missing else 0

    def to_json(self) -> dict[str, Any]:
        """The report for machines."""
        return {
            "target": self.target,
            "batches": self.batches,
            "spans": self.spans,
            "marks": self.marks,
            "snapshots": self.snapshots,
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
