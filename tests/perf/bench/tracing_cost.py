"""The cost of tracing a loop of short steps, and the figure that the report of the run shows.

Untraced and traced blocks of one process take turns. Each traced block is a session and a run of
its own. The difference is that of the medians.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import cirron_otel as ci

NEAR = 0.2
"""The figure of the report may differ from the cost by this part of it."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    steps: int = 8_000
    blocks: int = 7


TINY = Sizes(400, 2)


def _loops() -> dict[str, Callable[[int], None]]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model, loss_of = torch.nn.Linear(16, 1), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(400, 16), torch.randn(400, 1)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)

    def step(batch: torch.Tensor, target: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model(batch), target).backward()
        optimizer.step()

    def without_loader(steps: int) -> None:
        for _ in range(steps):
            step(inputs[:8], targets[:8])

    small = torch.nn.Linear(4, 1, bias=False)
    plain = torch.optim.SGD(small.parameters(), lr=0.0, foreach=False)
    row = torch.randn(1, 4)

    def of_short_steps(steps: int) -> None:
        for _ in range(steps):
            small(row).backward()
            plain.step()
            small.weight.grad = None

    def with_loader(steps: int) -> None:
        for _ in range(steps // len(loader)):
            for batch, target in loader:
                step(batch, target)

    return {
        "a loop with a loader": with_loader,
        "a loop without a loader": without_loader,
        "a loop of shorter steps": of_short_steps,
    }


def _timed(loop: Callable[[int], None], steps: int) -> float:
    begun = time.perf_counter_ns()
    loop(steps)
    return (time.perf_counter_ns() - begun) / steps / 1000


def _reported(folder: str, steps: int) -> tuple[float, set[str]]:
    """Return the account `tracing` in µs a step, and the kinds of findings."""
    command = [sys.executable, "-m", "cirron_otel", "report", folder, "--json"]
    document = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    accounts = {each["account"]: each["ns"] for each in document["ledger"]["accounts"]}
    kinds = {each["kind"] for each in document["findings"]}
    return accounts.get("tracing", 0) / steps / 1000, kinds


def section(sizes: Sizes) -> None:
    """Print the costs of the loops and the figures of their reports."""
    print(f"tracing: µs a step, medians of {sizes.blocks} blocks of {sizes.steps:,} steps")
    for name, loop in _loops().items():
        loop(400)
        untraced, traced, figures = [], [], []
        kinds: set[str] = set()
        for _ in range(sizes.blocks):
            untraced.append(_timed(loop, sizes.steps))
            with tempfile.TemporaryDirectory() as folder:
                ci.profile(output_dir=folder, exporters="none", quiet=True, snapshots=None)
                traced.append(_timed(loop, sizes.steps))
                ci.shutdown()
                figure, found = _reported(folder, sizes.steps)
            figures.append(figure)
            kinds |= found
        plain = statistics.median(untraced)
        cost, figure = statistics.median(traced) - plain, statistics.median(figures)
        ratio = figure / cost
        end = "" if abs(ratio - 1) <= NEAR else ", OUTSIDE"
        print(f"  {name:<26}{plain:8.1f}  tracing costs {cost:+.1f}, the report shows {figure:.1f}")
        print(f"    reported / cost: {ratio:.2f} (from {1 - NEAR} to {1 + NEAR}{end})")
        print(f"    findings: {', '.join(sorted(kinds)) or 'none'}")
