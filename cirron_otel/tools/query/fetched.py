"""The report about a query to a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_MAX_MISSING = 1000


@dataclass(slots=True)
class FetchReport:
    """The report about a query to a backend."""

    backend: str
    """The kind and the address of the backend."""
    traces: int = 0
    bytes_read: int = 0
    missing: list[str] = field(default_factory=list)
    """The first 1,000 items that were not returned, although they existed or are referenced."""
    missing_count: int = 0
    not_kept: tuple[str, ...] = ()
    """The kinds of data that the backend never returns."""

    def miss(self, text: str) -> None:
        """Add a missing item."""
        self.missing_count += 1
        if len(self.missing) < _MAX_MISSING:
            self.missing.append(text)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "name": self.backend,
            "traces": self.traces,
            "bytes_read": self.bytes_read,
            "missing_count": self.missing_count,
            "missing": self.missing,
            "not_kept": list(self.not_kept),
        }
