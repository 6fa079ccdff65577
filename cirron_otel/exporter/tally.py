"""What a delivery counts, and what it says of its troubles."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from typing import Any

from ..errors import CirronOtelError
from .errors import MisconfiguredError

_MOST_CAUSES = 100
_VARYING = re.compile(r"[0-9a-f]{8,}|\d+")

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """The counts of one delivery. Errors are logged at WARNING, each cause once."""

    sent_batches: int = 0
    sent_bytes: int = 0
    """Of the batches as they stand in the spool."""
    refused: int = 0
    """Batches that the target will never take."""
    rejected_spans: int = 0
    """Spans of accepted batches that it will not take."""
    evicted: int = 0
    """Batches that were dropped from the spool before they could be sent."""
    sent_blobs: int = 0
    lost_blobs: int = 0
    """Snapshot files that were gone, or that the target will never take."""
    errors: int = 0
    """What nobody expected."""
    last_error: str = ""
    last_error_ns: int = 0
    """Wall time, nanoseconds since 1970; 0: never."""
    last_success_ns: int = 0
    is_misconfigured: bool = False
    """Whether the last answer looked like a wrong key, URL or certificate."""
    _causes: set[str] = field(default_factory=set)

    def succeeded(self) -> None:
        """Note that the target took something."""
        self.last_success_ns = time.time_ns()
        self.is_misconfigured = False

    def failed(self, error: BaseException, shown: str) -> None:
        """Note an error, and log it if it is the first of its kind."""
        is_expected = isinstance(error, CirronOtelError | OSError)
        if not is_expected:
            self.errors += 1
        text = (
            str(error) if isinstance(error, CirronOtelError) else f"{type(error).__name__}: {error}"
        )
        self.last_error, self.last_error_ns = text, time.time_ns()
        self.is_misconfigured = isinstance(error, MisconfiguredError)
        self._log(shown, text, error if not is_expected else None)

    def noted(self, message: str, shown: str) -> None:
        """Log what a target said to batches that it took."""
        if message:
            self._log(shown, message, None)

    def _log(self, shown: str, text: str, error: BaseException | None) -> None:
        cause = _VARYING.sub("#", text)
        if cause not in self._causes and len(self._causes) < _MOST_CAUSES:
            self._causes.add(cause)
            # Else a collector's log takes the troubles of all targets for one that repeats itself.
            extra = {"cause": f"export to {shown}: {cause}"}
            _logger.warning(
                "cirron-otel: export to %s: %s", shown, text, exc_info=error, extra=extra
            )

    def counts(self) -> dict[str, Any]:
        """Everything, by name."""
        names = (name for name in self.__slots__ if not name.startswith("_"))
        return {name: getattr(self, name) for name in names}
