"""Checks of the device's time, and of the cost of measuring it."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch

from .loops import Training
from .machine import (
    Machine,
    expect,
    gpu_ms,
    median,
    traced,
)

PHASES = ("h2d", "forward", "loss", "backward", "optimizer_step")
LONG_MS = 5.0
CLOSE = 0.05
_GIB = 2**30


def truth(machine: Machine) -> None:
    """`gpu_ns` beside a synchronised measurement of the same work, in turns."""
    is_large = machine.is_gpu and torch.cuda.get_device_properties(0).total_memory > 40 * _GIB
    width = machine.size(8192, 8)
    training = Training(
        machine, width, (8 if is_large else 2) if machine.is_gpu else 1,
        rows=machine.size(2048, 4), copied=machine.size(16_384, 8),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-9),
    )  # fmt: skip
    waited: dict[str, list[float]] = defaultdict(list)
    told: dict[str, list[float]] = defaultdict(list)

    def wait(name: str, function: Any) -> Any:
        result = None

        def call() -> None:
            nonlocal result
            result = function()

        waited[name].append(machine.timed(call))
        return result

    steps = machine.size(10, 2)
    training.run(3)
    for _ in range(machine.size(3, 1)):
        training.run(steps, wait)
        with traced() as session:
            training.run(steps)
            machine.synchronize()
        for name in (*PHASES, "step"):
            found = [gpu_ms(node) for node in session.find(name)]
            if machine.is_gpu or name != "h2d":
                expect(len(found) == steps, f"{len(found)} scopes {name} in {steps} steps")
            if machine.is_gpu:
                expect(None not in found[1:], f"{name} without the device's time: {found}")
            # The first step meets the device idle: its copy begins when the host says so.
            told[name] += [each for each in found[1:] if each is not None]
    if not machine.is_gpu:
        return
    judged = 0
    for name in PHASES:
        measured, ours = median(waited[name]), median(told[name])
        machine.figures[name] = {"synchronised_ms": measured, "gpu_ms": ours}
        if measured >= LONG_MS:
            judged += 1
            expect(abs(ours / measured - 1) <= CLOSE, f"{name}: {ours} ms, not {measured} ms")
    expect(judged >= 3, f"only {judged} phases took {LONG_MS} ms or more: nothing was shown")
    whole, parts = median(told["step"]), sum(median(told[name]) for name in PHASES)
    machine.figures["step"] = {"gpu_ms": whole, "its_phases_ms": parts}
    expect(whole >= 0.98 * parts, f"step: {whole} ms, its phases {parts} ms")


def no_wait(machine: Machine) -> None:
    """While the device is busy for long, the host has gone on."""
    busy_ms = machine.size(50, 1)
    steps = machine.size(8, 2)
    training = Training(machine, 64, 1, busy_ms=busy_ms)

    training.run(2)
    plain = machine.race(lambda: training.run(steps))
    with traced() as session:
        training.run(2)
        ours = machine.race(lambda: training.run(steps))
        time.sleep(1)  # the flush thread looks after what waits
        again = machine.race(lambda: training.run(steps))
    machine.figures.update(
        {"untraced_ms": plain, "traced_ms": ours, "traced_again_ms": again, "steps": steps}
    )
    expect(len(session.find("step")) == 2 * steps + 2, "steps are missing")
    if machine.is_gpu:
        expect(plain[0] < plain[1] / 2, "the host waits for the device without tracing, too")
        for host, device in (ours, again):
            expect(host < device / 2, f"the host took {host} ms of the device's {device} ms")
        known = [gpu_ms(node) for node in session.find("forward")]
        expect(None not in known, f"forwards without the device's time: {known}")


def cost(machine: Machine) -> None:
    """The time of a step, traced and not, in turns."""
    sizes = {
        "small": (64, machine.size(12, 1), machine.size(200, 2)),
        "large": (machine.size(4096, 8), machine.size(6, 1), machine.size(40, 2)),
    }
    for name, (width, layers, steps) in sizes.items():
        training = Training(machine, width, layers)
        times: dict[bool, list[float]] = {False: [], True: []}
        training.run(20)
        for _ in range(machine.size(5, 1)):
            times[False].append(machine.timed(lambda: training.run(steps)) / steps)  # noqa: B023
            with traced(flush_interval=1.0):
                training.run(5)
                times[True].append(machine.timed(lambda: training.run(steps)) / steps)  # noqa: B023
        plain, ours = median(times[False]), median(times[True])
        machine.figures[name] = {
            "step_ms": plain, "traced_ms": ours, "added_us": (ours - plain) * 1e3,
        }  # fmt: skip
        if machine.is_gpu and plain >= 10:
            expect(ours <= 1.01 * plain, f"{name}: {ours} ms a step, {plain} ms untraced")
