"""Resting while others want the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from cirron_otel.collector.service.cpu_yield import Cores, Yielding, cores

S = 1_000_000_000


def yielding(*seen: tuple[float, float]) -> Yielding:
    """One that reads these (seconds it had, seconds it queued), one behind the other."""
    told: Iterator[Cores] = iter([Cores(round(a * S), round(b * S)) for a, b in seen])
    return Yielding(lambda: next(told))


def never() -> bool:
    return False


def test_rest_is_based_on_work_since_the_previous_call() -> None:
    one = yielding((5, 9), (5.01, 9.002), (5.03, 9.002), (5.04, 9.02))
    assert one.rest(never) == pytest.approx(0.04)  # it queued for a fifth
    assert one.rest(never) == 0  # not at all
    assert one.rest(never) == pytest.approx(0.04)


def test_it_does_not_rest_with_cores_to_spare_nor_for_long() -> None:
    assert yielding((0, 0), (1, 0.09)).rest(never) == 0
    assert yielding((0, 0), (1, 0.11)).rest(never) == pytest.approx(0.5)
    assert Yielding(lambda: None).rest(never) == 0  # a system that does not say


def test_missing_reading_is_not_treated_as_zero() -> None:
    told = iter([Cores(S, S), None, Cores(2 * S, 9 * S), Cores(2 * S, 9 * S)])
    one = Yielding(lambda: next(told))
    assert [one.rest(never) for _ in range(3)] == [0, 0, 0]


def test_it_does_not_rest_when_it_is_urgent_nor_when_it_becomes_so() -> None:
    assert yielding((0, 0), (0.1, 0.1)).rest(lambda: True) == 0
    asked = iter([False, False, True])
    assert yielding((0, 0), (0.1, 0.1)).rest(lambda: next(asked)) == pytest.approx(0.1)


@pytest.mark.skipif(
    not (cores() or [0])[0], reason="a kernel that does not say how long one queued"
)
def test_who_shares_a_core_queues_for_it() -> None:
    core = min(os.sched_getaffinity(0))
    program = (
        f"import os\nos.sched_setaffinity(0, [{core}])\nprint('on', flush=True)\nwhile 1: pass"
    )
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            os.sched_setaffinity(0, [core])
            one = Yielding()
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
            assert one.rest(never) > 0
        finally:
            os.sched_setaffinity(0, before)
            other.kill()
