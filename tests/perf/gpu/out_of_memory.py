"""Checks of the out-of-memory flight recorder on the device."""

from __future__ import annotations

import gc
import json
import pickle
import time
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cirron_otel as ci

from .machine import Machine, expect, traced

_MIB = 2**20
_SHARE = 8
"""The failing step asks for this many times the device's memory."""
_HISTORY = "memory_snapshot.pickle"
_PATIENCE_S = 30


class Hungry(nn.Linear):
    """Keeps activations that do not fit, once it is told to."""

    extra = 0

    def forward(self, x: Tensor) -> Tensor:
        held = [torch.empty(64 * _MIB, dtype=torch.uint8, device=x.device)]
        if self.extra:
            held.append(torch.empty(self.extra, dtype=torch.uint8, device=x.device))
        return super().forward(x) + 0 * len(held)


def _allocated(machine: Machine) -> int:
    return torch.cuda.memory_allocated() if machine.is_gpu else 0


def _attempt(net: Hungry, x: Tensor, batches: list[weakref.ref[Tensor]]) -> bool:
    batch = x.clone()
    batches.append(weakref.ref(batch))
    try:
        with ci.scope("step", len(batches) - 1):
            net(batch).mean().backward()
    except (torch.OutOfMemoryError, RuntimeError):
        return False
    return True


def out_of_memory(machine: Machine) -> None:
    """A caught OOM has a mark and a bundle, and a retry has as much memory as without us."""
    net = Hungry(64, 64).to(machine.device)
    x = torch.ones(8, 64, device=machine.device)
    too_much = _too_much(machine)
    plain = _retried(machine, net, x, too_much)
    if machine.is_gpu:
        torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        with traced(sample_interval=0.05) as session:
            _await_sample()
            with_us = _retried(machine, net, x, too_much)
            expect(ci.flush(), "the bundle was not written in time")
            files = _bundle(Path(session.profiler.config.output_dir))
        node = session.find("forward")[0]
    finally:
        if machine.is_gpu:
            torch.cuda.memory._record_memory_history(enabled=None)
    machine.figures.update({"plain": plain, "with_us": with_us, "too_much": too_much})
    expect(with_us == plain, f"after the error {with_us} bytes are allocated, not {plain}")
    (mark,) = [each for each in node.marks if each["name"] == "oom"]
    asked = mark["value"]
    expect(abs(asked - too_much) <= too_much / 100, f"the mark has {asked}, not {too_much}")
    expect(node.record["otel"]["status"]["code"] == 2, "the phase has no ERROR")
    custom = files["metadata.json"]["custom_metadata"]
    kinds = {event["event_type"] for event in files["events.json"]}
    expect({"sample", "error"} <= kinds, f"the events are {kinds}")
    if machine.is_gpu:
        expect(mark["attrs"]["backend"] == "cuda", f"the mark has {mark['attrs']}")
        statistics = custom["allocator_statistics"][f"cuda:{torch.cuda.current_device()}"]
        expect(statistics["num_ooms"] >= 1, "the statistics count no error")
        expect(bool(files[_HISTORY]["segments"]), "the memory history is empty")


def _await_sample() -> None:
    """Wait until the sampler's thread, which the flush thread starts, has taken a sample."""
    until = time.monotonic() + _PATIENCE_S
    while not ci.health()["sampling"]["samples"]:
        expect(time.monotonic() < until, f"no sample within {_PATIENCE_S} s")
        time.sleep(0.01)


def _too_much(machine: Machine) -> int:
    if machine.is_gpu:
        return _SHARE * int(torch.cuda.get_device_properties(0).total_memory)
    return 1 << 50


def _retried(machine: Machine, net: Hungry, x: Tensor, too_much: int) -> int:
    """Fail once, and succeed; return the bytes that are allocated after the failure."""
    gc.collect()
    before = _allocated(machine)
    batches: list[weakref.ref[Tensor]] = []
    gc.disable()
    try:
        net.extra = too_much
        expect(not _attempt(net, x, batches), "there was enough memory")
        after = _allocated(machine)
        expect(batches[0]() is None, "the batch of the failed step is still there")
        net.extra = 0
        expect(_attempt(net, x, batches), "the retry failed")
    finally:
        gc.enable()
    net.zero_grad(set_to_none=True)
    return after - before


def _bundle(directory: Path) -> dict[str, Any]:
    (bundle,) = (directory / "oom").iterdir()
    files: dict[str, Any] = {
        each.name: json.loads(each.read_bytes()) for each in bundle.glob("*.json")
    }
    history = bundle / _HISTORY
    if history.exists():
        files[_HISTORY] = pickle.loads(history.read_bytes())
    return files
