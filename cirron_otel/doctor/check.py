"""A finding of the doctor, and the time that there is for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class State(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    """It works, or may; it is hardly what was meant."""
    FAILED = "failed"
    """It does not work as it is."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line."""

    name: str
    state: State
    found: str
    """What was found; no secret is in it."""
    advice: str = ""
    """What to do; "" where there is nothing to be done."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """More of it, for machines."""
    is_endpoint: bool = False
    """Whether it is about an endpoint that does not answer as it should."""

    def to_json(self) -> dict[str, Any]:
        """The finding for machines."""
        return {
            "check": self.name,
            "state": str(self.state),
            "found": self.found,
            "advice": self.advice,
            "details": dict(self.details),
        }


class Problem(Exception):  # noqa: N818 - a finding that ends a series of checks
    """What is wrong, as a check's `found` and `advice` say it."""

    def __init__(self, found: str, advice: str = "") -> None:
        """See Check."""
        super().__init__(found)
        self.found, self.advice = found, advice


def ok(name: str, found: str, **details: Any) -> Check:
    """A check that found nothing wrong."""
    return Check(name, State.OK, found, details=details)


def warning(name: str, found: str, advice: str, **details: Any) -> Check:
    """A check that found what is hardly meant."""
    return Check(name, State.WARNING, found, advice, details)


def failed(name: str, found: str, advice: str, **details: Any) -> Check:
    """A check that found what does not work."""
    return Check(name, State.FAILED, found, advice, details)


def unreached(name: str, problem: Problem) -> Check:
    """A check of an endpoint that found what does not work."""
    return Check(name, State.FAILED, problem.found, problem.advice, is_endpoint=True)


class Deadline:
    """A point in time that nothing goes beyond."""

    def __init__(self, seconds: float) -> None:
        """`seconds` from now."""
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self, most: float = float("inf")) -> float:
        """The seconds that are left, `most` at most; never 0, which is another mode of sockets."""
        return max(min(self._end - time.monotonic(), most), 0.001)

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._end


def within(seconds: float, call: Callable[[], T]) -> T:
    """What `call` gives, on a thread of its own. Raises TimeoutError where it takes longer.

    What the operating system does not let go of (a name server that is silent, a file system that
    hangs) is left to its thread, which ends with the process.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:.3g} s")
    return results[0]


def listed(names: list[str], most: int = 5) -> str:
    """Names in a sentence, the first few of many."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
