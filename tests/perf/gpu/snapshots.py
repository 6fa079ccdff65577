"""Checks of snapshots: their cost, their values, and that no thread waits for them."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import torch
from torch import Tensor, nn

import cirron_otel as ci
from cirron_otel.sdk.snapshots.capture import Capture, Record, take

from .loops import Training
from .machine import (
    Machine,
    expect,
    median,
    traced,
)

_PATIENCE_S = 30
_EXACT = 1e-9
"""How far statistics may be apart, relatively: sums are made in another order."""
_CANCELLED = 1e-12
"""The same in relation to the largest element, for means of what cancels."""


def _wait(capture: Capture) -> None:
    """Until it is measured: before, its records must not be asked for."""
    until = time.monotonic() + _PATIENCE_S
    while not capture.is_measured:
        expect(time.monotonic() < until, f"not measured within {_PATIENCE_S} s")


def snapshot(machine: Machine) -> None:
    """Statistics of 100 million parameters, beside a loop of torch's own reductions."""
    layers, width = machine.size(100, 4), machine.size(1000, 16)
    net = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    net = net.to(machine.device)
    captures: list[Capture] = []
    host, ours, read, plain = [], [], [], []

    def measure() -> None:
        machine.synchronize()
        start = time.perf_counter()
        capture = take(net)
        taken = time.perf_counter()
        _wait(capture)
        host.append((taken - start) * 1e3)
        ours.append((time.perf_counter() - start) * 1e3)
        captures[:] = [capture]

    def loop() -> None:
        for parameter in net.parameters():
            values = parameter.detach()
            low, high = torch.aminmax(values)
            torch.var_mean(values)
            torch.histc(values, 64, float(low), float(high))

    records: list[Record] = []
    for _ in range(machine.size(10, 2) + 2):
        measure()
        read.append(machine.timed(lambda: records.__setitem__(slice(None), captures[0].records())))
        plain.append(machine.timed(loop))
    machine.figures.update({
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "measured_ms": median(ours[2:]),
        "host_ms": median(host[2:]),
        "records_ms": median(read[2:]),
        "torch_loop_ms": median(plain[2:]),
    })  # fmt: skip
    expect(len(records) == layers, f"{len(records)} records of {layers} tensors")
    problems = differences(records, list(take(copy.deepcopy(net).cpu()).records()))
    expect(not problems, "; ".join(problems[:10]))
    if machine.is_gpu:
        expect(median(ours[2:]) < 100, f"it takes {median(ours[2:])} ms")


def differences(ours: list[Record], others: list[Record]) -> list[str]:
    """Where records say something else than those of the same tensors on the CPU."""
    found = []
    if len(ours) != len(others):
        found.append(f"{len(ours)} records, not {len(others)}")
    for one, other in zip(ours, others, strict=False):
        for key in ("name", "is_gradient", "shape", "dtype", "attrs"):
            if getattr(one, key) != getattr(other, key):
                told = f"{key} {getattr(one, key)}, not {getattr(other, key)}"
                found.append(f"{other.name}: {told}")
        if one.stats is None or other.stats is None:
            found.append(f"{other.name}: without statistics: {one.attrs}, {other.attrs}")
            continue
        known = other.stats | other.stats.get("finite", {})
        size = max(abs(known.get(key) or 0.0) for key in ("min", "max"))
        found += _apart(other.name, one.stats, other.stats, size)
    return found


