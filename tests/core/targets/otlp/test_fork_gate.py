"""Calls run beside each other, and a fork waits for all of them, for a moment."""

from __future__ import annotations

import os
import threading

from cirron_otel.core.targets.otlp.fork_gate import ForkGate


def test_a_silent_endpoint_holds_up_no_other_call() -> None:
    gate = ForkGate()
    ended = threading.Event()

    def other() -> None:
        with gate.call():
            ended.set()

    with gate.call():
        threading.Thread(target=other, daemon=True).start()
        assert ended.wait(60)


def test_a_call_waits_for_a_fork_and_a_fork_for_calls() -> None:
    gate = ForkGate()
    inside, go_on, forked = (threading.Event() for _ in range(3))
    during: list[int] = []

    def call() -> None:
        with gate.call():
            inside.set()
            go_on.wait(60)

    def fork() -> None:
        gate._before()
        during.append(gate._calls)
        threading.Thread(target=call, daemon=True).start()
        during.append(gate._calls)
        gate._in_parent()
        forked.set()

    threading.Thread(target=call, daemon=True).start()
    assert inside.wait(60)
    inside.clear()
    threading.Thread(target=fork, daemon=True).start()
    go_on.set()
    assert forked.wait(60)
    assert during == [0, 0]
    assert inside.wait(60)


def test_a_fork_does_not_wait_for_ever_and_the_child_may_call() -> None:
    gate = ForkGate()
    with gate.call():
        child = os.fork()
        if child == 0:
            with gate.call():
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with gate.call():
        pass
