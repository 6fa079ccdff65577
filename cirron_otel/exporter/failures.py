"""The kinds of failed attempts at a target, and how long to wait after one."""

from __future__ import annotations

import re
from enum import Enum, auto

from .batch_target import MisconfiguredError
from .otlp import PushError
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
    """Probably the target, or the network."""
    RATE_LIMIT = auto()
    """The lane, for a while; the batch has no part in it."""
    UNAUTHORIZED = auto()
    """The lane's credentials, or the target's."""
    FINAL = auto()
    """An answer that does not change unless the request or the configuration does."""
    SERVER_FAULT = auto()
    """A fault of the server, perhaps caused by the batch."""


def kind_of(error: Exception) -> Failure:
    """Classify a failure of an attempt; a RefusedError is none of these."""
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
"""Failures that may be for the target as such."""


def wait_after(pace: Pace, failures: int, error: Exception) -> float:
    """How long to wait after an error that comes after so many others, seconds."""
    wait = pace.backoff.wait(failures)
    if isinstance(error, MisconfiguredError):  # faster to the longest wait, which is longer
        wait = min(2.0 ** min(failures, 60) * wait, pace.misconfigured)
    return wait
