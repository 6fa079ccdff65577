"""What came of asking a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_MAX_MISSING = 1000


@dataclass(slots=True)
class FetchReport:
    """What came of asking a backend."""

    backend: str
    """Which one, and where."""
    traces: int = 0
    bytes_read: int = 0
    missing: list[str] = field(default_factory=list)
    """What is known to have been there, or is referred to, and did not come: the first 1,000."""
    missing_count: int = 0
    not_kept: tuple[str, ...] = ()
    """What such a backend never gives back."""

    def miss(self, text: str) -> None:
        """Note what is missing."""
        self.missing_count += 1
        if len(self.missing) < _MAX_MISSING:
            self.missing.append(text)

    def to_json(self) -> dict[str, Any]:
        """The report for machines."""
        return {
            "name": self.backend,
            "traces": self.traces,
            "bytes_read": self.bytes_read,
            "missing_count": self.missing_count,
            "missing": self.missing,
            "not_kept": list(self.not_kept),
        }
