"""The result of a doctor's check, and the time limit of checks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class CheckState(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    """The checked item works, or may work, but is probably not what the user intended."""
    FAILED = "failed"
    """The checked item does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's output."""

    name: str
    state: CheckState
    found: str
    """The finding, without secrets."""
    advice: str = ""
    """The remedy; "" if none is needed."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further fields for `--json`."""
    is_endpoint: bool = False
    """Whether the check failed because of an endpoint."""

    def to_json(self) -> dict[str, Any]:
        """Return the check as a JSON object."""
        return {
            "check": self.name,
            "state": str(self.state),
            "found": self.found,
            "advice": self.advice,
            "details": dict(self.details),
        }


class Problem(Exception):  # noqa: N818 - a finding that ends a series of checks
    """A finding that ends a series of checks, with the `found` and `advice` of its check."""

    def __init__(self, found: str, advice: str = "") -> None:
        """`found` is the finding, `advice` the remedy, as in `Check`."""
        super().__init__(found)
        self.found, self.advice = found, advice


def ok(name: str, found: str, **details: Any) -> Check:
    """Return a check that found no problem."""
    return Check(name, CheckState.OK, found, details=details)


def warning(name: str, found: str, advice: str, **details: Any) -> Check:
    """Return a check whose finding is probably not intended."""
    return Check(name, CheckState.WARNING, found, advice, details)


def failed(name: str, found: str, advice: str, **details: Any) -> Check:
    """Return a check that found something that does not work."""
    return Check(name, CheckState.FAILED, found, advice, details)


def unreachable(name: str, problem: Problem) -> Check:
    """Return a failed check of an endpoint."""
    return Check(name, CheckState.FAILED, problem.found, problem.advice, is_endpoint=True)


class Deadline:
    """The time by which all checks of one item must be finished."""

    def __init__(self, seconds: float) -> None:
        """Set the deadline to `seconds` from now."""
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self, most: float = float("inf")) -> float:
        """Return the seconds left, at most `most`; never 0, which would make a socket non-
        blocking.
        """
        return max(min(self._end - time.monotonic(), most), 0.001)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._end


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of `call`, run in a separate thread for at most `seconds`.

    Raises TimeoutError if it takes longer. A call that never returns (because of a silent name
    server, or a hanging file system) keeps its thread, which ends with the process.
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
    """Return the first few names as text, followed by the number of remaining names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
