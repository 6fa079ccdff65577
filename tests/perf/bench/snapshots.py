"""What a snapshot's statistics cost beside the plain loop that anybody would write for them.

The plain loop is `torch.aminmax`, `torch.var_mean` and `torch.histc` of each parameter, in the
tensors' own precision. Ours gives the norm as well, counts what is not finite, and sums in doubles.
Processes of their own, for the number of threads and the peak of the memory are a process's.
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

PLAIN, OURS = "plain loop", "cirron-otel"
BAR = 1.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    width: int = 768
    """Of the model: 12 layers of a transformer and its embedding, 100 M parameters."""
    words: int = 20_000
    blocks: int = 5


TINY = Sizes(16, 100, 2)
"""Enough to see that everything runs."""


def model(sizes: Sizes) -> Any:
    """The parameters of a small GPT, as its shapes are."""
    from torch import nn

    width = sizes.width

    def layer() -> Any:
        return nn.ModuleList(
            [
                nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width),
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width),
            ]
        )  # fmt: skip

    return nn.ModuleList([nn.Embedding(sizes.words, width), *(layer() for _ in range(12))])


def plain(net: Any) -> list[Any]:
    """Minimum, maximum, mean, variance and histogram of each parameter."""
    import torch

    told = []
    for parameter in net.parameters():
        values = parameter.detach()
        low, high = torch.aminmax(values)
        variance, mean = torch.var_mean(values)
        counts = torch.histc(values, 16)
        told.append([low.item(), high.item(), mean.item(), variance.item(), counts.tolist()])
    return told


def ours(net: Any) -> list[Any]:
    """The records of a snapshot."""
    from cirron_otel.sdk.snapshots import capture

    return list(capture.take(net).records())


def seconds(work: Callable[[Any], object], net: Any) -> float:
    """Wall time of one look at the model, its results on the host."""
    start = time.perf_counter()
    work(net)
    return time.perf_counter() - start


def measured(sizes: Sizes, threads: int, device: str) -> dict[str, Any]:
    """Medians of interleaved blocks, ms, and how often what is taken holds training up."""
    import torch

    from cirron_otel.sdk.snapshots import capture

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = model(sizes).to(device)
    cases = {PLAIN: plain, OURS: ours}
    times: dict[str, list[float]] = {name: [] for name in cases}
    held = []
    for block in range(sizes.blocks + 1):
        for name, work in cases.items():
            took = seconds(work, net)
            if block:  # the first warms up
                times[name].append(took)
        if device != "cpu":
            torch.cuda.synchronize()
            start = time.perf_counter()
            capture.take(net)
            held.append(time.perf_counter() - start)
            torch.cuda.synchronize()
    parameters = list(net.parameters())
    return {
        "parameters": sum(each.numel() for each in parameters),
        "tensors": len(parameters),
        "ms": {name: statistics.median(each) * 1e3 for name, each in times.items()},
        "held_ms": statistics.median(held) * 1e3 if held else None,
    }


def peak(sizes: Sizes) -> dict[str, Any]:
    """What one look adds to the peak of the process's memory, MB."""
    import torch

    torch.set_num_threads(1)
    ours(torch.nn.Linear(8, 8))
    net = model(sizes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours(net)
    return {"mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def _in_a_process(what: str, sizes: Sizes) -> Any:
    from .sdk import environment

    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.perf.bench.snapshots", what, *map(str, astuple(sizes))],
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout)


def _say(what: str, told: dict[str, Any]) -> None:
    plain_ms, ours_ms = told["ms"][PLAIN], told["ms"][OURS]
    ratio = ours_ms / plain_ms
    above = ", ABOVE" if ratio > BAR else ""
    print(
        f"  {what:<12}{PLAIN}{plain_ms:9.1f} ms   {OURS}{ours_ms:9.1f} ms"
        f"   ratio{ratio:6.2f} (bar {BAR:g}{above})"
    )
    if told["held_ms"] is not None:
        print(f"  {'':<12}training is held up for{told['held_ms']:9.2f} ms of it")


def section(sizes: Sizes = Sizes()) -> None:
    """Run it and let it print. Raises CalledProcessError where it fails."""
    one = _in_a_process("1", sizes)
    print(
        f"snapshot statistics of {one['parameters']:,} parameters in {one['tensors']} tensors,"
        f" medians of {sizes.blocks}",
        flush=True,
    )
    _say("1 thread", one)
    _say("2 threads", _in_a_process("2", sizes))
    if one["has_gpu"]:
        _say("GPU", _in_a_process("gpu", sizes))
    print(f"  memory at the peak, beside the model: {_in_a_process('peak', sizes)['mb']:.1f} MB")


def main() -> None:
    """One measurement, in the process that `section` has made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["1", "2", "gpu", "peak"])
    for name in ("width", "words", "blocks"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    sizes = Sizes(given.width, given.words, given.blocks)
    if given.what == "peak":
        print(json.dumps(peak(sizes)))
        return
    import torch

    is_gpu = given.what == "gpu"
    told = measured(sizes, 1 if is_gpu else int(given.what), "cuda" if is_gpu else "cpu")
    print(json.dumps(told | {"has_gpu": torch.cuda.is_available()}))


if __name__ == "__main__":
    main()
