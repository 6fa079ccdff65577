"""`cuda_memory`: the allocator's peaks per step, read from `torch.cuda`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cirron_otel.core.config.options import Config
from cirron_otel.sdk.instrumentation.torch import cuda
from cirron_otel.sdk.instrumentation.torch.cuda import Memory, MemoryClock, PhaseMemory
from cirron_otel.sdk.session.errors import errors
from tests.sdk.instrumentation.device import Device

from .on_device import (
    loader,
    parts,
    session,
    tree,
)


class Allocator:
    """What `torch.cuda` says of memory, with its signatures."""

    def __init__(self) -> None:
        self.is_up = True
        self.current = self.peak = 0
        self.resets = 0
        self.broken = False

    def allocate(self, size: int) -> None:
        """Use so much more; less than 0 to give back."""
        self.current += size
        self.peak = max(self.peak, self.current)

    def is_initialized(self) -> bool:
        return self.is_up

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        assert device is None
        assert self.is_up, "CUDA would be initialised"
        self.resets += 1
        self.peak = self.current

    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]:
        assert device is None
        if self.broken:
            raise RuntimeError("not as expected")
        if not self.is_up:
            return {}
        return {
            "allocated_bytes": {"all": {"current": self.current, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": 2 * self.current, "peak": 2 * self.peak}},
        }


class Spending(Device):
    """A device whose work needs memory."""

    def __init__(self, allocator: Allocator, size: int) -> None:
        super().__init__()
        self.allocator, self.size = allocator, size

    def work(self, milliseconds: float) -> None:
        super().work(milliseconds)
        self.allocator.allocate(self.size)
        self.allocator.allocate(-self.size)


def test_used_torch_cuda_functions_exist() -> None:
    for name in ("is_initialized", "reset_peak_memory_stats", "memory_stats_as_nested_dict"):
        assert callable(getattr(torch.cuda, name))


def _peaks(directory: Path) -> list[tuple[Any, Any]]:
    found = [step.record["attrs"] for step in tree(directory).find("step")]
    return [(attrs.get(cuda.PEAK), attrs.get(cuda.RESERVED_PEAK)) for attrs in found]


def test_each_step_has_a_separate_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator()
    with session(tmp_path, monkeypatch, memory=Memory(allocator)):
        model, criterion, optimizer = parts(Device())
        allocator.allocate(1_000)  # what the model takes
        for number, (x, y) in enumerate(loader()):
            allocator.allocate(100 * (number + 1))
            criterion(model(x), y).backward()
            allocator.allocate(-100 * (number + 1))
            optimizer.step()
        allocator.allocate(9_999)
    assert _peaks(tmp_path) == [(1_100, 2_200), (1_200, 2_400), (1_300, 2_600)]


def test_memory_between_two_passes_is_in_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator()
    with session(tmp_path, monkeypatch, memory=Memory(allocator)):
        model, criterion, optimizer = parts(Device())
        for _ in range(2):
            for x, y in loader(1):
                allocator.allocate(7)
                criterion(model(x), y).backward()
                allocator.allocate(-7)
                optimizer.step()
            with torch.no_grad():
                for x, _ in loader(2):
                    allocator.allocate(500)
                    model(x)
                    allocator.allocate(-500)
    assert _peaks(tmp_path) == [(7, 14)] * 2


def test_step_without_a_loader_has_the_peak_since_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator()
    with session(tmp_path, monkeypatch, memory=Memory(allocator)):
        model, criterion, optimizer = parts(Device())
        for before, during in ((30, 0), (20, 200), (10, 0)):
            optimizer.device = Spending(allocator, during)
            allocator.allocate(before)
            criterion(model(torch.ones(1, 4)), torch.ones(1, 1)).backward()
            allocator.allocate(-before)
            optimizer.step()
    assert [peak for peak, _ in _peaks(tmp_path)] == [30, 200, 10]


def test_a_device_that_is_not_in_use_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator()
    allocator.is_up = False
    with session(tmp_path, monkeypatch, memory=Memory(allocator)):
        model, criterion, optimizer = parts(Device())
        for number, (x, y) in enumerate(loader()):
            criterion(model(x), y).backward()
            optimizer.step()
            allocator.is_up = number >= 1
    assert _peaks(tmp_path) == [(None, None), (0, 0), (0, 0)]


def test_statistics_that_are_not_as_expected_cost_the_attributes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator()
    allocator.broken = True
    with session(tmp_path, monkeypatch, memory=Memory(allocator)):
        model, criterion, optimizer = parts(Device())
        for x, y in loader():
            criterion(model(x), y).backward()
            optimizer.step()
    assert _peaks(tmp_path) == [(None, None)] * 3
    assert errors.counts["cuda memory"] == 3


def test_it_is_off_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "has_cuda", lambda: True)
    assert cuda.memory_of(Config()) is None
    assert isinstance(cuda.memory_of(Config(cuda_memory=True)), Memory)


class Busy(Device):
    """A device whose work of n ms needs n kB for as long as it is enqueued."""

    def __init__(self, allocator: Allocator, memory: PhaseMemory) -> None:
        super().__init__()
        self.allocator = allocator
        self.keeps_up = True
        self.clock = MemoryClock(self, memory)

    def work(self, milliseconds: float) -> None:
        super().work(milliseconds)
        size = int(milliseconds * 1_000)
        self.allocator.allocate(size)
        self.allocator.allocate(-size)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_each_phase_has_a_separate_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checkpointed: bool
) -> None:
    allocator = Allocator()
    memory = PhaseMemory(allocator)
    device = Busy(allocator, memory)
    with session(tmp_path, monkeypatch, device, memory=memory):
        model, criterion, optimizer = parts(device, is_checkpointed=is_checkpointed)
        allocator.allocate(7)
        for x, y in loader():
            criterion(model(x), y).backward()
            allocator.allocate(50_000)  # between the phases
            allocator.allocate(-50_000)
            optimizer.step()
    assert _peaks(tmp_path) == [(50_007, 100_014)] * 3
    for step in tree(tmp_path).find("step"):
        found = {
            node.name: node.record["attrs"].get(cuda.PEAK)
            for name in ("data_load", "forward", "loss", "backward", "recompute", "optimizer_step")
            for node in step.find(name)
        }
        expected = {
            "data_load": None, "forward": 5_007, "loss": 1_007, "backward": 10_007,
            "optimizer_step": 3_007,
        }  # fmt: skip
        assert found == expected | ({"recompute": 5_007} if is_checkpointed else {})
    assert memory._open == {}


def test_a_phase_of_a_device_that_is_not_in_use_has_no_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator()
    memory = PhaseMemory(allocator)
    device = Busy(allocator, memory)
    device.is_up = allocator.is_up = False
    with session(tmp_path, monkeypatch, device, memory=memory):
        model, criterion, optimizer = parts(Device())
        for x, y in loader():
            criterion(model(x), y).backward()
            optimizer.step()
    assert _peaks(tmp_path) == [(None, None)] * 3
    forwards = tree(tmp_path).find("forward")
    assert [node.record["attrs"].get(cuda.PEAK) for node in forwards] == [None] * 3


def test_peaks_by_phase_need_the_clock(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda, "has_cuda", lambda: True)
    config = Config(cuda_memory="phase", cuda_timing=False)
    memory = cuda.memory_of(config)
    assert isinstance(memory, PhaseMemory)
    assert cuda.clock_of(config, memory) is None
    assert "cuda_memory=phase needs cuda_timing" in caplog.text
    assert isinstance(cuda.clock_of(Config(cuda_memory="phase"), memory), MemoryClock)
    assert not isinstance(cuda.clock_of(Config()), MemoryClock)
