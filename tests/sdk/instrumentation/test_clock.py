"""The device's time of scopes: no call waits, no scope is lost, no event leaks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cirron_otel.sdk.instrumentation.iteration import span
from cirron_otel.sdk.instrumentation.torch import clock as module
from cirron_otel.sdk.instrumentation.torch.clock import CLOSING_S, DEADLINE_S, OFTEN
from cirron_otel.sdk.session.errors import errors
from cirron_otel.sdk.tracing.phase import Phase
from cirron_otel.sdk.tracing.scope import NO_SESSION

from .device import Device, Value


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture(autouse=True)
def _no_violation(device: Device) -> Any:
    errors.reset()
    yield
    assert device.violations == []


def _phase(above: Any = NO_SESSION) -> Phase:
    """A scope that ran on the host from 1 to 2."""
    phase = Phase.__new__(Phase)
    phase._above, phase._stamps, phase._extras = above, None, None
    phase._start, phase._until, phase._end = 1, 2, 0
    return phase


def _run(device: Device, milliseconds: float, above: Any = NO_SESSION) -> Phase:
    """A settled phase with that much work."""
    phase = _phase(above)
    device.clock.begin(phase)
    device.work(milliseconds)
    device.clock.end(phase)
    if phase._stamps is None:
        phase.finish()
    else:
        device.clock.settle(phase)
    return phase


def _in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_a_scope_waits_for_its_events_and_has_the_devices_time(device: Device) -> None:
    phase = _run(device, 7.5)
    device.clock.poll()
    assert not phase._end
    device.catch_up()
    device.clock.poll()
    assert (phase._end, phase.gpu_ns) == (2, 7_500_000)


def test_ends_on_two_streams_are_both_waited_for(device: Device) -> None:
    phase = _phase()
    device.lag_ms = 5.0  # a copy on a stream of its own, begun behind much that it waits for
    device.clock.begin(phase)
    device.lag_ms = 0.0
    device.work(1.0)
    device.clock.end(phase)
    device.clock.settle(phase)
    device.catch_up()
    device.clock.poll()
    assert not phase._end
    device.work(9.0)
    device.catch_up()
    device.clock.poll()
    assert (phase._end, errors.counts["cuda"]) == (2, 0)


def test_a_scope_costs_two_records_and_nothing_else_while_it_runs(device: Device) -> None:
    phase = _phase()
    device.clock.begin(phase)
    device.clock.end(phase)
    assert (device.records, device.queries) == (2, 0)
    device.clock.settle(phase)
    assert device.queries == 0


def test_unfinished_work_is_queried_once_per_poll(device: Device) -> None:
    for _ in range(5):
        _run(device, 1)
    device.clock.poll()
    assert device.queries == 1
    device.clock.poll()
    assert device.queries == 2


def test_ten_thousand_steps_make_a_few_events(device: Device) -> None:
    for _ in range(10_000):
        for _ in range(4):
            _run(device, 1)
        device.done_ms = device.enqueued_ms - 12  # it is three steps behind
        device.clock.poll()
    assert device.made <= 50


def test_measurements_past_the_deadline_release_their_events(device: Device) -> None:
    for _ in range(1_000):
        phase = _run(device, 1)
        device.seconds += DEADLINE_S
        device.clock.expire()
        assert phase._end
        assert phase.gpu_ns is None
        device.clock.poll()
    assert device.made <= 4
    assert device.clock.unread == 1_000


def test_a_step_reaches_over_its_children_and_shares_their_events(device: Device) -> None:
    steps = []
    for _ in range(100):
        step = _phase()
        for milliseconds in (1, 2, 4):
            phase = _phase(step)
            device.clock.begin(phase)
            device.work(milliseconds)
            device.clock.end(phase)
            span(step, phase._stamps)
            device.clock.settle(phase)
            device.work(0.5)  # what is in no phase
        device.clock.settle(step)
        steps.append(step)
        device.catch_up()
        device.clock.poll()
    assert {step.gpu_ns for step in steps} == {8_000_000}
    assert device.made == 6


def test_nothing_is_asked_by_the_flush_thread(device: Device) -> None:
    phase = _run(device, 1)
    device.catch_up()
    _in_thread(device.clock.expire)
    assert not phase._end
    device.seconds += DEADLINE_S
    _in_thread(device.clock.expire)
    assert phase._end
    assert phase.gpu_ns is None
    assert device.queries == 0


def test_stalled_thread_reads_results_the_flush_thread_did_not_expire(device: Device) -> None:
    _run(device, 1)
    device.seconds += DEADLINE_S / 2
    later = _run(device, 2)
    device.seconds += DEADLINE_S / 2
    _in_thread(device.clock.expire)
    device.catch_up()
    device.clock.poll()
    assert later.gpu_ns == 2_000_000


def test_overdue_result_is_still_read_at_the_next_poll(device: Device) -> None:
    phase = _run(device, 1)
    device.seconds += 2 * DEADLINE_S
    device.catch_up()
    device.clock.poll()
    assert phase.gpu_ns == 1_000_000


def test_without_steps_a_thread_asks_from_time_to_time(device: Device) -> None:
    device.keeps_up = True
    phases = [_run(device, 1) for _ in range(OFTEN)]
    assert all(phase.gpu_ns == 1_000_000 for phase in phases)


@pytest.mark.parametrize("captured", ["begin", "end", "both"])
def test_a_phase_that_meets_a_capture_has_no_time(device: Device, captured: str) -> None:
    phase = _phase()
    device.is_capturing = captured in ("begin", "both")
    device.clock.begin(phase)
    device.is_capturing = captured in ("end", "both")
    if phase._stamps is not None:
        device.clock.end(phase)
    assert phase._stamps is None
    device.is_capturing = False
    before = device.made
    other = _run(device, 1)
    assert device.made <= max(before + 1, 2)  # what was begun in vain is used again
    device.catch_up()
    device.clock.poll()
    assert other.gpu_ns == 1_000_000


def test_nothing_is_asked_while_a_graph_is_captured(device: Device) -> None:
    phase = _run(device, 1)
    device.catch_up()
    device.is_capturing = True
    device.clock.poll()
    for _ in range(2 * OFTEN):
        _run(device, 1)
    assert device.queries == 0
    device.is_capturing = False
    device.clock.poll()
    assert phase.gpu_ns == 1_000_000


def test_a_capture_waits_until_no_thread_is_asking(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_QUIET_S", 20.0)
    device.clock.install(None)  # type: ignore[arg-type]
    _run(device, 1)
    (line,) = device.clock._all_queues
    is_quiet = threading.Event()

    def capture() -> None:
        device.quiet()
        is_quiet.set()

    with line.lock:  # as while it asks
        thread = threading.Thread(target=capture)
        thread.start()
        assert not is_quiet.wait(0.05)
    thread.join()
    assert is_quiet.is_set()


def test_device_state_is_checked_while_holding_the_queue_lock(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(device, 1)
    (line,) = device.clock._all_queues
    was_locked = []
    monkeypatch.setattr(device, "is_off", lambda: was_locked.append(line.lock.locked()))
    device.clock.poll()
    assert was_locked == [True]


def test_no_events_are_created_until_the_device_is_in_use(device: Device) -> None:
    device.is_up = False
    phase = _run(device, 1)
    assert phase._end
    assert phase.gpu_ns is None
    assert device.made == 0


def test_an_event_that_raises_costs_the_time_alone(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "cirron_otel")
    good = _run(device, 1)
    device.broken = True
    for _ in range(3):
        phase = _run(device, 1)
        assert phase._end
        assert phase.gpu_ns is None
    device.clock.poll()
    assert good._end
    assert good.gpu_ns is None
    assert len(caplog.records) == 1
    device.broken = False
    after = _run(device, 3)
    device.catch_up()
    device.clock.poll()
    assert after.gpu_ns == 3_000_000


def test_a_thread_that_turns_to_another_device_makes_events_of_that(device: Device) -> None:
    device.keeps_up = True
    _run(device, 1)
    device.clock.poll()
    device.number = 1
    phase = _run(device, 2)
    device.clock.poll()
    assert phase.gpu_ns == 2_000_000
    assert errors.counts == {}


def test_each_thread_polls_only_its_results(device: Device) -> None:
    mine = _run(device, 1)
    theirs: list[Phase] = []

    def other() -> None:
        theirs.append(_run(device, 2))
        device.catch_up()
        device.clock.poll()

    _in_thread(other)
    assert theirs[0].gpu_ns == 2_000_000
    assert not mine._end
    device.clock.poll()
    assert mine.gpu_ns == 1_000_000


def test_a_slow_stream_holds_up_no_other_thread(device: Device) -> None:
    device.work(1_000_000)
    slow = _run(device, 1)
    device.enqueued_ms = 0
    fast: list[Phase] = []

    def other() -> None:
        fast.append(_run(device, 1))
        device.catch_up()
        device.clock.poll()

    _in_thread(other)
    assert fast[0].gpu_ns == 1_000_000
    assert not slow._end


def test_training_thread_polls_times_recorded_on_the_autograd_thread(
    device: Device,
) -> None:
    device.also_asks = {threading.get_ident()}
    backward = _phase()
    device.clock.begin(backward)
    recomputed: list[Phase] = []
    _in_thread(lambda: recomputed.append(_run(device, 3, above=backward)))
    device.clock.end(backward)
    device.clock.settle(backward)
    device.catch_up()
    device.clock.poll()
    assert (recomputed[0].gpu_ns, backward.gpu_ns) == (3_000_000, 3_000_000)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_step_finishes_only_after_its_nonzero_value_is_reported(
    device: Device, found: float
) -> None:
    step = _phase()
    device.clock.begin(step)
    device.work(5)
    device.clock.end(step)
    ends: list[int] = []
    device.clock.read(step, Value(device, found), lambda some: ends.append(some._end))
    device.clock.settle(step)
    device.done_ms = 5  # the step is done, the copy is not
    device.clock.poll()
    assert not step._end
    device.catch_up()
    device.clock.poll()
    assert step.gpu_ns == 5_000_000
    assert ends == ([0] if found else [])


def test_a_value_is_not_copied_while_a_graph_is_captured(device: Device) -> None:
    device.is_capturing = True
    device.clock.read(_phase(), Value(device, 1.0), lambda _: pytest.fail("it was told"))
    assert device.enqueued_ms == 0


def test_close_waits_for_nearly_finished_work(device: Device) -> None:
    phase = _run(device, 1)
    device.on_pause = lambda: device.catch_up() if device.pauses == 3 else None
    device.clock.close()
    assert phase.gpu_ns == 1_000_000
    assert device.pauses == 3


def test_close_waits_no_longer_than_its_timeout(device: Device) -> None:
    phase = _run(device, 1)
    device.clock.close()
    assert device.seconds == pytest.approx(CLOSING_S, abs=0.01)
    assert phase._end
    assert phase.gpu_ns is None


def test_the_end_does_not_wait_for_a_capture(device: Device) -> None:
    phase = _run(device, 1)
    device.is_capturing = True
    device.clock.close()
    assert device.pauses == 0
    assert phase._end


def test_the_end_asks_for_threads_that_are_gone_and_not_for_those_that_live(
    device: Device,
) -> None:
    device.keeps_up = True
    phases: list[Phase] = []
    has_run, is_over = threading.Event(), threading.Event()

    def living() -> None:
        phases.append(_run(device, 1))
        has_run.set()
        is_over.wait(120)

    thread = threading.Thread(target=living)
    thread.start()
    assert has_run.wait(120)
    try:
        device.clock.close()
    finally:
        is_over.set()
        thread.join()
    _in_thread(lambda: phases.append(_run(device, 2)))
    device.is_anyones = True  # its thread is gone, so nobody else asks
    device.clock.close()
    assert all(phase._end for phase in phases)
    assert [phase.gpu_ns for phase in phases] == [None, 2_000_000]


def test_threads_that_are_gone_are_forgotten(device: Device) -> None:
    for _ in range(20):
        _in_thread(lambda: _run(device, 1) and None)
    device.seconds += DEADLINE_S
    device.clock.expire()
    assert len(device.clock._all_queues) <= 1


def test_polling_and_expiring_at_once_finish_every_scope_once(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Phase] = []
    monkeypatch.setattr(Phase, "finish", lambda phase: finished.append(phase) or None)
    is_over = threading.Event()

    def expire() -> None:
        while not is_over.wait(0.0001):
            device.clock.expire()

    thread = threading.Thread(target=expire)
    thread.start()
    phases = []
    for number in range(3_000):
        phases.append(_run(device, 1))
        if number % 3 == 0:
            device.seconds += DEADLINE_S / 4
        if number % 5 == 0:
            device.done_ms = device.enqueued_ms - 2
        device.clock.poll()
    is_over.set()
    thread.join()
    device.catch_up()
    device.clock.poll()
    assert len(finished) == len(phases)
    assert set(map(id, finished)) == set(map(id, phases))
