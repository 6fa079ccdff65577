"""Attempts to send batches: what each resulted in, and the threads for several at the same time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value

from .batch_target import Receipt, SealedBatch
from .errors import PushError, RefusedError, StoppedError
from .retry_policy import FailureKind, kind_of
from .schedule import Schedule

if TYPE_CHECKING:
    from .backlog import Backlog

_ABOUT_THE_REQUEST = (FailureKind.SERVER_FAULT, FailureKind.FINAL, FailureKind.UNAUTHORIZED)


@dataclass(slots=True)
class Attempt:
    """One attempt to send batches, and its result once `run` has returned."""

    lane: str
    batches: list[SealedBatch]
    started: float
    """The time of the start, measured by the engine's clock."""
    backlog: Backlog | None = None
    """The batches' backlog; None for a dead letter."""
    is_in_flight: bool = False
    """Whether another thread sends the batches."""
    receipt: Receipt | None = None
    """The target's response, if it accepted the batches."""
    error: Exception | None = None

    def run(self, send: Callable[[], Receipt]) -> None:
        """Send the batches by calling `send`, and store the result."""
        try:
            self.receipt = send()
        except Exception as error:  # the engine's thread handles it
            self.error = error


class Result(NamedTuple):
    """The result of an attempt. If all fields are None, the batches will be tried one by one."""

    receipt: Receipt | None = None
    """The target's response, if it accepted the batches."""
    refusal: Exception | None = None
    """The error, if the attempt's only batch was permanently refused or given up."""
    failure: Exception | None = None
    """The error, if the batches will be tried again when the schedule allows it."""


def outcome_of(schedule: Schedule, attempt: Attempt) -> Result:
    """Record an attempt that has ended in the schedule. Raises StoppedError."""
    lane, names, error = attempt.lane, [each.name for each in attempt.batches], attempt.error
    if error is None:
        schedule.passed(lane, names)
        return Result(receipt=attempt.receipt)
    if isinstance(error, StoppedError):
        raise error
    if isinstance(error, RefusedError):
        schedule.answered(lane, ())
        return Result(refusal=error if len(names) == 1 else None)
    # If a group is the lane's first failure, send it batch by batch to find the cause.
    is_first = len(names) > 1 and not schedule.has_failed(lane)
    if is_first and kind_of(error) in _ABOUT_THE_REQUEST:
        return Result()
    is_hopeless = schedule.failed(lane, names, error, attempt.started)
    return Result(refusal=error) if is_hopeless else Result(failure=error)


def reason_of(refusal: Exception) -> str:
    """Return why a batch was refused, for the user."""
    return refusal.reason if isinstance(refusal, PushError) else str(refusal)


class Senders:
    """Threads that send requests. Only the engine's thread may use it."""

    def __init__(self, name: str, on_answer: Callable[[], None]) -> None:
        """Start no thread yet. `on_answer` is called from their threads after each attempt."""
        self._name, self._on_answer = name, on_answer
        self._jobs: queue.SimpleQueue[tuple[Attempt, Callable[[], Receipt]] | None] = (
            queue.SimpleQueue()
        )
        self._done: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        self._threads = 0
        self._in_flight = 0

    def __len__(self) -> int:
        return self._in_flight

    @property
    def has_answers(self) -> bool:
        """Whether `next` returns an attempt immediately."""
        return not self._done.empty()

    def start(self, attempt: Attempt, send: Callable[[], Receipt]) -> None:
        """Let a thread run an attempt. Raises RuntimeError if no thread can be started."""
        if self._threads <= self._in_flight:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._threads += 1
        self._in_flight += 1
        attempt.is_in_flight = True
        self._jobs.put((attempt, send))

    def next(self, timeout: float) -> Attempt | None:
        """Return an attempt that has ended, after at most `timeout` seconds."""
        if not self._in_flight:
            return None
        try:
            attempt = self._done.get(timeout > 0, max(timeout, 0.0))
        except queue.Empty:
            return None
        self._in_flight -= 1
        return attempt

    def close(self) -> None:
        """End the threads; a thread that sends a request ends after it."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _work(self) -> None:
        # Without this, an instrumented HTTP client would record each request as a span.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        while (job := self._jobs.get()) is not None:
            attempt, send = job
            attempt.run(send)
            self._done.put(attempt)
            del job, attempt, send  # the content of the batches
            self._on_answer()
