"""The cost of digesting a model, beside one `torch._foreach_norm` of the same tensors.

Digested are the weights and the gradients of 100 million parameters in 300 tensors. The number of
threads and the peak of the memory belong to a process, so each measurement has its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

NORM, DIGEST = "_foreach_norm", "digests"
BAR = 8.0
BAR_MB = 64


@dataclass(frozen=True)
class Sizes:
    """The tensors, and the repetitions."""

    tensors: int = 300
    elements: int = 333_334
    blocks: int = 9


TINY = Sizes(20, 50, 2)
"""Enough to see that everything runs."""


def _tensors(sizes: Sizes, device: str) -> tuple[list[Any], list[Any]]:
    """Weights and gradients; every second weight is a matrix."""
    import torch

    torch.manual_seed(0)
    weights, gradients = (
        [torch.randn(sizes.elements, device=device) for _ in range(sizes.tensors)] for _ in range(2)
    )
    weights[::2] = [each.view(2, -1) for each in weights[::2]]
    return weights, gradients


def _digest(digester: Any, *quantities: list[Any]) -> list[Any]:
    return [
        digester.capture([(str(n), each) for n, each in enumerate(some)], has_numbers=True)
        for some in quantities
    ]


def _seconds(work: Callable[[], object], synchronize: Callable[[], None]) -> tuple[float, float]:
    """The time until `work` returns, and until the device has finished it."""
    synchronize()
    start = time.perf_counter()
    work()
    returned = time.perf_counter()
    synchronize()
    return returned - start, time.perf_counter() - start


def measured(sizes: Sizes, threads: int, device: str) -> dict[str, Any]:
    """Medians of interleaved blocks, ms."""
    import torch

    from cirron_otel.sdk.snapshots.digest_capture import Digester

    torch.set_num_threads(threads)
    weights, gradients = _tensors(sizes, device)
    digester = Digester()
    cases: dict[str, Callable[[], object]] = {
        NORM: lambda: torch._foreach_norm([*weights, *gradients]),
        DIGEST: lambda: _digest(digester, weights, gradients),
    }
    synchronize = _nothing if device == "cpu" else torch.cuda.synchronize
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for block in range(sizes.blocks + 1):
        for name, work in cases.items():
            took = _seconds(work, synchronize)
            if block:  # the first warms up
                times[name].append(took)
    extra_mb = None
    if device != "cpu":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        _digest(digester, weights, gradients)
        extra_mb = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {
        "parameters": sum(each.numel() for each in weights),
        "tensors": len(weights),
        "ms": {
            name: statistics.median(total for _, total in each) * 1e3
            for name, each in times.items()
        },
        "thread_ms": statistics.median(first for first, _ in times[DIGEST]) * 1e3,
        "extra_mb": extra_mb,
        "has_gpu": torch.cuda.is_available(),
    }


def _nothing() -> None:
    pass


def peak(sizes: Sizes) -> dict[str, Any]:
    """The memory that digesting adds to the peak of the process, MB."""
    import torch

    from cirron_otel.sdk.snapshots.digest_capture import Digester

    torch.set_num_threads(1)
    weights, gradients = _tensors(sizes, "cpu")
    torch._foreach_norm(gradients)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for capture in _digest(Digester(), weights, gradients):
        capture.records(capture.digests())
    return {"mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def _in_a_process(what: str, sizes: Sizes) -> Any:
    from .sdk import environment

    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.perf.bench.digest_cost", what, *map(str, astuple(sizes))],
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout)


def _show(what: str, figures: dict[str, Any]) -> None:
    norm, digests = figures["ms"][NORM], figures["ms"][DIGEST]
    ratio = digests / norm
    above = ", ABOVE" if ratio > BAR else ""
    print(
        f"  {what:<12}{NORM}{norm:9.1f} ms   {DIGEST}{digests:9.1f} ms"
        f"   ratio {ratio:.2f} (bar {BAR:g}{above})"
    )
    if figures["extra_mb"] is not None:
        print(
            f"  {'':<12}the thread is blocked for{figures['thread_ms']:9.2f} ms;"
            f" {figures['extra_mb']:.1f} MB on the device (bar {BAR_MB})"
        )


def section(sizes: Sizes = Sizes()) -> None:
    """Run the measurements and print the figures. Raises CalledProcessError if one fails."""
    one = _in_a_process("1", sizes)
    print(
        f"digests of the weights and gradients of {one['parameters']:,} parameters in"
        f" {one['tensors']} tensors, medians of {sizes.blocks}",
        flush=True,
    )
    _show("1 thread", one)
    _show("2 threads", _in_a_process("2", sizes))
    if one["has_gpu"]:
        _show("GPU", _in_a_process("gpu", sizes))
    memory = _in_a_process("peak", sizes)["mb"]
    print(f"  memory at the peak, beside the tensors: {memory:.1f} MB (bar {BAR_MB})")


def main() -> None:
    """Run one measurement, in the process that `section` has started."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["1", "2", "gpu", "peak"])
    for name in ("tensors", "elements", "blocks"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    sizes = Sizes(given.tensors, given.elements, given.blocks)
    if given.what == "peak":
        print(json.dumps(peak(sizes)))
        return
    is_gpu = given.what == "gpu"
    threads = 1 if is_gpu else int(given.what)
    print(json.dumps(measured(sizes, threads, "cuda" if is_gpu else "cpu")))


if __name__ == "__main__":
    main()
