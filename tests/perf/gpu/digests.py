"""Checks of digests: the device's equal the CPU's, no thread waits for them, and their cost."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from cirron_otel.sdk.snapshots.digest_capture import DigestCapture, Digester
from tests.sdk.snapshots.digests import recompute
from tests.sdk.snapshots.digests.reading import digests, values

from .loops import Training
from .machine import (
    Machine,
    expect,
    median,
    traced,
)
from .snapshots import _moved, kinds

_BAR = 8.0
_BAR_MB = 64


def _captured(digester: Digester, tensors: list[Any]) -> DigestCapture:
    return digester.capture([(str(n), each) for n, each in enumerate(tensors)], has_numbers=True)


def digest_values(machine: Machine) -> None:
    """Tensors of every kind have the digests and the numbers on the device that the CPU gives."""
    tensors = [each for some in kinds(machine).values() for each in some]
    tensors.append(torch.randn(machine.size(9_000_000, 90_000)))
    expected = _captured(Digester(), tensors)
    moved = [_moved(each, machine) for each in tensors]
    digester = Digester()
    with machine.unwaiting():
        capture = _captured(digester, moved)
        again = _captured(digester, moved)
    for each in (capture, again):
        each.wait()
        expect(not each.failed, f"failed: {each.failed}")
        found = each.records(each.digests())
        wanted = expected.records(expected.digests())
        wrong = [n for n, pair in enumerate(zip(found, wanted, strict=True)) if len(set(pair)) > 1]
        expect(not wrong, f"other digests than on the CPU: tensors {wrong}")
    sparse = torch.eye(5).to_sparse()
    one, other = _captured(digester, [sparse.to(machine.device)]), _captured(Digester(), [sparse])
    one.wait()
    expect(one.digests() == other.digests(), "a sparse tensor has another digest than on the CPU")
    methods = [type(each._by).__name__ for each in digester._summing.values()]
    machine.figures.update({"tensors": len(tensors), "multiplied_by": methods})


def digest_streams(machine: Machine) -> None:
    """Tables that a busy stream creates are complete when another stream digests with them."""
    tensors = [torch.randn(machine.size(3_000_000, 3_000)), torch.randn(70, 90).T, torch.ones(5)]
    expected = _captured(Digester(), tensors).digests()
    moved = [_moved(each, machine) for each in tensors]
    machine.synchronize()
    for _ in range(machine.size(5, 2)):
        digester = Digester()
        captures = []
        for busy_ms in (50, 0, 0):
            with torch.cuda.stream(torch.cuda.Stream()) if machine.is_gpu else nullcontext():
                machine.work(busy_ms)
                captures += [_captured(digester, some) for some in (moved, moved[::-1])]
        for number, each in enumerate(captures):
            each.wait()
            found = each.digests()[:: -1 if number % 2 else 1]
            expect(found == expected, f"capture {number} has other digests than on the CPU")
        machine.synchronize()


def digest_cost(machine: Machine) -> None:
    """Weights and gradients of 100 million parameters in 300 tensors, beside a norm of them."""
    count, elements = machine.size(300, 10), machine.size(333_334, 50)
    tensors = [torch.randn(elements, device=machine.device) for _ in range(2 * count)]
    digester = Digester()
    ours: list[float] = []
    host: list[float] = []
    norms: list[float] = []

    def digest() -> None:
        begun = time.perf_counter()
        for some in (tensors[:count], tensors[count:]):
            _captured(digester, some)
        host.append((time.perf_counter() - begun) * 1e3)

    for _ in range(machine.size(10, 2) + 2):
        ours.append(machine.timed(digest))
        norms.append(machine.timed(lambda: torch._foreach_norm(tensors)))
    ratio = median(ours[2:]) / median(norms[2:])
    machine.figures.update({
        "parameters": count * elements, "digests_ms": median(ours[2:]),
        "thread_ms": median(host[2:]), "norm_ms": median(norms[2:]), "ratio": ratio,
    })  # fmt: skip
    if machine.is_gpu:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        digest()
        extra = (torch.cuda.max_memory_allocated() - before) / 2**20
        machine.figures["extra_mb"] = extra
        expect(extra < _BAR_MB, f"{extra} MB more on the device")
        expect(ratio < _BAR, f"{ratio} times the time of a norm")


def digest_steps(machine: Machine) -> None:
    """A training with digests: equal twice, equal to one without, and never waited for."""
    steps = machine.size(6, 2)
    found: list[Any] = []
    directories: list[Path] = []
    for digest in (None, "tensors", "tensors"):
        torch.manual_seed(3)
        training = Training(machine, machine.size(256, 16), 4, busy_ms=machine.size(50, 1))
        with traced(digest=digest) as session:
            directories.append(Path(session.profiler.config.output_dir))
            training.run(2)  # plans are made, and the optimizer's state
            host, device = machine.race(lambda run=training.run: run(steps))
            machine.synchronize()
            expect(session.profiler.flush(), "what was recorded was not sealed in time")
            if digest is not None:
                found.append(values(directories[-1]))
        found.append(copy.deepcopy(training.net).cpu().state_dict())
        machine.figures[f"{digest}_host_ms"], machine.figures[f"{digest}_device_ms"] = host, device
    plain, *(first, one, second, other) = found
    expect(bool(first), "no digests")
    expect(first == second, "two equal runs have other digests")
    for weights in (one, other):
        same = all(torch.equal(each, plain[name]) for name, each in weights.items())
        expect(same, "the weights differ from those without digests")
    if machine.is_gpu:
        expect(host < device / 2, f"the host took {host} ms of the device's {device} ms")


def digest_files(machine: Machine) -> None:
    """A script gives the recorded digests from the kept tensors, with the standard library."""
    torch.manual_seed(3)
    training = Training(machine, 16, 2)
    with traced(digest="tensors", digest_keep="1") as session:
        training.run(3)
        machine.synchronize()
        expect(session.profiler.flush(), "what was recorded was not sealed in time")
        kept = [
            each for each in digests(Path(session.profiler.config.output_dir)) if each.mark.blob_uri
        ]
        expect(len(kept) >= 5, f"{len(kept)} files of a step")
        for each in kept:
            file = str(each.mark.blob_uri).removeprefix("file://")
            command = [sys.executable, "-I", recompute.__file__, file]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            *tensors, quantity = printed.splitlines()
            expect(quantity == each.mark.digest, f"{each.mark.quantity} has another digest")
            recorded = [f"{record.digest} {name}" for name, record in each.tensors.items()]
            expect(tensors == recorded, f"tensors of {each.mark.quantity} have other digests")
    machine.figures["files"] = len(kept)
