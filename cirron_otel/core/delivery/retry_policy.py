"""The retry policy: the kinds of failures, and how long to wait after a failure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from random import SystemRandom

from .errors import MisconfiguredError, PushError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waits between attempts, with jitter so that clients do not retry together."""

    first: float = 1.0
    """The wait before the second attempt, in seconds."""
    longest: float = 30.0
    jitter: float = 0.2
    """The maximum random deviation, as a fraction of the wait."""

    def wait(self, attempt: int) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 0."""
        wait = min(self.first * 2.0 ** min(attempt, 60), self.longest)
        # Training code seeds the global random generator, so all ranks would wait equally long.
        return wait * _random.uniform(1 - self.jitter, 1 + self.jitter)


_random = SystemRandom()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The waits of a delivery, in seconds."""

    backoff: Backoff = field(default_factory=Backoff)
    """The waits between attempts at an unavailable target."""
    misconfigured: float = 60.0
    """The maximum wait between attempts at a target that refuses everything (MisconfiguredError).
    """
    sweep: float = 10.0
    """The time between searches for batches of dead owners."""


class RetryGate:
    """Determines the time of the next attempt, measured by a given clock."""

    def __init__(self, policy: RetryPolicy, clock: Callable[[], float]) -> None:
        """Create an open gate: an attempt may be made immediately."""
        self._policy, self._clock = policy, clock
        self._failures = 0
        self._asked_until = float("-inf")
        self.opens = float("-inf")

    @property
    def is_open(self) -> bool:
        """Whether an attempt may be made now."""
        return self.opens <= self._clock()

    def passed(self) -> None:
        """Record a successful attempt."""
        self._failures = 0
        self.opens = self._asked_until = float("-inf")

    def failed(self, error: Exception) -> None:
        """Record a failure.

        The wait grows with each consecutive failure, up to a maximum, and is at least as long as
        the target asked for.
        """
        now = self._clock()
        wait = self._policy.backoff.wait(self._failures)
        self._failures += 1
        if isinstance(error, MisconfiguredError):
            wait = max(wait, self._policy.misconfigured)
        retry_after = error.retry_after if isinstance(error, PushError) else None
        if retry_after is not None:
            # Add jitter, since other clients may have been asked to wait for the same time.
            wait = max(wait, retry_after + min(self._policy.backoff.wait(0), 1.0))
            self._asked_until = now + retry_after
        self.opens = now + wait

    def shorten_waits(self) -> None:
        """Shorten the wait to what the target asked for, and restart with short waits."""
        self._failures = 0
        self.opens = min(self.opens, self._asked_until)


_NO_ANSWER = re.compile(
    r"no answer|no TLS connection|50[234]\b.*|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|"
)
_RATE_LIMIT = re.compile(r"429\b.*|RESOURCE_EXHAUSTED|held")
_UNAUTHORIZED = re.compile(r"40[137]\b.*|UNAUTHENTICATED|PERMISSION_DENIED")
_FINAL = re.compile(
    r"(?!408|425)[234]\d\d\b.*|NOT_FOUND|UNIMPLEMENTED|FAILED_PRECONDITION|OUT_OF_RANGE|ALREADY_EXISTS"
)


class FailureKind(Enum):
    """The kinds of failures, by their probable cause."""

    NO_ANSWER = auto()
    """The target or the network is at fault."""
    RATE_LIMIT = auto()
    """The lane has exceeded a limit for now, or is held; the batch is not at fault."""
    UNAUTHORIZED = auto()
    """The credentials of the lane, or of the target, are at fault."""
    FINAL = auto()
    """The answer will not change unless the request or the configuration changes."""
    SERVER_FAULT = auto()
    """The server failed, perhaps because of the batch."""


def kind_of(error: Exception) -> FailureKind:
    """Return the kind of a failure that is not a RefusedError."""
    status = error.status if isinstance(error, PushError) else None
    if status is None:
        return FailureKind.SERVER_FAULT
    for pattern, kind in (
        (_NO_ANSWER, FailureKind.NO_ANSWER),
        (_RATE_LIMIT, FailureKind.RATE_LIMIT),
        (_UNAUTHORIZED, FailureKind.UNAUTHORIZED),
        (_FINAL, FailureKind.FINAL),
    ):
        if pattern.fullmatch(status):
            return kind
    return FailureKind.SERVER_FAULT


OF_TARGET = (FailureKind.NO_ANSWER, FailureKind.SERVER_FAULT)
"""The kinds of failures that may concern all lanes of the target."""


def wait_after(policy: RetryPolicy, failures: int, error: Exception) -> float:
    """Return how many seconds to wait after an error that follows `failures` earlier errors."""
    wait = policy.backoff.wait(failures)
    if isinstance(error, MisconfiguredError):  # the wait grows faster, up to a longer limit
        wait = min(2.0 ** min(failures, 60) * wait, policy.misconfigured)
    return wait
