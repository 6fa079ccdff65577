"""What went wrong inside the SDK: counted by cause, logged once a cause, never raised."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter

logger = logging.getLogger("cirron_otel")


class Swallowed:
    """Errors that were kept from the user's code."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last: dict[str, str] = {}

    def reset(self) -> None:
        """Forget all: the next session starts anew."""
        self.counts.clear()
        self.last.clear()


errors = Swallowed()


def swallowed(cause: str, error: BaseException | str) -> None:
    """Count an error; the first of each cause is logged at WARNING."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {_text(error)}"
    errors.counts[cause] += 1
    errors.last[cause] = text
    if errors.counts[cause] == 1:
        # The application's handlers may raise anything.
        with contextlib.suppress(Exception):
            logger.warning("cirron-otel: %s: %s (more of this kind is only counted)", cause, text)


def reported(cause: str, problem: str) -> None:
    """Count something that the user has to set right, and log it; it says itself what it is about.

    For what is found once: here each is logged, however many share the cause.
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
