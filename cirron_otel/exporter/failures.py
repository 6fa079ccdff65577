"""The kinds of failed attempts at a target, and how long to wait after one."""

from __future__ import annotations

import re
from enum import Enum, auto

from .errors import MisconfiguredError, PushError
from .pace import Pace

_NO_ANSWER = re.compile(
    r"no answer|no TLS connection|50[234]\b.*|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|"
)
_RATE_LIMIT = re.compile(r"429\b.*|RESOURCE_EXHAUSTED")
_UNAUTHORIZED = re.compile(r"40[137]\b.*|UNAUTHENTICATED|PERMISSION_DENIED")
_FINAL = re.compile(
    r"(?!408|425)[234]\d\d\b.*|NOT_FOUND|UNIMPLEMENTED|FAILED_PRECONDITION|OUT_OF_RANGE|ALREADY_EXISTS"
)


class Failure(Enum):
    """The kinds of failures, by what they are evidence of."""

    NO_ANSWER = auto()
    """Evidence against the target, or the network."""
    RATE_LIMIT = auto()
    """Evidence against the lane, for a while, and never against the batch."""
    UNAUTHORIZED = auto()
    """Evidence against the credentials of the lane, or of the target."""
    FINAL = auto()
    """An answer that does not change unless the request or the configuration does."""
    SERVER_FAULT = auto()
    """A fault of the server, perhaps caused by the batch."""


def kind_of(error: Exception) -> Failure:
    """Classify a failure of an attempt that is not a RefusedError."""
    status = error.status if isinstance(error, PushError) else None
    if status is None:
        return Failure.SERVER_FAULT
    for pattern, kind in (
        (_NO_ANSWER, Failure.NO_ANSWER),
        (_RATE_LIMIT, Failure.RATE_LIMIT),
        (_UNAUTHORIZED, Failure.UNAUTHORIZED),
        (_FINAL, Failure.FINAL),
    ):
        if pattern.fullmatch(status):
            return kind
    return Failure.SERVER_FAULT


OF_TARGET = (Failure.NO_ANSWER, Failure.SERVER_FAULT)
"""Kinds of failures that may concern the whole target."""


def wait_after(pace: Pace, failures: int, error: Exception) -> float:
    """Return how long to wait after an error that follows `failures` others, seconds."""
    wait = pace.backoff.wait(failures)
    if isinstance(error, MisconfiguredError):  # grows faster, to a longer limit
        wait = min(2.0 ** min(failures, 60) * wait, pace.misconfigured)
    return wait
