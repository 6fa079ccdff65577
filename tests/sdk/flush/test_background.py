"""The time that the training thread loses to flushes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cirron_otel.sdk.flush.background import Background, Window, distribute, has_clocks
from cirron_otel.sdk.tracing.phase import Phase, Step
from cirron_otel.sdk.tracing.scope import NO_SESSION, Scope

pytestmark = pytest.mark.skipif(not has_clocks(), reason="the CPU time of threads is unknown")
WORK = 150_000


def compute(amount: int = WORK) -> None:
    """Hold the interpreter lock."""
    for _ in range(amount):
        pass


class Trainer:
    """A thread that repeats some work until it is stopped."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self._is_over = work, False
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._has_begun.set()
        while not self._is_over:
            self._work()

    def __enter__(self) -> int:
        self._thread.start()
        self._has_begun.wait()
        assert self._thread.ident is not None
        return self._thread.ident

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()


def flushed(thread: int, flushes: int = 12) -> Background:
    """Flushes that hold the interpreter lock, with pauses of which a thread waits for the end."""
    background = Background()
    background.thread = thread
    for _ in range(flushes):
        threading.Event().wait(0.02)
        background.begin()
        compute()
        background.end()
    return background


def test_time_that_a_computing_thread_loses_is_at_most_the_time_of_flushes() -> None:
    with Trainer(lambda: compute(1000)) as thread:
        background = flushed(thread)
    assert 0 < background.lost_ns <= background.cpu_ns
    assert sum(window.lost for window in background.windows) == background.lost_ns


def test_waiting_thread_loses_nothing() -> None:
    pause = threading.Event()
    with Trainer(lambda: pause.wait(0.005)) as thread:
        background = flushed(thread)
    assert background.cpu_ns > 0
    assert background.lost_ns == 0


def test_thread_that_has_ended_is_not_read() -> None:
    with Trainer(lambda: compute(1000)) as thread:
        background = flushed(thread, 2)
    background.begin()
    background.end()
    assert background.lost_ns <= background.cpu_ns


def test_without_a_thread_nothing_is_measured() -> None:
    background = Background()
    background.begin()
    background.end()
    assert background.lost_ns == 0


def ended(kind: type[Scope], start: int, end: int) -> Scope:
    scope = kind.__new__(kind)
    Scope.__init__(scope, "step")
    scope._start, scope._end, scope._depth, scope._above = start, end, 1, NO_SESSION
    return scope


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((5, 25, 11), [5, 6, 0]),  # two steps ended in it
        ((31, 32, 4), [0, 0, 4]),  # the next step
        ((50, 60, 4), [0, 0, 4]),  # the last step
    ],
)
def test_lost_time_is_in_the_steps_that_the_flush_slowed(
    window: tuple[int, int, int], expected: list[int]
) -> None:
    scopes = [ended(Step, 0, 10), ended(Phase, 11, 15), ended(Step, 10, 20), ended(Step, 20, 40)]
    steps = [each for each in scopes if type(each) is Step]
    inside: dict[Scope, int] = {}
    assert distribute([Window(*window)], scopes, inside) == 1
    assert [inside.get(step, 0) for step in steps] == expected


def test_lost_time_waits_for_a_scope_that_ends() -> None:
    inside: dict[Scope, int] = {}
    assert distribute([Window(0, 10, 5)], [ended(Phase, 1, 2)], inside) == 0
    assert not inside
