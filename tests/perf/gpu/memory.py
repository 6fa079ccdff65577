"""Checks of the attributes that describe the device, and of the device's memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from cirron_otel.sdk.session.resource import GPU_COUNT, GPU_MODEL, surroundings

from .machine import (
    Machine,
    Unavailable,
    expect,
    traced,
)

_MIB = 2**20
_EXTRA = 256 * _MIB
_STEPS = 6
_HUNGRY = 3
"""The step that needs more."""
PEAK, RESERVED = "cuda.memory_peak_bytes", "cuda.memory_reserved_peak_bytes"


class Hungry(nn.Linear):
    """Needs so much more while it computes."""

    extra = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.extra:
            torch.empty(self.extra, dtype=torch.uint8, device=x.device)
        return super().forward(x)


def _nothing() -> None:
    """Between steps."""


class _Training:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.net = Hungry(64, 64).to(machine.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def run(
        self, hungry: int | None, before: Callable[[], Any] = _nothing,
        after: Callable[[], Any] = _nothing,
    ) -> None:  # fmt: skip
        for number, x in enumerate(DataLoader(torch.ones(_STEPS, 64), 1)):
            before()
            self.net.extra = _EXTRA if number == hungry else 0
            self.net(x.to(self.machine.device)).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            after()


def memory(machine: Machine) -> None:
    """The peaks of the steps are torch's own; by default torch's are left as they are."""
    training = _Training(machine)
    training.run(_HUNGRY)
    measured: list[int] = []
    if machine.is_gpu:
        training.run(
            _HUNGRY,
            torch.cuda.reset_peak_memory_stats,
            lambda: measured.append(torch.cuda.max_memory_allocated()),
        )
    with traced(cuda_memory=True) as session:
        training.run(_HUNGRY)
    attrs = [step.record["attrs"] for step in session.find("step")]
    expect(len(attrs) == _STEPS, f"{len(attrs)} steps")
    peaks = [each.get(PEAK) for each in attrs]
    reserved = [each.get(RESERVED) for each in attrs]
    machine.figures.update({"peaks": peaks, "reserved": reserved, "torch_peaks": measured})
    _left_alone(machine, training)
    if not machine.is_gpu:
        return
    expect(peaks == measured, f"the peaks are {peaks}, torch's own {measured}")
    higher = peaks[_HUNGRY] - peaks[_HUNGRY - 1]
    expect(abs(higher - _EXTRA) < _MIB, f"{higher} bytes more, not {_EXTRA}")
    expect(peaks[_HUNGRY + 1] < peaks[_HUNGRY], "the step after it has its peak, too")
    expect(all(one >= other for one, other in zip(reserved, peaks, strict=True)), "too little")


class _Measured(nn.Module):
    """Measures torch's peak in its own forward, as the phase does."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.peaks: list[int] = []
        self.is_on = True

    def forward(self, x: Tensor) -> Tensor:
        if self.is_on:
            torch.cuda.reset_peak_memory_stats()
        out: Tensor = self.net(x)
        if self.is_on:
            self.peaks.append(torch.cuda.max_memory_allocated())
        return out


def phases(machine: Machine) -> None:
    """The peaks of forward and backward are torch's own, measured in a run without tracing."""
    net = _Measured(Hungry(2048, 2048))
    training = _Training(machine)
    net.net.extra = _EXTRA
    training.net = net.to(machine.device)  # type: ignore[assignment]
    training.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    backward: list[int] = []

    def run() -> None:
        for x in DataLoader(torch.ones(_STEPS, 2048), 1):
            loss = net(x.to(machine.device)).mean()
            if net.is_on:
                torch.cuda.reset_peak_memory_stats()
            loss.backward()
            if net.is_on:
                backward.append(torch.cuda.max_memory_allocated())
            training.optimizer.step()
            training.optimizer.zero_grad()
            del loss

    net.is_on = machine.is_gpu
    run()
    net.is_on = False
    with traced(cuda_memory="phase") as session:
        run()
    found = {
        name: [node.record["attrs"].get(PEAK) for node in session.find(name)]
        for name in ("forward", "backward", "step")
    }
    machine.figures.update(found | {"torch": [net.peaks, backward]})
    expect(len(found["forward"]) == len(found["backward"]) == _STEPS, "phases are missing")
    if not machine.is_gpu:
        return
    # The first step of the first run allocates the gradients; later steps are the same in each run.
    expect(found["forward"][1:] == net.peaks[1:], "the peaks of forward differ")
    expect(found["backward"][1:] == backward[1:], "the peaks of backward differ")
    highest = list(map(max, found["forward"], found["backward"]))
    enough = all(step >= peak for step, peak in zip(found["step"], highest, strict=True))
    expect(enough, "a step has less than its phases")


