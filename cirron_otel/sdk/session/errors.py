"""Errors inside the SDK: counted by cause, logged once for each cause, never raised."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter

logger = logging.getLogger("cirron_otel")


class RecordedErrors:
    """Errors that were caught before they reached the user's code."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last: dict[str, str] = {}

    def reset(self) -> None:
        """Discard all counts when a new session starts."""
        self.counts.clear()
        self.last.clear()


errors = RecordedErrors()


def record_error(cause: str, error: BaseException | str) -> None:
    """Count an error, and log the first one of each cause at WARNING."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {_text(error)}"
    errors.counts[cause] += 1
    errors.last[cause] = text
    if errors.counts[cause] == 1:
        # The application's handlers may raise anything.
        with contextlib.suppress(Exception):
            logger.warning(
                "cirron-otel: %s: %s (further errors of this kind are only counted)", cause, text
            )


def report_problem(cause: str, problem: str) -> None:
    """Count and log a problem that the user has to correct; `problem` is the complete message.

    Every problem is logged, even if several have the same cause, so report each only once.
    """
    errors.counts[cause] += 1
    errors.last[cause] = problem
    with contextlib.suppress(Exception):
        logger.warning("cirron-otel: %s", problem)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "?"