def _apart(path: str, one: Any, other: Any, size: float) -> list[str]:
    """What is not the same in two values; counts are exact, and so are keys and texts."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [
            told for key in one for told in _apart(f"{path}.{key}", one[key], other[key], size)
        ]  # fmt: skip
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [told for n, pair in pairs for told in _apart(f"{path}[{n}]", *pair, size)]
    is_near = one == other
    if isinstance(one, float) and isinstance(other, float):
        is_near = math.isclose(one, other, rel_tol=_EXACT, abs_tol=_CANCELLED * size)
    return [] if is_near else [f"{path}: {one}, not {other}"]


def _odd(values: Tensor) -> Tensor:
    """With some that are not finite."""
    values = values.clone()
    values[::7], values[1::50], values[2::90] = math.nan, math.inf, -math.inf
    return values


def kinds(machine: Machine) -> dict[str, list[Tensor]]:
    """Tensors of many kinds, in the host's memory; the large one is cut into pieces.

    Complex ones lie on the axes: elsewhere magnitudes are rounded as the device likes.
    """
    torch.manual_seed(0)
    plain = torch.randn(machine.size(300_000, 3_000))
    numbers = torch.randint(-100, 100, (machine.size(90_000, 900),))
    return {
        "float32": [plain, plain[:1], plain[:300].reshape(20, 15), torch.full((9,), 0.1)],
        "float64": [torch.randn(machine.size(5_000_000, 5_000), dtype=torch.float64)],
        "bfloat16": [plain.bfloat16(), plain[:7].bfloat16()],
        "float16": [plain.half(), plain[:7].half()],
        "float8": [plain.to(torch.float8_e4m3fn), plain[:7].to(torch.float8_e5m2)],
        "int": [numbers, numbers.to(torch.int8), numbers.to(torch.int32)[:5], numbers > 3],
        "complex64": [plain * (1 + 0j), plain * 1j],
        "tiny": [plain * 1e-30, plain.double() * 1e-200, plain.double() * 1e200],
        "nonfinite": [
            _odd(plain), _odd(plain.half()), _odd(plain.bfloat16()), torch.full((8,), math.nan),
            torch.full((8,), math.inf),
        ],
        "strided": [
            plain.reshape(-1, 30)[:, ::2], plain.reshape(-1, 30).T, plain[::3],
            plain.reshape(-1, 5, 6).permute(2, 0, 1)[:, :, 1:], numbers.reshape(-1, 9)[:, 2:4],
        ],
    }  # fmt: skip


class Holding(nn.Module):
    """Has given tensors for its parameters."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_parameter(f"p{number}", nn.Parameter(tensor, requires_grad=False))


def values(machine: Machine) -> None:
    """Tensors of every kind have the statistics on the device that they have on the CPU."""
    problems = []
    every = kinds(machine)
    every["mixed"] = [tensor for tensors in every.values() for tensor in tensors]
    for name, tensors in every.items():
        expected = list(take(Holding(tensors)).records())
        net = Holding([_moved(tensor, machine) for tensor in tensors])
        with machine.unwaiting():
            capture = take(net)
        groups = [len(each.numbers) for each in capture._results]
        if machine.is_gpu and sum(groups) != len(tensors):
            problems.append(f"{name}: on the device only {groups}: {capture.failures}")
        _wait(capture)
        found = differences(list(capture.records()), expected)
        machine.figures[name] = {"measured_together": groups, "differences": len(found)}
        problems += [f"{name}: {each}" for each in found]
    expect(not problems, "; ".join(problems[:20]))


def _moved(tensor: Tensor, machine: Machine) -> Tensor:
    """On the device, with the same strides: as a part of what it is a part of."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=tensor.dtype).set_(storage).to(machine.device)
    moved = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    expect(moved.stride() == tensor.stride(), "it is laid out in another way")
    return moved


def epoch(machine: Machine) -> None:
    """An epoch of a watched model ends while the device is busy, and nobody waits."""
    steps = machine.size(8, 2)
    training = Training(machine, 256, 4, busy_ms=machine.size(50, 1))
    training.run(2)
    with traced(snapshots="stats") as session:
        ci.watch(training.net)
        training.run(2)
        machine.synchronize()
        expect(session.profiler.flush(), "what was recorded was not sealed in time")
        before = ci.health()["snapshots"]
        host, device = machine.race(lambda: training.run(steps))
        after = ci.health()["snapshots"]
    held_ms = (after["seconds"] - before["seconds"]) * 1e3
    machine.figures.update(
        {"host_ms": host, "device_ms": device, "taking_ms": held_ms, "steps": steps}
    )
    counts = before["count"], after["count"]
    expect(counts == (1, 2), f"{counts} snapshots at the ends of two epochs")
    records = [each for batch in session.batches for each in batch["snapshots"]]
    tensors = sum(1 for _ in training.net.parameters())
    expect(len(records) == 2 * tensors, f"{len(records)} records of {tensors} weights, twice")
    empty = [each["tensor_name"] for each in records if not each["stats"]]
    expect(not empty, f"without statistics: {empty}")
    if machine.is_gpu:
        copies = session.find("h2d")
        expect(len(copies) == steps + 2, f"{len(copies)} h2d in {steps + 2} steps")
        numbers = [each.record["attrs"]["copies"] for each in copies]
        expect(set(numbers) == {1}, f"copies of ours count: {numbers}")
        expect(host < device / 2, f"the host took {host} ms of the device's {device} ms")
        expect(held_ms < device / 10, f"taking it held the host up for {held_ms} ms of {device} ms")