def samples(machine: Machine) -> None:
    """Sampled values never exceed torch's peak; no other device is touched; the cost is small."""
    training = _Training(machine)
    training.run(None)
    if machine.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    with traced(sample_interval=0.01) as session:
        for number in range(machine.size(200, 5)):
            training.run(_HUNGRY if number % 2 else None)
    marks = [
        mark for node in session.find("cirron.session") for mark in _all_marks(node)
        if mark["name"] == "memory"
    ]  # fmt: skip
    machine.figures["samples"] = len(marks)
    expect(bool(marks), "there is no sample")
    if not machine.is_gpu:
        expect(all(mark["attrs"]["backend"] == "cpu" for mark in marks), "a device was read")
        return
    peak = torch.cuda.max_memory_allocated()
    on_device = [mark for mark in marks if mark["attrs"]["backend"] == "cuda"]
    values = [mark["value"] for mark in on_device]
    machine.figures.update({"highest": max(values), "peak": peak})
    expect(max(values) <= peak, f"a sample of {max(values)} exceeds the peak of {peak}")
    expect({mark["attrs"]["device_id"] for mark in on_device} == {0}, "another device was read")
    for device in range(1, torch.cuda.device_count()):
        has_context = torch._C._cuda_hasPrimaryContext(device)  # type: ignore[attr-defined]
        expect(not has_context, f"device {device} has a context")
    known = ("allocator_reserved_bytes", "device_used_bytes", "device_total_bytes")
    expect(all(key in mark["attrs"] for mark in on_device for key in known), "a value is missing")
    times = {None: [], 1.0: []}  # type: dict[float | None, list[float]]
    for _ in range(5):
        for interval, found in times.items():
            with traced(sample_interval=interval):
                found.append(machine.timed(lambda: [training.run(None) for _ in range(100)]))
    ratio = sorted(times[1.0])[2] / sorted(times[None])[2]
    machine.figures["ratio"] = ratio


def _all_marks(node: Any) -> list[dict[str, Any]]:
    return [*node.marks, *(mark for child in node.children for mark in _all_marks(child))]


def _left_alone(machine: Machine, training: _Training) -> None:
    """Off, as it is by default: torch's peak is that of before, and steps say nothing of it."""
    before = after = 0
    if machine.is_gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.empty(_EXTRA, dtype=torch.uint8, device=machine.device)
        before = torch.cuda.max_memory_allocated()
    with traced() as session:
        training.run(None)
    if machine.is_gpu:
        after = torch.cuda.max_memory_allocated()
    machine.figures["torch_peak_off"] = [before, after]
    expect(after == before, f"torch's peak was {before} bytes, and is {after} now")
    told = [set(step.record["attrs"]) & {PEAK, RESERVED} for step in session.find("step")]
    expect(len(told) == _STEPS and not any(told), f"off, the steps have {told}")


def place(machine: Machine) -> None:
    """The resource detector's model and number of GPUs are torch's."""
    found = surroundings(os.environ)
    told = found.get(GPU_MODEL), found.get(GPU_COUNT)
    machine.figures["told"] = list(told)
    if not machine.is_gpu:
        return
    directory = "/proc/driver/nvidia/gpus"
    if not Path(directory).is_dir():
        raise Unavailable("the kernel's files do not name the GPUs", lacks=directory)
    names = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    expected = ", ".join(dict.fromkeys(names)), len(names)
    machine.figures["torch"] = list(expected)
    expect(told == expected, f"told are {told}, torch says {expected}")
