"""What an export or a flush did at one target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

    @property
    def exit_code(self) -> int:
        """0 if everything was accepted; 1 if something was skipped, missing or rejected."""
        missing = self.backend is not None and self.backend.missing_count
        return 1 if self.skipped_count or self.incomplete or self.rejected or missing else 0

    def to_json(self) -> dict[str, Any]:
        """The report for machines."""
        own = {"accepted": self.accepted, "rejected": self.rejected, "message": self.message}
        return Report.to_json(self) | own
